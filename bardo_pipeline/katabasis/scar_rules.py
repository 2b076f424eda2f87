"""Derives confirmed failures with their causes, and selects the scars to share with the clade. Pure, set-based.

A failure depends on the golem's own stream alone. A scar is a failure that is new to the golem's clade; it depends on
the set of the clade's failures, not on the order of derivation. Source: KAT (Acheron), canon 4, 7, 17, 39, 46.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, contiguous, listed, required
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, confidence_at, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import int_column, micros, query_tables, to_bools
from bardo_pipeline.katabasis.action_outcomes import OUTCOME_COLUMNS
from bardo_pipeline.katabasis.scar_text import context, narrative
from bardo_pipeline.policy import Policy

FAILURE_COLUMNS = (*OUTCOME_COLUMNS, "observation", "regime", "pad_after", "playbook_version")
"""Record columns from which failures are derived."""

SCAR_REGIMES = ("HighVol", "Trending", "LowVol", "Ranging", "Unknown")
"""KAT's regimes in order of precedence (canon 32)."""

_CONTEXT = pa.struct(
    all_required(pa.string(), "active_strategy", "hypothesis_at_action", "actual_outcome", "counterfactual_hint")
)

FAILURE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "scar_id", "golem_id", "owner_id"),
        *all_required(pa.int64(), "seq", "cycle"),
        required("episode_id", pa.string()),
        required("tick", pa.int64()),
        required("at", MOMENT),
        required("confirmed", pa.string()),
        required("confirmed_tick", pa.int64()),
        required("confirmed_at", MOMENT),
        *all_required(pa.string(), "outcome_class", "mechanism"),
        pa.field("cause_variable", pa.string()),
        required("is_clear", pa.bool_()),
        required("confidence_ppm", pa.int64()),
        required("position_state", pa.string()),
        *all_required(pa.string(), "chain", "protocol", "pair", "tool_name", "action_type"),
        *all_required(pa.string(), "regime", "market_regime", "anomaly_band", "gas_band", "structure"),
        *all_nullable(pa.int64(), "pnl_ppm", "effect_ppm"),
        required("causal_narrative", pa.string()),
        required("causal_context", _CONTEXT),
        *all_required(pa.float64(), "pleasure", "arousal", "dominance"),
        required("emotion", pa.string()),
        required("playbook_version", pa.int64()),
        listed("cause_ticks", pa.int64()),
    ]
)
"""One row per confirmed failure of a golem; key (golem_id, seq). seq is the order of confirmation, scar_id is
scar-{golem_id}-{seq}. cause_variable: from the record, may be null. cycle: the cycle whose close confirmed the failure.
position_state: open, closed, or impaired (it lost more than 2 % immediately, KAT). Effects are in ppm of the position.
pleasure is in [-1, 1]; arousal and dominance are clamped to [0, 1]. emotion: KAT's label by the signs of arousal and
dominance (Mehrabian's anxious, disdainful, hostile and bored). cause_ticks: the ticks of action and confirmation."""

SCAR_SCHEMA = pa.schema(
    [
        *(field for field in FAILURE_SCHEMA if field.name not in ("is_clear", "seq")),
        *all_required(pa.int64(), "novelty_ppm", "seen_count", "qualified_at_tick"),
        required("published", pa.string()),
        required("is_bloodstain", pa.bool_()),
        required("decay_class", pa.string()),
    ]
)
"""One row per scar shared with a clade; key (owner_id, scar_id). novelty_ppm: 1 minus the share of structure in common
with the most similar earlier scar. seen_count: failures of the clade with this structure and mechanism. published:
"life" at the close of a cycle, or "death"; scars published by death are bloodstains."""

RULE_COLUMNS = ("golem_id", "structure", "cycle", "revision", "seq", "sign", "status", "confidence_ppm")
"""Decision columns from which a scar's confidence is computed."""

