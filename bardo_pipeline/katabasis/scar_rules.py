"""Scars: verified failures with their causes, and which of them a clade is told. Pure, set-based.

A failure is a golem's own: a function of its stream. A scar is one that the golem's clade did not know yet: a function
of the set of the clade's failures, whoever was derived first. Source: KAT (Acheron), canon 4, 7, 17, 39, 46.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.record.arrow_columns import one
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, confidence_at, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import contiguous, int_column, micros, query_tables, to_bools
from bardo_pipeline.katabasis.action_outcomes import OUTCOME_COLUMNS
from bardo_pipeline.katabasis.scar_text import UNEXPLAINED, context, narrative
from bardo_pipeline.policy import Policy

FAILURE_COLUMNS = (*OUTCOME_COLUMNS, "observation", "regime", "pad_after", "playbook_version")
"""Columns of a record that failures rest on."""

SCAR_REGIMES = ("HighVol", "Trending", "LowVol", "Ranging", "Unknown")
"""KAT's regimes, the first that fits before the others (canon 32)."""

EMOTIONS = ("Anxious", "Regretful", "Shocked", "Resigned")
"""KAT's labels, by the signs of arousal and dominance: aroused and helpless, calm and in command, aroused and in
command, calm and helpless (Mehrabian's anxious, disdainful, hostile and bored)."""

POSITIONS = ("open", "closed", "impaired")
"""What became of the position: all that is confirmed is resolved. Impaired: it lost more than KAT's 2 % at once."""

_CONTEXT = pa.struct(
    [
        pa.field(name, pa.string(), nullable=False)
        for name in ("active_strategy", "hypothesis_at_action", "actual_outcome", "counterfactual_hint")
    ]
)

