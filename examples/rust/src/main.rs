//! A minimal runtime of a golem: it writes one life into the spool.
//!
//!     write-spool SPOOL_FOLDER GOLEM_ID TICKS
//!
//! The operator records the golem's birth before: bardo golem birth GOLEM_ID --owner OWNER --at 2026-01-01
//! docs/writing.md describes the protocol: write the file under a name that begins with a dot, sync it, rename it.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const PROBES: [&str; 11] = [
    "tvl_change", "position_health", "gas_price", "credit_balance", "rsi_macd", "circuit_breaker",
    "kill_switch", "pheromone_threat", "homeostatic_deviation", "world_model_drift", "causal_graph",
];
const TICKS_PER_FILE: u64 = 100;

/// Put a whole file into the spool. The file is synced before its rename, and the folder after it.
fn drop_file(spool: &Path, name: &str, lines: &[String]) -> io::Result<()> {
    let draft = spool.join(format!(".{name}"));
    let mut out = io::BufWriter::new(File::create(&draft)?);
    for line in lines {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")?;
    }
    out.into_inner()?.sync_all()?;
    fs::rename(&draft, spool.join(name))?;
    File::open(spool)?.sync_all()
}

/// Return a text as a JSON string.
fn text(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Return the moment of a tick in UTC, in minutes from the start of 2026. The life ends within January.
fn moment(tick: u64) -> String {
    let (day, minute) = (tick / 1440, tick % 1440);
    format!("2026-01-{:02}T{:02}:{:02}:00Z", day + 1, minute / 60, minute % 60)
}

/// Return the record of a tick on which the golem observed a price and did nothing.
fn record(golem_id: &str, tick: u64, price: f64, before: f64) -> String {
    let calm = r#"{"pleasure":0.0,"arousal":0.0,"dominance":0.0}"#;
    let moved = price / before - 1.0;
    let mut probes = vec![format!(
        r#"{{"probe":"price_delta","severity":"none","value":{moved:?},"threshold":0.005,"detail":null}}"#
    )];
    for name in PROBES {
        probes.push(format!(
            r#"{{"probe":"{name}","severity":null,"value":null,"threshold":null,"detail":"no source"}}"#
        ));
    }
    format!(
        concat!(
            r#"{{"schema_version":2,"golem_id":{id},"tick":{tick},"observed_at":"{at}","cycle_seen":0,"#,
            r#""derivation_id":null,"playbook_version":0,"observation":{{"market":"example","chain":"polygon","#,
            r#""protocol":"uniswap_v3","pair":"WETH/USDC","pool":"0xpool","block_number":null,"price":{price:?},"#,
            r#""price_low":{low:?},"price_high":{high:?},"price_return":{moved:?},"sma":null,"sigma_ratio":null,"#,
            r#""rsi":null,"macd":null,"liquidity":1e18,"volume_micros":0,"gas_gwei":30.0,"gas_hour_ratio":1.0,"#,
            r#""idle_micros":0,"net_asset_value_micros":50000000,"anomaly_score":0.0,"positions":[]}},"#,
            r#""regime":"unknown","tick_interval_seconds":60,"probe_results":[{probes}],"anomalies":[],"#,
            r#""predictions":[],"pad_before":{calm},"pad_after":{calm},"somatic_markers_fired":[],"#,
            r#""primary_emotion":"trust","prediction_error":0.0,"prediction_error_sources":{{"price":null,"#,
            r#""regime":0.0,"health":null,"threat":null,"interventions":0.0,"anomalies":0.0}},"#,
            r#""deliberation_threshold":0.3,"tier":"T0","forced_by":null,"gating_reason":"no anomaly","#,
            r#""context_bundle_summary":null,"retrieved_entries":[],"active_interventions":[],"deliberation":null,"#,
            r#""actions":[],"outcome":null,"resolutions":[],"episodes_written":[],"grimoire_mutations":[],"#,
            r#""vitality":{{"economic":1.0,"epistemic":1.0,"stochastic":1.0,"composite":1.0}},"phase":"thriving","#,
            r#""credits_micros":50000000,"credit_consumed_micros":0,"cost":{{"inference_micros":0,"gas_micros":0,"#,
            r#""total_micros":0}},"pipeline":null,"sealed":null}}"#
        ),
        id = text(golem_id),
        tick = tick,
        at = moment(tick),
        price = price,
        low = price.min(before),
        high = price.max(before),
        moved = moved,
        probes = probes.join(","),
        calm = calm
    )
}

/// Write the records of a golem along a random walk of the price.
fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().collect();
    let [_, spool, golem_id, ticks] = words.as_slice() else {
        eprintln!("usage: write-spool SPOOL_FOLDER GOLEM_ID TICKS");
        std::process::exit(2);
    };
    let (spool, ticks) = (PathBuf::from(spool), ticks.parse::<u64>().map_err(io::Error::other)?);
    let (mut price, mut chance, mut lines) = (2000.0_f64, 0x9e37_79b9_7f4a_7c15_u64, Vec::new());
    for tick in 1..=ticks {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        let before = price;
        price *= 1.0 + (chance as f64 / u64::MAX as f64 - 0.5) * 0.002;
        lines.push(record(golem_id, tick, price, before));
        if lines.len() as u64 == TICKS_PER_FILE || tick == ticks {
            drop_file(&spool, &format!("{golem_id}-{tick:08}.jsonl"), &lines)?;
            lines.clear();
        }
    }
    Ok(())
}
