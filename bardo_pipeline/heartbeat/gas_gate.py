"""Gas gate over a golem's gas partition; no rule, warning or model overrides it. Pure, over columns. Source: HB S10."""

from __future__ import annotations

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.heartbeat.fleet import Fleet
from bardo_pipeline.heartbeat.refusals import GAS_AVAILABLE, GAS_HOURLY
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality import credit_partitions as partitions
from bardo_pipeline.policy import Policy


def age_payments(fleet: Fleet, tape: Tape, t: int, policy: Policy) -> None:
    """Discount earlier payments up to this tick, and average each partition's hourly cost."""
    if t > 0:
        kept = partitions.kept_share(int(tape.at_us[t] - tape.at_us[t - 1]), policy)
        fleet.paid, fleet.paid_hours = fleet.paid * kept, fleet.paid_hours * kept
    cost = policy.cost
    thought = cost.t1_context_tokens * cost.t1_input_micros_per_token
    thought += cost.t1_output_tokens * cost.t1_output_micros_per_token
    usual = np.array([[thought], [_usual_gas(tape, t, policy)]])
    fleet.hourly = partitions.hourly_cost(fleet.paid, fleet.paid_hours, usual, policy)


def _usual_gas(tape: Tape, t: int, policy: Policy) -> float:
    """Return what re-centring costs at the mean gas price of the last hour, in micro-dollars."""
    ratio = tape.gas_hour_ratio[t]
    gwei = tape.gas_gwei[t] / ratio if ratio > 0.0 else tape.gas_gwei[t]
    return float(policy.cost.rebalance_gas_units * gwei * 1e-9 * tape.market.native_usd_micros)


def gas_stops(
    fleet: Fleet, golem: Int64Array, gas: Int64Array, policy: Policy
) -> tuple[tuple[BoolArray, int, Int64Array], ...]:
    """Return what the gas gate stops: (golems, reason, limit), by balance and by average hourly cost (HB S10)."""
    available = fleet.partitions[partitions.GAS, golem]
    dear = np.rint(policy.credit.hourly_multiple * fleet.hourly[partitions.GAS, golem]).astype(np.int64)
    return (gas > available, GAS_AVAILABLE, available), (gas > dear, GAS_HOURLY, dear)


def pay_gas(fleet: Fleet, golem: Int64Array, gas: Int64Array, at_us: int) -> None:
    """Pay the gas of sent transactions from the gas partition, at once, so the tick's next action sees what remains."""
    fleet.partitions[partitions.GAS, golem] -= gas
    note_payment(fleet, partitions.GAS, golem, gas, at_us)


def note_payment(fleet: Fleet, partition: int, golem: Int64Array, paid: Int64Array | Float64Array, at_us: int) -> None:
    """Count payments, and the hour in which a partition pays for the first time, into its average hourly cost."""
    hour, golem, paid = partitions.hour_of(at_us), golem[paid > 0], paid[paid > 0]
    fleet.paid[partition, golem] += paid
    fleet.paid_hours[partition, golem] += fleet.paid_hour[partition, golem] != hour
    fleet.paid_hour[partition, golem] = hour