FAILURE_SCHEMA = pa.schema(
    [
        pa.field("scar_id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("owner_id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("confirmed", pa.string(), nullable=False),
        pa.field("confirmed_tick", pa.int64(), nullable=False),
        pa.field("confirmed_at", MOMENT, nullable=False),
        pa.field("outcome_class", pa.string(), nullable=False),
        pa.field("mechanism", pa.string(), nullable=False),
        pa.field("cause_variable", pa.string()),
        pa.field("is_clear", pa.bool_(), nullable=False),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
        pa.field("position_state", pa.string(), nullable=False),
        *(pa.field(n, pa.string(), nullable=False) for n in ("chain", "protocol", "pair", "tool_name", "action_type")),
        pa.field("regime", pa.string(), nullable=False),
        pa.field("market_regime", pa.string(), nullable=False),
        pa.field("anomaly_band", pa.string(), nullable=False),
        pa.field("gas_band", pa.string(), nullable=False),
        pa.field("structure", pa.string(), nullable=False),
        pa.field("pnl_ppm", pa.int64()),
        pa.field("effect_ppm", pa.int64()),
        pa.field("causal_narrative", pa.string(), nullable=False),
        pa.field("causal_context", _CONTEXT, nullable=False),
        pa.field("pleasure", pa.float64(), nullable=False),
        pa.field("arousal", pa.float64(), nullable=False),
        pa.field("dominance", pa.float64(), nullable=False),
        pa.field("emotion", pa.string(), nullable=False),
        pa.field("playbook_version", pa.int64(), nullable=False),
        pa.field("cause_ticks", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""One row per confirmed failure of a golem; key (golem_id, seq). seq numbers them in the order in which they were
confirmed, and scar_id is scar-{golem_id}-{seq}. cause_variable: as the record
names it, else null. cycle: in whose close it was confirmed. Effects in ppm of the position;
the tag's pleasure in [-1, 1], arousal and dominance clamped to [0, 1]. cause_ticks: act and check."""

SCAR_SCHEMA = pa.schema(
    [
        *(field for field in FAILURE_SCHEMA if field.name not in ("is_clear", "seq")),
        pa.field("novelty_ppm", pa.int64(), nullable=False),
        pa.field("seen_count", pa.int64(), nullable=False),
        pa.field("qualified_at_tick", pa.int64(), nullable=False),
        pa.field("published", pa.string(), nullable=False),
        pa.field("is_bloodstain", pa.bool_(), nullable=False),
        pa.field("decay_class", pa.string(), nullable=False),
    ]
)
"""One row per scar that a clade is told; key (owner_id, scar_id). novelty_ppm: one less the share of structure that it
has in common with the likest scar before it. seen_count: how often the clade was hurt so. published: at the close of a
cycle in life, or by death, and then it is a bloodstain."""

RULE_COLUMNS = ("golem_id", "structure", "cycle", "revision", "seq", "sign", "status", "confidence_ppm")
"""What a scar's confidence asks of the curator's decisions."""

_FAILURES = """
    with told as (
        select f.*, r.at_us, r.observation as o, r.regime, r.pad_after as pad, r.playbook_version, r.market_regime,
            r.outcome.cause_variable as cause_variable, r.outcome.effect_variable as effect_variable,
            coalesce(case when outcome_class = 'lasting' and effect_ppm is not null then effect_ppm end, pnl_ppm)
                as worst_ppm
        from failures f join records r using (golem_id, tick)
    )
    select told.* exclude (o, pad), owner_id,
        o.chain as chain, o.protocol as protocol, o.pair as pair, o.anomaly_score as anomaly_score,
        o.gas_hour_ratio as gas_ratio, pad.pleasure as pleasure, pad.arousal as felt, pad.dominance as held,
        case when outcome_class = 'revert' then 'refused' when outcome_class = 'slippage' then 'slipped'
            when cause_variable is not null then 'cause'
            when outcome_class = 'lasting' then if(coalesce(pnl_ppm <= $explained * worst_ppm, false), 'cost', 'return')
            when slippage_ppm >= -$explained * worst_ppm then 'slipped'
            when gas_ppm >= -$explained * worst_ppm then 'gas' else 'unexplained' end as mechanism,
        case when outcome_class = 'drawdown' then 'impaired'
            when action_type = 'remove_liquidity' or confirmed = 'at_death' then 'closed' else 'open' end
            as position_state,
        coalesce(known, 0) + row_number() over (partition by golem_id order by
            confirmed_tick, confirmed = 'at_death', tick) as seq,
        list_sort(list_distinct([tick, confirmed_tick])) as cause_ticks
    from told left join owners using (golem_id) left join before using (golem_id)
    order by golem_id, seq
"""

_SURE = """
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
    """What golems' confirmed failures say (FAILURE_SCHEMA), by golem and seq.

    failures: OUTCOME_SCHEMA with the cycle in which each was confirmed. records: FAILURE_COLUMNS, those of the failed
    ticks among them. rules: RULE_COLUMNS of the curator's decisions about their structures. owners: golem_id, owner_id.
    before: golem_id, known: how many failures of the golem came earlier. DerivationError if an owner is not known.
    """
    if not failures.num_rows:
        return FAILURE_SCHEMA.empty_table()
    plain = records.select(["golem_id", "tick", "outcome", "observation", "regime", "pad_after", "playbook_version"])
    plain = plain.append_column("at_us", pa.array(micros(records, "observed_at")))
    failed = failures.drop_columns(["confirmed_at"]).append_column(
        "confirmed_us", pa.array(micros(failures, "confirmed_at"))
    )
    plain = plain.append_column("market_regime", market_regimes(records, policy))
    numbers = {"explained": policy.katabasis.scar_explained_min}
    told = query_tables(_FAILURES, numbers, failures=failed, records=plain, owners=owners, before=before)
    if told["owner_id"].null_count:
        orphans = told.filter(pc.is_null(told["owner_id"]))["golem_id"].to_pylist()
        raise DerivationError(f"golem {min(orphans)}: no owner on record, so its failures belong to no clade")
    told = _situated(told, policy)
    sure = _sure(told, rules, policy)
    rows = told.to_pylist()  # few, and each is told in its own words
    columns = {name: told[name] for name in FAILURE_SCHEMA.names if name in told.column_names} | {
        "scar_id": pa.array([f"scar-{r['golem_id']}-{r['seq']}" for r in rows], pa.string()),
        "episode_id": pa.array([f"{r['golem_id']}:{r['tick']}" for r in rows], pa.string()),
        "at": told["at_us"].cast(MOMENT),
        "confirmed_at": told["confirmed_us"].cast(MOMENT),
        "is_clear": pc.not_equal(told["mechanism"], UNEXPLAINED),
        "confidence_ppm": sure,
        "causal_narrative": pa.array([narrative(r) for r in rows], pa.string()),
        "causal_context": pa.array([context(r) for r in rows], _CONTEXT),
        "arousal": pc.max_element_wise(told["felt"], 0.0),
        "dominance": pc.max_element_wise(told["held"], 0.0),
        "emotion": _emotions(told),
    }
    return pa.table({name: columns[name] for name in FAILURE_SCHEMA.names}).cast(FAILURE_SCHEMA)


def market_regimes(records: pa.Table, policy: Policy) -> pa.Array:
    """KAT's regime of each record (canon 32). records: observation, regime."""
    regime = one(records["regime"])
    sigma = pc.struct_field(one(records["observation"]), "sigma_ratio")
    quiet = pc.fill_null(pc.less(sigma, policy.katabasis.low_vol_ratio), False)
    cases = pc.make_struct(
        pc.equal(regime, "volatile"),
        pc.starts_with(regime, "trending"),
        pc.and_(pc.equal(regime, "range_bound"), quiet),
        pc.equal(regime, "range_bound"),
    )
    return pc.case_when(cases, *SCAR_REGIMES)


def _situated(told: pa.Table, policy: Policy) -> pa.Table:
    """The same with the bands of its situation and the key of its structure, which is a rule's."""
    edges = (
        (policy.curator.anomaly_edges, "anomaly_score", ANOMALY_BANDS),
        (policy.curator.gas_edges, "gas_ratio", GAS_BANDS),
    )
    for (limits, column, names), band in zip(edges, ("anomaly_band", "gas_band"), strict=True):
        place = np.searchsorted(limits, told[column].to_numpy(), side="right")
        told = told.append_column(band, pa.array(names).take(pa.array(place)))
    parts = told.select(_STRUCTURE).to_pylist()
    keys = [Structure("pattern", *part.values()).key for part in parts]
    return told.append_column("structure", pa.array(keys, pa.string()))


_STRUCTURE = ["chain", "protocol", "pair", "tool_name", "action_type", "regime", "anomaly_band", "gas_band"]
"""The parts of a rule's structure, in its order."""


def _sure(told: pa.Table, rules: pa.Table, policy: Policy) -> pa.Array:
    """How sure the causal link is: as the curator was at that close where a rule says the same, less where it says the
    opposite, and the confidence of one's own knowledge where no rule says anything or the chain itself refused."""
    wanted = told.select(["golem_id", "seq", "cycle", "structure", "outcome_class"])
    known = rules.select(list(RULE_COLUMNS))
    found = query_tables(_SURE, {"own": ppm(policy.katabasis.scar_confidence)}, failures=wanted, rules=known)
    return contiguous(found["confidence_ppm"])


def _emotions(told: pa.Table) -> pa.Array:
    aroused, commands = (np.asarray(told[name].to_numpy() >= 0.0) for name in ("felt", "held"))
    code = np.where(aroused, np.where(commands, 2, 0), np.where(commands, 1, 3))
    return pa.array(EMOTIONS).take(pa.array(code))


_SCARS = """
    with able as (
        select f.*, row_number() over sight = 1 as is_first,
            count(*) over (partition by owner_id, structure, mechanism) as seen_count
        from failures f where is_clear and confidence_ppm >= $sure
        window sight as (partition by owner_id, structure, mechanism order by confirmed_us, golem_id, seq)
    ),
    scars as (select * from able where is_first),
    alike as (
        select s.scar_id, s.owner_id, max(
            (s.chain = e.chain and s.protocol = e.protocol and s.pair = e.pair)::int
            + (s.tool_name = e.tool_name and s.action_type = e.action_type)::int + (s.mechanism = e.mechanism)::int
            + (s.regime = e.regime)::int + (s.anomaly_band = e.anomaly_band)::int + (s.gas_band = e.gas_band)::int
        ) as shared
        from scars s join scars e on s.owner_id = e.owner_id
            and (e.confirmed_us, e.golem_id, e.seq) < (s.confirmed_us, s.golem_id, s.seq)
        group by all
    )
    select s.*, 1000000 - coalesce(shared, 0) * 1000000 // 6 as novelty_ppm,
        least(s.cycle * $span, coalesce(d.tick, s.cycle * $span)) as qualified_at_tick,
        coalesce(d.cycle = s.cycle, false) as is_bloodstain, if(is_bloodstain, 'death', 'life') as published,
        'tactical' as decay_class
    from scars s left join alike using (scar_id, owner_id) left join deaths d using (golem_id)
    order by owner_id, scar_id
"""


def scars_of(failures: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Which failures their clades are told (SCAR_SCHEMA), by owner and id: those that meet all five criteria.

    failures: FAILURE_SCHEMA, all of an owner's: confirmed, and so resolved. deaths: golem_id, cycle and tick of those
    on record. A scar's cause is sure enough and can be told; and no failure of its structure and mechanism was told
    before it, by the moment of its confirmation, then golem and number.
    """
    if not failures.num_rows:
        return SCAR_SCHEMA.empty_table()
    plain = failures.drop_columns(["at", "confirmed_at"])
    for name, column in (("at_us", "at"), ("confirmed_us", "confirmed_at")):
        plain = plain.append_column(name, pa.array(micros(failures, column)))
    numbers = {"sure": ppm(policy.katabasis.scar_confidence_min), "span": policy.curator.cycle_ticks}
    ended = deaths.select(["golem_id", "cycle", "tick"])
    found = query_tables(_SCARS, numbers, failures=plain, deaths=ended)
    columns = {"at": found["at_us"].cast(MOMENT), "confirmed_at": found["confirmed_us"].cast(MOMENT)}
    return pa.table({n: columns[n] if n in columns else found[n] for n in SCAR_SCHEMA.names}).cast(SCAR_SCHEMA)


def scar_confidence(scars: pa.Table, at_us: Int64Array | int, policy: Policy) -> Int64Array:
    """Confidence of each scar in ppm at a moment: halved in 30 days, a bloodstain in three times that (canon 4, 7)."""
    stained = to_bools(contiguous(scars["is_bloodstain"]))
    days = policy.katabasis.scar_half_life_days * np.where(stained, policy.decay.bloodstain_multiplier, 1.0)
    half = np.rint(np.minimum(days * DAY_US, float(FOREVER_US >> 3))).astype(np.int64)
    floor = np.where(stained, ppm(policy.decay.bloodstain_floor), 0)
    return confidence_at(int_column(scars, "confidence_ppm"), micros(scars, "confirmed_at"), at_us, half, floor)