_FAILURES = """
    with located as (
        select f.*, r.observed_at as "at", r.observation as o, r.regime, r.pad_after as pad,
            r.playbook_version, r.market_regime,
            r.outcome.cause_variable as cause_variable, r.outcome.effect_variable as effect_variable,
            coalesce(case when outcome_class = 'lasting' and effect_ppm is not null then effect_ppm end, pnl_ppm)
                as worst_ppm
        from failures f join records r using (golem_id, tick)
    )
    select located.* exclude (o, pad), owner_id, golem_id || ':' || tick as episode_id,
        o.chain as chain, o.protocol as protocol, o.pair as pair,
        $anomaly_bands[1 + len(list_filter($anomaly_edges, lambda edge: edge <= o.anomaly_score))] as anomaly_band,
        $gas_bands[1 + len(list_filter($gas_edges, lambda edge: edge <= o.gas_hour_ratio))] as gas_band,
        pad.pleasure as pleasure, greatest(pad.arousal, 0.0) as arousal, greatest(pad.dominance, 0.0) as dominance,
        case when pad.arousal >= 0.0 then if(pad.dominance >= 0.0, 'Shocked', 'Anxious')
            else if(pad.dominance >= 0.0, 'Regretful', 'Resigned') end as emotion,
        case when outcome_class = 'revert' then 'refused' when outcome_class = 'slippage' then 'slipped'
            when cause_variable is not null then 'cause'
            when outcome_class = 'lasting' then if(coalesce(pnl_ppm <= $explained * worst_ppm, false), 'cost', 'return')
            when slippage_ppm >= -$explained * worst_ppm then 'slipped'
            when gas_ppm >= -$explained * worst_ppm then 'gas' else 'unexplained' end as mechanism,
        mechanism <> 'unexplained' as is_clear,
        case when outcome_class = 'drawdown' then 'impaired'
            when action_type = 'remove_liquidity' or confirmed = 'at_death' then 'closed' else 'open' end
            as position_state,
        coalesce(known, 0) + row_number() over (partition by golem_id order by
            confirmed_tick, confirmed = 'at_death', tick) as seq,
        'scar-' || golem_id || '-' || seq as scar_id,
        list_sort(list_distinct([tick, confirmed_tick])) as cause_ticks
    from located left join owners using (golem_id) left join before using (golem_id)
    order by golem_id, seq
"""

_CONFIDENCE = """
    with latest as (
        select * from rules
        qualify row_number() over (partition by golem_id, structure, cycle order by revision desc, seq desc) = 1
    ),
    asof_rules as (
        select f.golem_id, f.seq, f.outcome_class, r.sign, r.status, r.confidence_ppm
        from failures f asof left join latest r
        on f.golem_id = r.golem_id and f.structure = r.structure and f.cycle >= r.cycle
    )
    select golem_id, seq, case
        when outcome_class <> 'lasting' or coalesce(status not in ('active', 'folded') or sign = 0, true) then $own
        when sign < 0 then greatest($own, confidence_ppm)
        else least($own, 1000000 - confidence_ppm) end as confidence_ppm
    from asof_rules order by golem_id, seq
"""


def failures_of(
    failures: pa.Table, records: pa.Table, rules: pa.Table, owners: pa.Table, before: pa.Table, policy: Policy
) -> pa.Table:
    """Describe confirmed failures with mechanism, confidence and text. Returns FAILURE_SCHEMA by golem and seq.

    Parameters
    ----------
    failures : pa.Table, OUTCOME_SCHEMA with the cycle in which each failure was confirmed
    records : pa.Table, FAILURE_COLUMNS, at least the records of the failed ticks
    rules : pa.Table, RULE_COLUMNS of the curator's decisions about the failures' structures
    owners : pa.Table, columns golem_id and owner_id; a golem without an owner raises DerivationError
    before : pa.Table, columns golem_id and known, the number of earlier failures of the golem
    """
    names = ["golem_id", "tick", "observed_at", "outcome", "observation", "regime", "pad_after", "playbook_version"]
    context_records = records.select(names).append_column("market_regime", market_regimes(records, policy))
    numbers = {
        "explained": policy.katabasis.scar_explained_min,
        "anomaly_bands": list(ANOMALY_BANDS),
        "anomaly_edges": list(policy.curator.anomaly_edges),
        "gas_bands": list(GAS_BANDS),
        "gas_edges": list(policy.curator.gas_edges),
    }
    located = query_tables(_FAILURES, numbers, failures=failures, records=context_records, owners=owners, before=before)
    if located["owner_id"].null_count:
        orphans = located.filter(pc.is_null(located["owner_id"]))["golem_id"].to_pylist()
        raise DerivationError(f"golem {min(orphans)}: no owner on record, so its failures belong to no clade")
    rows = located.to_pylist()  # the rows are few, and each needs its own text
    for name, values in (
        ("structure", [Structure("pattern", *(row[part] for part in _STRUCTURE)).key for row in rows]),
        ("causal_narrative", [narrative(row) for row in rows]),
        ("causal_context", [context(row) for row in rows]),
    ):
        located = located.append_column(name, pa.array(values, FAILURE_SCHEMA.field(name).type))
    located = located.append_column("confidence_ppm", _causal_confidence(located, rules, policy))
    return located.select(FAILURE_SCHEMA.names).cast(FAILURE_SCHEMA)


def market_regimes(records: pa.Table, policy: Policy) -> pa.Array:
    """Return KAT's regime of each record from its columns observation and regime (canon 32)."""
    regime = contiguous(records["regime"])
    sigma = pc.struct_field(contiguous(records["observation"]), "sigma_ratio")
    quiet = pc.fill_null(pc.less(sigma, policy.katabasis.low_vol_ratio), False)
    cases = pc.make_struct(
        pc.equal(regime, "volatile"),
        pc.starts_with(regime, "trending"),
        pc.and_(pc.equal(regime, "range_bound"), quiet),
        pc.equal(regime, "range_bound"),
    )
    return pc.case_when(cases, *SCAR_REGIMES)


_STRUCTURE = ("chain", "protocol", "pair", "tool_name", "action_type", "regime", "anomaly_band", "gas_band")
"""Parts of a rule's structure, in the order of its key."""


def _causal_confidence(failures: pa.Table, rules: pa.Table, policy: Policy) -> pa.Array:
    """Return the confidence in each causal link, in ppm: `scar_confidence`, adjusted by a rule of the same structure.

    A rule with a negative sign at that cycle's close raises the confidence to its own; a positive one lowers it to its
    complement. Immediate failures and failures without a rule keep `scar_confidence`.
    """
    keys = failures.select(["golem_id", "seq", "cycle", "structure", "outcome_class"])
    numbers = {"own": ppm(policy.katabasis.scar_confidence)}
    rated = query_tables(_CONFIDENCE, numbers, failures=keys, rules=rules.select(list(RULE_COLUMNS)))
    return contiguous(rated["confidence_ppm"])


_SCARS = """
    with eligible as (
        select f.*, row_number() over occurrence = 1 as is_first,
            count(*) over (partition by owner_id, structure, mechanism) as seen_count
        from failures f where is_clear and confidence_ppm >= $sure
        window occurrence as (partition by owner_id, structure, mechanism order by confirmed_at, golem_id, seq)
    ),
    scars as (select * from eligible where is_first),
    similarity as (
        select s.scar_id, s.owner_id, max(
            (s.chain = e.chain and s.protocol = e.protocol and s.pair = e.pair)::int
            + (s.tool_name = e.tool_name and s.action_type = e.action_type)::int + (s.mechanism = e.mechanism)::int
            + (s.regime = e.regime)::int + (s.anomaly_band = e.anomaly_band)::int + (s.gas_band = e.gas_band)::int
        ) as shared
        from scars s join scars e on s.owner_id = e.owner_id
            and (e.confirmed_at, e.golem_id, e.seq) < (s.confirmed_at, s.golem_id, s.seq)
        group by all
    )
    select s.*, 1000000 - coalesce(shared, 0) * 1000000 // 6 as novelty_ppm,
        least(s.cycle * $span, coalesce(d.tick, s.cycle * $span)) as qualified_at_tick,
        coalesce(d.cycle = s.cycle, false) as is_bloodstain, if(is_bloodstain, 'death', 'life') as published,
        'tactical' as decay_class
    from scars s left join similarity using (scar_id, owner_id) left join deaths d using (golem_id)
    order by owner_id, scar_id
"""


def scars_of(failures: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Select the failures to share with their clades. Returns SCAR_SCHEMA sorted by owner and scar id.

    A scar has a known mechanism, a confidence of at least `scar_confidence_min`, and is the first failure of its
    structure and mechanism in the clade, by time of confirmation, then golem and seq.

    Parameters
    ----------
    failures : pa.Table, FAILURE_SCHEMA, all failures of each owner
    deaths : pa.Table, columns golem_id, cycle and tick of the recorded deaths
    """
    numbers = {"sure": ppm(policy.katabasis.scar_confidence_min), "span": policy.curator.cycle_ticks}
    death_ticks = deaths.select(["golem_id", "cycle", "tick"])
    scars = query_tables(_SCARS, numbers, failures=failures, deaths=death_ticks)
    return scars.select(SCAR_SCHEMA.names).cast(SCAR_SCHEMA)


def scar_confidence(scars: pa.Table, at_us: Int64Array | int, policy: Policy) -> Int64Array:
    """Return each scar's confidence in ppm at a time; bloodstains have a longer half-life and a floor (canon 4, 7)."""
    is_bloodstain = to_bools(contiguous(scars["is_bloodstain"]))
    days = policy.katabasis.scar_half_life_days * np.where(is_bloodstain, policy.decay.bloodstain_multiplier, 1.0)
    half = np.rint(np.minimum(days * DAY_US, float(FOREVER_US >> 3))).astype(np.int64)
    floor = np.where(is_bloodstain, ppm(policy.decay.bloodstain_floor), 0)
    return confidence_at(int_column(scars, "confidence_ppm"), micros(scars, "confirmed_at"), at_us, half, floor)
