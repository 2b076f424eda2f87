"""One-line faults in the step, the choice, the gate, the recall, the probes and the records, each with its tests.

A fault is an exact old text, which occurs once in its file, and a new text. `make faults` plants them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

WIRING = "tests/unit/heartbeat/test_step_wiring.py"
GATE = "tests/unit/heartbeat/test_gate.py"
ATTENTION = "tests/unit/heartbeat/test_attention.py"
GAS = "tests/unit/heartbeat/test_gas_gate.py"
REASONS = "tests/property/heartbeat/test_reasons.py"
PROBES = "tests/unit/heartbeat/test_probes.py"
RECALL = "tests/unit/heartbeat/test_recall.py"
RECOLLECTION = "tests/unit/heartbeat/test_recollection.py"
PRIORS = "tests/unit/heartbeat/test_priors.py"
LIVED_LESSONS = "tests/property/dreams/test_lived_lessons.py"
REPORTED = "tests/unit/curator/test_reported_causes.py"
CREDITED = "tests/property/heartbeat/test_credited_fleet.py"
FIGURES = "tests/property/heartbeat/test_record_figures.py"
CHOOSE = "tests/unit/heartbeat/test_choose.py"
FLEET = "tests/property/heartbeat/test_fleet.py"
FORESIGHT = "tests/unit/heartbeat/test_foresight.py"
LENDING = "tests/unit/heartbeat/test_lending.py"
CHOICES = "tests/unit/curator/test_choice_rules.py"
LEAVING = "test_golems_leave_stay_out_and_enter_as_their_rules_say"
SETTLED = "test_a_golem_whose_playbook_stays_out_passes_over_what_the_rule_settles_but_no_forced_tick"
TRIED = "tests/property/heartbeat/test_choice_trials.py"
MOVED = f"{TRIED}::test_re_centring_is_tried_over_hours_from_the_score_at_which_a_golem_would_act"
LOANED = (
    "tests/property/heartbeat/test_loan_trials.py::test_each_trial_of_a_loan_states_interest_liquidations_and_costs"
)
LEARNED = "tests/unit/heartbeat/test_learned_loans.py"
CLOSING = "test_a_golem_with_a_rule_for_repaying_closes_its_loan_with_the_collateral"
VERDICTS = "tests/property/heartbeat/test_tier_verdicts.py"
LEARNING = (f"{VERDICTS}::test_weights_and_boundaries_follow_from_the_verdicts_on_the_records",)
ROUTING = "tests/property/heartbeat/test_event_router.py"
ROUTER = f"{ROUTING}::test_the_state_of_every_delta_follows_from_the_verdicts_on_the_events_before"
ROUTES = f"{ROUTING}::test_every_route_and_every_shadow_follows_from_the_scores_the_arm_the_context_and_the_state"
EXPLORING = f"{VERDICTS}::test_the_golems_of_a_market_explore_the_discarded_ticks_that_its_luck_names"
DRAWING = f"{VERDICTS}::test_the_thresholds_of_a_record_follow_from_its_boundaries_the_golems_seed_and_its_mood"
SHADOWS = f"{TRIED}::test_each_trial_states_what_its_alternative_would_have_earned"

SPENT = "tests/unit/heartbeat/test_spending.py"
KEPT = (f"{SPENT}::test_every_tick_keeps_to_the_band_of_the_recorded_costs_of_its_day",)
PERMITTED = "tests/unit/heartbeat/test_permits.py"
ONCE = (f"{PERMITTED}::test_a_permit_counts_once_for_its_action_tick_market_and_time",)
INTERLEAVED = (f"{PERMITTED}::test_no_interleaving_of_the_clocks_executes_without_a_permit",)
LAYERS = (f"{PERMITTED}::test_each_layer_stops_an_act_that_takes_a_risk_and_none_stops_leaving",)
CACHED = "tests/unit/heartbeat/test_decision_cache.py"
ITEMISED = (
    "tests/property/heartbeat/test_attention_items.py"
    "::test_items_are_discovered_promoted_demoted_and_digested_as_a_fold_of_the_market_says",
)
TURNED = "tests/unit/heartbeat/test_after_turn.py"


LIVE = "tests/scenario/runtime/test_live_run.py"
STATES = "tests/property/heartbeat/test_heartbeat_states.py"
STEERED = (f"{LIVE}::test_a_steer_takes_effect_by_the_state_in_which_it_arrives",)
CUT = (f"{LIVE}::test_a_high_steer_cancels_the_calls_behind_the_one_in_flight",)
RESUMED = (f"{LIVE}::test_a_killed_run_lives_its_recorded_ticks_again_and_goes_on",)
DROPPED = (f"{LIVE}::test_a_slow_tick_drops_the_oldest_due_ticks_and_merges_their_probes",)
THROTTLED = (f"{LIVE}::test_clocks_slow_down_near_the_budget_and_reads_have_a_limit",)
GUESSED = (f"{STATES}::test_a_golem_learns_which_read_follows_and_prefetches_no_write",)
PREFETCHED = (f"{LIVE}::test_prefetched_reads_are_asked_for_and_save_time",)
_GUESSES = "heartbeat/rhythm/speculation.py"
_LIVE, _HEART, _RATES = "runtime/live/live_run.py", "runtime/live/heart.py", "heartbeat/rhythm/pulse_rates.py"

LETHE = "tests/scenario/clade/test_lethe.py"
HEARD = (f"{LETHE}::test_votes_and_threats_of_strangers_reach_the_ticks_of_a_run",)
BOUNDED = (f"{LETHE}::test_authors_without_a_score_and_beyond_the_quota_are_refused",)
DOORS = "tests/scenario/clade/test_styx_doors.py"
TIMED = (f"{DOORS}::test_payment_sets_the_time_of_an_entry_and_never_its_decay",)
_DOORS, _LAYERS = "derivation/clade/styx_doors.py", "derivation/clade/styx_layers.py"
_OFFICE, _EXCHANGE = "relay/ticket_office.py", "derivation/clade/lethe_exchange.py"


@dataclass(frozen=True)
class Fault:
    """A fault: ledger row, file below bardo_pipeline, old and new text, and tests (files or ids) that kill it."""

    name: str
    row: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def wiring(*names: str) -> tuple[str, ...]:
    """Return ids of tests of a step's wiring."""
    return tuple(f"{WIRING}::test_{name}" for name in names)


_GATING = "heartbeat/gating"
_CHOICES, _LOANS = "heartbeat/choice_trials.py", "heartbeat/defi/loan_trials.py"
_BORROWING = "heartbeat/defi/borrowing_rules.py"
_STEP, _GATE, _DECIDE = "heartbeat/step.py", "heartbeat/gate.py", "heartbeat/decide.py"
_TURN, _ITEMS = "heartbeat/after_turn.py", "heartbeat/attention_items.py"
_PERMITS, _CACHE = (f"heartbeat/safety/{name}.py" for name in ("permits", "decision_cache"))
_RISK = "heartbeat/defi/risk_engine.py"
_PROBES, _OBSERVE, _RECALL = "heartbeat/probes.py", "heartbeat/observe.py", "heartbeat/recall_table.py"
_GAS_GATE, _PARTITIONS, _TRIALS = (
    "heartbeat/gas_gate.py", "mortality/credit_partitions.py", "heartbeat/defi/rebalance.py",
)  # fmt: skip
_RECOLLECTION = "heartbeat/recollection.py"
_RECORDS, _THOUGHTS = "heartbeat/records/build_records.py", "heartbeat/records/thought_fields.py"
_FORESIGHT = "heartbeat/causal_forecast.py"

MARKET_PROBES = wiring("probes_of_the_market_are_its_changes_since_the_last_tick")
THREATS = wiring("a_threat_reaches_the_probe_and_the_surprise_of_the_golem_that_heard_it")
SOURCES = wiring("each_source_of_surprise_is_fed_by_its_own_observation")
THRESHOLD = wiring("the_threshold_follows_vitality_arousal_and_confidence_before_the_tick")
TIER = wiring("the_tier_follows_surprise_unless_a_force_demands_t2")
SILENCED = wiring("attention_silences_t1_alone_and_only_after_a_hundred_ticks")
PREDICTED = wiring("predictions_are_made_from_this_tick_alone_and_judged_at_the_next")
BILLS = wiring("bills_are_paid_by_their_partitions_and_collected_fees_are_split")
HOURLY = wiring("payments_count_into_the_average_hourly_cost_of_their_partition")
MOOD = wiring("mood_follows_value_surprise_and_the_share_of_predictions_that_held")
RANKED = wiring("recalled_entries_are_ranked_by_four_factors_mood_included")
PRICED = wiring("a_deliberation_costs_its_tokens_at_the_prices_of_its_tier")
LEFT = wiring("leaving_needs_a_deep_drawdown_and_begins_a_cool_down_without_a_position")
ENTERED = wiring("a_golem_enters_at_birth_and_later_after_its_cool_down_outside_of_turmoil")
DEVIATION = wiring("the_deviation_probe_is_the_largest_z_of_the_homeostatic_variables_after_thirty_ticks")
CALLING = wiring("a_rule_to_enter_calls_into_turmoil_but_not_before_the_end_of_the_cool_down")
SLIPS = wiring("a_swap_reverts_and_is_tried_by_its_own_slippage_and_not_by_the_expected_one")
OUTCOMES = (f"{FIGURES}::test_an_outcome_is_gas_and_slippage_and_only_an_executed_act_slips",)
SITUATED = (f"{TRIED}::test_a_golem_is_judged_whether_it_deliberated_or_not_and_states_what_it_chose",)
RATE = (f"{ATTENTION}::test_surprises_are_ignored_at_the_rate_of_fruitless_deliberations",)
SIMULATES = (f"{FLEET}::test_only_t2_simulates_and_both_t1_and_t2_defer_dear_gas",)
FORCED = (f"{GATE}::test_a_forced_tick_is_deliberated_at_t2_for_any_surprise",)
TIERS = (f"{GATE}::test_tiers_begin_at_theta_and_at_twice_theta",)
WEIGHTS = (f"{GATE}::test_each_source_contributes_its_weight",)
DEFERS = (f"{GAS}::test_gas_is_deferred_above_the_available_balance_and_above_twice_the_hourly_cost",)
CAGED = (f"{GAS}::test_no_action_passes_the_gas_limit_of_the_cage",)
BLOCKS = (f"{RECALL}::test_a_believed_warning_blocks_only_recentring_in_its_situation",)
BROKEN = (f"{FORESIGHT}::test_a_large_opposite_move_invalidates_the_link_and_raises_the_probe",)

FAULTS = (
    # the step: probes
    Fault("drift probe fed zero", "HB-13", _STEP, "drift=seen.drift,", "drift=seen.drift * 0.0,",
          wiring("the_drift_probe_is_the_mean_relative_error_of_the_predictions_due_now")),
    Fault("a threat is not probed", "KAT-9", _STEP, "        threat=threat,\n", "        threat=threat * np.nan,\n",
          THREATS),
    Fault("a threat never surprises", "KAT-9", _GATE, "np.multiply(threat, rules.threat_weight, out=sources[3])",
          "np.multiply(threat, 0.0, out=sources[3])", THREATS),
    Fault("a threat never fades", "KAT-9", "heartbeat/threats.py", "fleet.threat * 2.0**-age", "fleet.threat", THREATS),
    Fault("constant gas probe", "HB-13", _STEP, "gas_hour_ratio=tape.gas_hour_ratio[t],", "gas_hour_ratio=1.0,",
          MARKET_PROBES),
    Fault("kill switch unwired", "HB-13", _STEP, "kill_switch=killed,", "kill_switch=False,",
          wiring("the_kill_switch_raises_its_probe_in_exactly_its_ticks")),
    Fault("causal probe never raised", "MEM-22", _STEP,
          "causal=recall.foresight.look(tape, t, fleet.foreseen, policy),",
          "causal=recall.foresight.look(tape, t, fleet.foreseen, policy) * 0.0,",
          wiring("the_causal_probe_is_raised_for_a_candidate_and_for_a_broken_link_only")),
    Fault("price probe of the tick before", "HB-13", _STEP, "np.expm1(tape.price_return[t])",
          "np.expm1(tape.price_return[t - 1])", MARKET_PROBES),
    Fault("liquidity never changes", "HB-13", _STEP, "liquidity_change=tape.liquidity_change[t],",
          "liquidity_change=0.0,", MARKET_PROBES),
    Fault("momentum at rest", "HB-13", _STEP, "rsi=tape.rsi[t],", "rsi=50.0,", MARKET_PROBES),
    Fault("momentum without MACD", "HB-13", _STEP, "macd=tape.macd[t],", "macd=1.0,", MARKET_PROBES),
    Fault("health probe of the last tick", "HB-13", _STEP, "health_factor=sight.health,",
          "health_factor=fleet.health,", wiring("the_health_probe_is_that_of_the_range_at_this_price")),
    Fault("credit probe of the higher share", "HB-30", _STEP, "credit_share=np.minimum(*(fleet.partitions",
          "credit_share=np.maximum(*(fleet.partitions",
          wiring("the_credit_probe_is_the_lower_share_of_both_partitions")),
    Fault("no circuit breaker", "HB-13", _STEP, "nav_drawdown=np.maximum(sight.drawdown, 0.0),",
          "nav_drawdown=np.minimum(sight.drawdown, 0.0),",
          wiring("the_circuit_breaker_is_the_drawdown_from_the_high_water_mark")),
    Fault("homeostatic deviation at zero", "HB-13", _STEP, "deviation_sigma=observe.deviation(fleet, policy),",
          "deviation_sigma=observe.deviation(fleet, policy) * 0.0,", DEVIATION),
    Fault("homeostatic means begin at zero", "HB-13", _OBSERVE, "first = fleet.home_seen == 0",
          "first = fleet.home_seen < 0", DEVIATION),
    Fault("homeostatic means unwired", "HB-13", _TURN, "(inference + gas, inference, gas, acted, turn.error)",
          "(inference + gas, gas, inference, acted, turn.error)", DEVIATION),
    # the step: surprise and tiers
    Fault("attention silences T2", "HB-4", _STEP, "fleet.alive & (tier == T1) & unforced",
          "fleet.alive & (tier >= T1) & unforced", SILENCED),
    Fault("attention passes over follow-ups", "HB-4", _STEP,
          "(tier == T1) & unforced & (fleet.follow_ups == 0)", "(tier == T1) & unforced", SILENCED),
    Fault("a suppressed tick is written as T0", "HB-4", _STEP,
          "tier[judgement.suppressed] = SUPPRESS", "tier[judgement.suppressed] = 0",
          (*SILENCED, f"{REASONS}::test_no_record_contradicts_its_reasons")),
    Fault("an imminent transition forces nothing", "HB-4", _STEP,
          "imminent = gate.transition_imminent(fleet.composite, policy)",
          "imminent = gate.transition_imminent(fleet.composite + 9.0, policy)",
          wiring("an_imminent_terminal_phase_forces_t2")),
    Fault("a steer forces nothing", "HB-4", _STEP, "threshold, steer, imminent, fleet.tick == 1,",
          "threshold, steer & False, imminent, fleet.tick == 1,", TIER),
    Fault("a birth forces nothing", "HB-4", _STEP, "imminent, fleet.tick == 1, policy",
          "imminent, fleet.tick == 0, policy", TIER),
    Fault("a reorg forces nothing", "HB-4", _STEP, "policy, interventions.reorg)", "policy, None)", TIER),
    Fault("confidence not wired into the threshold", "HB-3", _STEP, "fleet.pad[1], fleet.confidence, policy",
          "fleet.pad[1], fleet.confidence * 0.0, policy", THRESHOLD),
    Fault("pleasure in place of arousal", "HB-3", _STEP, "fleet.composite, fleet.pad[1],",
          "fleet.composite, fleet.pad[0],", THRESHOLD),
    Fault("vitality not wired into the threshold", "HB-3", _STEP, "gate.adaptive_threshold(fleet.composite,",
          "gate.adaptive_threshold(fleet.composite * 0.0 + 1.0,", THRESHOLD),
    Fault("health never surprises", "HB-2", _STEP, "health_change = sight.health - fleet.health",
          "health_change = sight.health - sight.health", SOURCES),
    Fault("regimes never surprise", "HB-2", _STEP, "regime_changed = (fleet.tick > 1) & bool(",
          "regime_changed = (fleet.tick < 1) & bool(", SOURCES),
    Fault("steers do not surprise", "HB-2", _STEP, "pending = fleet.follow_ups + steer", "pending = fleet.follow_ups",
          SOURCES),
    Fault("follow-ups are never received", "HB-2", _STEP, "fleet.follow_ups += interventions.follow_up",
          "fleet.follow_ups += interventions.follow_up * 0", SOURCES),
    Fault("follow-ups are forgotten", "HB-4", _STEP, "np.where(_thinks(tier), 0, follow_ups",
          "np.where(tier >= 0, 0, follow_ups", wiring("a_follow_up_stays_pending_up_to_the_next_deliberation")),
    Fault("the dead are woken", "INH-1", _STEP, "    tier[~fleet.alive] = 0\n", "",
          wiring("the_dead_keep_their_state_and_are_not_woken")),
    Fault("thoughts are not counted", "HB-9", _STEP,
          "gate.count_thoughts(fleet, int(tape.regime[t]), sight, choice.golem, acted, policy)", "pass",
          wiring("thoughts_are_counted_by_situation_and_vain_ones_without_an_executed_action")),
    # the step: predictions, mood, credits
    Fault("a prediction peeks at the next bar", "HB-24", _STEP, "observe.forecast(fleet, tape, t, fleet.health",
          "observe.forecast(fleet, tape, min(t + 1, tape.ticks - 1), fleet.health", PREDICTED),
    Fault("predictions without an oracle", "HB-2", _STEP, "    if oracle:\n        observe.forecast",
          "    if True:\n        observe.forecast", wiring("a_golem_without_an_oracle_makes_no_prediction")),
    Fault("inaction is never on trial", "HB-24", _TURN,
          "    try_inaction(turn.fleet, turn.tape, turn.t, turn.sight, turn.tier, turn.policy)\n", "    pass\n",
          wiring("inaction_of_quiet_golems_is_tried")),
    Fault("hits do not move the mood", "HB-28", _TURN, "turn.seen.held_share, turn.policy)",
          "turn.seen.held_share * 0.0, turn.policy)", MOOD),
    Fault("surprise does not move the mood", "HB-28", _TURN, "turn.sight.change, turn.error,",
          "turn.sight.change, turn.threshold,", MOOD),
    Fault("gains do not move the mood", "HB-28", _TURN, "appraise(fleet.pad, turn.sight.change,",
          "appraise(fleet.pad, turn.sight.change * 0.0,", MOOD),
    Fault("deliberations are free", "INH-1", _STEP,
          "inference[choice.golem], gas[choice.golem] = choice.cost_micros, choice.gas_micros",
          "gas[choice.golem] = choice.gas_micros", BILLS),
    Fault("gas is left out of the bill", "INH-1", _STEP, "consumed[:] = paid + gas", "consumed[:] = paid", BILLS),
    Fault("inference has no hourly cost", "HB-30", _STEP,
          "        note_payment(fleet, INFERENCE, np.arange(fleet.size), paid, at_us)\n", "", HOURLY),
    Fault("payments never age", "HB-30", _STEP, "    age_payments(fleet, tape, t, policy)\n", "", HOURLY),
    # the gate
    Fault("T1 begins above the threshold", "HB-4", _GATE, "tier = (error >= threshold).astype(np.int8)",
          "tier = (error > threshold).astype(np.int8)", TIERS),
    Fault("T2 begins at the threshold", "HB-4", _GATE, "tier += error >= threshold * policy.gate.deliberate_ratio",
          "tier += error >= threshold", TIERS),
    Fault("a force demands T1 only", "HB-4", _GATE, 'tier[forced != UNFORCED] = TIERS.index("T2")',
          'tier[forced != UNFORCED] = TIERS.index("T1")',
          FORCED),
    Fault("a transition hides a steer", "HB-4", _GATE, "forced = np.where(steer, STEER, forced)",
          "forced = np.where(steer & ~transition, STEER, forced)",
          FORCED),
    Fault("a phase is imminent far above its bound", "HB-4", _GATE,
          "(composite <= bound + policy.gate.transition_margin)", "(composite <= 2.0 * bound)",
          (f"{GATE}::test_the_terminal_phase_is_imminent_within_a_margin_above_its_bound_only",)),
    Fault("small changes of health surprise", "HB-2", _GATE, "change > rules.health_delta_min,", "change > 0.0,",
          WEIGHTS),
    Fault("interventions without a limit", "HB-2", _GATE, "np.minimum(intervention_count, rules.intervention_max)",
          "np.minimum(intervention_count, 99)", WEIGHTS),
    Fault("calm lowers the threshold", "HB-3", _GATE, "arousal.clip(0.0, 1.0)", "np.abs(arousal)",
          (f"{GATE}::test_calm_never_lowers_the_threshold",)),
    Fault("the threshold has no bounds", "HB-3", _GATE,
          "threshold.clip(rules.threshold_min, rules.threshold_max, out=threshold)", "threshold",
          (f"{GATE}::test_the_threshold_stays_between_its_bounds",)),
    Fault("attention from the first tick", "HB-4", _GATE, "fleet.tick > policy.gate.attention_after_ticks",
          "fleet.tick > 0", (*SILENCED, f"{REASONS}::test_attention_acts_after_a_hundred_ticks_of_the_fixed_gate")),
    Fault("attention without a position", "HB-9", _GATE, "calm = sight.open & (sight.drawdown",
          "calm = (sight.drawdown", RATE),
    Fault("attention in a drawdown", "HB-9", _GATE, "calm = sight.open & (sight.drawdown < policy.probes.nav_high)",
          "calm = sight.open", RATE),
    Fault("attention without its prior", "HB-9", _GATE,
          "chance=vain / (thoughts + policy.gate.attention_prior_weight),", "chance=vain / np.maximum(thoughts, 1.0),",
          RATE),
    Fault("fruitful thoughts count as vain", "HB-9", _GATE, "fleet.vain[situation, golem] + ~acted",
          "fleet.vain[situation, golem] + acted",
          wiring("thoughts_are_counted_by_situation_and_vain_ones_without_an_executed_action")),
    Fault("a reason states the other relation", "HB-4", _GATE, "word_codes = (error >= threshold).astype(np.int64)",
          "word_codes = (error < threshold).astype(np.int64)",
          (f"{GATE}::test_a_gating_reason_contains_tier_force_and_surprise",)),
    # the learned gate
    Fault("the learned gate acts from birth", "HB-7", f"{_GATING}/learned_gate.py",
          "grown = fleet.is_taught | (fleet.tick > policy.gate.attention_after_ticks)", "grown = fleet.tick > 0",
          (f"{VERDICTS}::test_an_heir_starts_with_the_gate_of_its_predecessors_last_record_and_uses_it_at_once",)),
    Fault("the learned gate acts from tick 201", "HB-7", f"{_GATING}/learned_gate.py",
          "(fleet.tick > policy.gate.attention_after_ticks)", "(fleet.tick > 2 * policy.gate.attention_after_ticks)",
          (f"{VERDICTS}::test_the_learned_gate_decides_every_unforced_tick_after_a_hundred_of_the_fixed_one",)),
    Fault("forced ticks are gated", "HB-7", f"{_GATING}/learned_gate.py", "decided = fleet.alive & unforced & grown",
          "decided = fleet.alive & grown",
          (f"{VERDICTS}::test_an_heir_starts_with_the_gate_of_its_predecessors_last_record_and_uses_it_at_once",)),
    Fault("follow-ups are gated", "HB-7", f"{_GATING}/learned_gate.py", "grown & (fleet.follow_ups == 0)", "grown",
          (f"{VERDICTS}::test_the_fixed_gate_decides_up_to_the_deliberation_that_answers_a_follow_up",)),
    Fault("contradictions are not noted", "HB-5", _TURN,
          "        note_contradictions(turn.fleet, turn.memory, turn.recall)\n", "        pass\n",
          (f"{VERDICTS}::test_the_contradiction_of_a_record_is_that_of_the_entries_its_golem_last_retrieved",)),
    Fault("woken and settled ticks teach boundaries", "HB-9", _STEP,
          "weighing.decided & (weighing.explored | (waking.tier == weighing.discarded))", "weighing.decided", LEARNING),
    Fault("discards are never explored", "HB-9", f"{_GATING}/learned_gate.py",
          "tape.exploration_luck[t] < rules.explore_share", "tape.exploration_luck[t] < 0.0 * rules.explore_share",
          (EXPLORING,)),
    Fault("weights are those of the delta before", "HB-9", f"{_GATING}/tier_verdicts.py",
          "    fleet.expert_weights[:, golem] = expert_weights", "    _ = expert_weights", LEARNING),
    Fault("a tick has the boundaries of the next one", "HB-6", f"{_GATING}/learned_gate.py",
          "((t + later) % span)", "((t + later + 1) % span)", (DRAWING,)),
    Fault("a later verdict scores no tick again", "HB-9", f"{_GATING}/tier_verdicts.py",
          'missed[:span] &= (is_late & ~past["missed"])[:span]', "missed[:span] = False", LEARNING),
    Fault("tiers are never judged", "HB-7", _TURN, "        judge_tiers(fleet, turn.t, turn.policy)\n",
          "        pass\n",
          LEARNING),
    Fault("trials do not reach the judgement", "HB-7", _TURN, "        note_effects(fleet, turn.t, turn.effects)\n", "",
          LEARNING),
    Fault("a needless escalation lowers a boundary", "HB-7", f"{_GATING}/boundaries.py",
          "np.stack([needless, missed])", "np.stack([missed, needless])", LEARNING),
    Fault("a sleeping expert loses weight", "HB-7", f"{_GATING}/expert_weights.py",
          "present = counts[:, None] & ~np.isnan(new)", "present = counts[:, None] & (new == new) | True", LEARNING),
    # the router of chain events
    Fault("an escalated event wakes nothing", "HB-8", _STEP, "            tier[routing.woke] = T1\n", "",
          (f"{ROUTING}::test_an_escalated_event_wakes_a_discarded_tick_and_its_reason_says_so",)),
    Fault("LinUCB never decides", "HB-8", f"{_GATING}/event_router.py",
          "np.nonzero(np.abs(score - limits[0]) < rules.borderline)", "np.nonzero(np.abs(score - limits[0]) < 0.0)",
          (ROUTES,)),
    Fault("the baseline does not replace a degenerate matrix", "HB-8", f"{_GATING}/event_router.py",
          "np.where(usable, BY_CONTEXT, BY_BASELINE)", "np.where(usable, BY_CONTEXT, BY_CONTEXT)",
          (f"{ROUTING}::test_a_degenerate_matrix_and_an_absent_score_leave_the_route_to_the_baseline",)),
    Fault("the router is never told of a verdict", "HB-8", f"{_GATING}/tier_verdicts.py",
          "        learn_routes(fleet, golem, at[: 2 * span], judged, important, policy)\n", "        pass\n",
          (ROUTER,)),
    Fault("LinUCB learns from no reward", "HB-8", f"{_GATING}/event_router.py", "reward[row, place],",
          "0.0 * reward[row, place],", (ROUTER,)),
    Fault("arms are drawn for another arousal", "HB-6", f"{_GATING}/event_router.py",
          "fleet.past_arm[at_past] = regime * len(rules.arms) + arm", "fleet.past_arm[at_past] = arm", (ROUTER,)),
    Fault("useless escalations count for an arm", "HB-6", f"{_GATING}/event_router.py",
          "for seen in (useful, useless))", "for seen in (useless, useful))", (ROUTER,)),
    Fault("rules keep their weights", "HB-5", f"{_GATING}/event_router.py",
          'for name, part in (("score", "scores"), ("rule", "rules")):\n        signals',
          'for name, part in (("score", "scores"), ("score", "scores")):\n        signals', (ROUTER,)),
    Fault("the shadow is the route", "HB-31", "heartbeat/records/triage_fields.py",
          'arrow.text_of(ROUTES, rows["triage_shadow"][row, kind])', 'arrow.text_of(ROUTES, route[row, kind])',
          (ROUTES,)),
    Fault("every swap is large", "HB-31", f"{_GATING}/event_scores.py", "> rules.large_value_micros)", "> 0)",
          (ROUTES, ROUTER)),
    Fault("a loan is as novel as a swap", "HB-31", f"{_GATING}/event_scores.py", "(1.0 - events.share[:, t])[:, None]",
          "(1.0 - events.share[0, t])",
          (f"{ROUTING}::test_the_five_scores_of_an_event_follow_from_the_record_and_the_market",)),
    Fault("an heir gets no gate", "HB-10", "runtime/fleet_run.py",
          "                inherit_gate(newborn, i, gate_of(learning), self.context.policy)\n", "",
          (f"{ROUTING}::test_a_run_gives_the_state_of_a_bundle_to_the_heir",)),
    Fault("an heir gets no router", "HB-10", "runtime/fleet_run.py",
          "                inherit_router(newborn, i, router_of(learning), self.context.policy)\n", "",
          (f"{ROUTING}::test_a_run_gives_the_state_of_a_bundle_to_the_heir",)),
    Fault("a router out of its ranges is inherited", "HB-10", "inheritance/router_learning.py",
          'if not isinstance(learning, dict) or learning.get("router") is None or router_faults(learning):',
          'if not isinstance(learning, dict) or learning.get("router") is None:',
          (f"{ROUTING}::test_a_router_outside_its_ranges_is_a_fault_of_its_bundle_and_is_not_used",)),
    # the choice
    Fault("pool-share cage off", "HB-1", _DECIDE, "(mints & (pool_share > cage.pool_share_max), BLOCKED",
          "(mints & (pool_share > 2.0), BLOCKED", wiring("the_cage_bounds_the_share_of_a_pool")),
    Fault("gas above its share never deferred", "HB-15", _DECIDE, "(plan.gas > value_limit, DEFERRED",
          "(plan.gas < 0, DEFERRED", CAGED),
    Fault("leaving bypasses the cage", "HB-15", _DECIDE, "(plan.gas > value_limit, DEFERRED",
          "((plan.gas > value_limit) & (choice.action != LEAVE), DEFERRED",
          CAGED),
    Fault("leaving bypasses the gas gate", "HB-15", _DECIDE, "*((mask, DEFERRED, why, plan.gas, most)",
          "*((mask & (choice.action != LEAVE), DEFERRED, why, plan.gas, most)",
          (f"{GAS}::test_no_action_passes_the_gas_gate_not_even_leaving",)),
    Fault("T1 simulates too", "HB-1", _DECIDE, "(deep & (plan.expected_slip > limit), BLOCKED",
          "((plan.expected_slip > limit), BLOCKED", SIMULATES),
    Fault("no simulation at T2", "HB-1", _DECIDE, "(deep & (plan.expected_slip > limit), BLOCKED",
          "(deep & (plan.expected_slip < 0), BLOCKED", SIMULATES),
    Fault("slippage never reverts", "HB-1", _DECIDE, "(plan.slip > limit, REVERTED", "(plan.slip < 0, REVERTED",
          wiring("a_reverted_swap_costs_gas_and_moves_nothing")),
    Fault("any protocol may be touched", "HB-1", _DECIDE,
          "np.full(len(golem), tape.market.protocol not in cage.protocols)", "np.full(len(golem), False)",
          (f"{FLEET}::test_the_cage_blocks_actions_on_a_protocol_that_is_not_allowed",)),
    Fault("a warning blocks nothing", "HB-1", _DECIDE, "warned = move & (block >= 0)", "warned = move & (block < -1)",
          (f"{FLEET}::test_a_warning_of_the_same_situation_blocks_an_action_and_is_named",)),
    Fault("entering in turmoil", "HB-1", _DECIDE, "(born | (cool & (regime != VOLATILE)))",
          "(born | cool)", ENTERED),
    Fault("entering during the cool-down", "HB-1", _DECIDE, "cool = tick >= cooldown", "cool = tick >= 0", ENTERED),
    Fault("no cool-down after leaving", "HB-1", _DECIDE,
          "fleet.cooldown[out] = fleet.tick[out] + policy.playbook.reentry_ticks", "fleet.cooldown[out] = 0", LEFT),
    Fault("leaving on any drawdown", "HB-1", _DECIDE,
          "fallen = held & (sight.drawdown[golem] >= policy.probes.nav_high)",
          "fallen = held & (sight.drawdown[golem] >= policy.probes.nav_low)", LEFT),
    Fault("slippage costs nothing", "HB-1", _DECIDE,
          "kept = centre.value - plan.swap[executed] * choice.slip_ppm[executed] * 1e-6", "kept = centre.value", LEFT),
    Fault("fees are collected at once", "HB-1", _DECIDE, "(fleet.fees[golem] >= rules.collect_fees_micros)",
          "(fleet.fees[golem] >= 0.5 * rules.collect_fees_micros)", wiring("fees_are_collected_from_their_limit_on")),
    Fault("collected fees are for inference alone", "HB-30", _DECIDE,
          "fleet.partitions[:, golem] += split(collected, policy)", "fleet.partitions[0, golem] += collected", BILLS),
    Fault("gas of a stopped action is paid", "HB-15", _DECIDE, "choice.gas_micros = np.where(sent, plan.gas, 0)",
          "choice.gas_micros = np.where(choice.action != HOLD, plan.gas, 0)",
          (f"{GAS}::test_no_action_passes_the_gas_gate_not_even_leaving",)),
    Fault("T2 at the price of T1", "HB-1", _DECIDE, "rate_in = np.where(deep, cost.t2_input_micros_per_token,",
          "rate_in = np.where(deep, cost.t1_input_micros_per_token,", PRICED),
    Fault("entries cost no tokens", "HB-1", _DECIDE, "cost.t1_context_tokens) + cost.entry_tokens * entries",
          "cost.t1_context_tokens) + 0 * entries", PRICED),
    Fault("certainty ignores the distance", "HB-1", _DECIDE, "np.abs(score - choice.threshold) / rules.sure_distance",
          "np.abs(score) / rules.sure_distance",
          wiring("a_decision_is_sure_by_its_distance_from_the_threshold_and_by_past_verdicts")),
    Fault("a refused action is not on trial", "HB-24", _DECIDE,
          "np.flatnonzero(sight.open[golem] & (acted | weighed | refused))",
          "np.flatnonzero(sight.open[golem] & (acted | weighed))",
          (f"{GAS}::test_a_refused_recentring_is_on_trial_as_a_decision_to_hold",)),
    # the recall
    Fault("mood does not bear on the recall", "HB-28", _RECOLLECTION,
          "pad_congruence(recall.pad[:, entry], (moment.mood * np.where(contrarian, -1.0, 1.0))[:, owner]),",
          "np.zeros(len(entry)),",
          (f"{RECALL}::test_a_contrarian_turn_prefers_the_entries_of_the_opposite_mood",)),
    Fault("recency does not bear on the recall", "MEM-9", _RECOLLECTION,
          "recency(moment.at_us[owner], recall.last_us[entry], recall.half_life_us[entry]),", "np.zeros(len(entry)),",
          (f"{RECALL}::test_recency_halves_with_the_half_life_of_the_entry_since_validation",)),
    Fault("the worst entry first", "MEM-9", _RECOLLECTION, "np.lexsort((-score, group))", "np.lexsort((score, group))",
          RANKED),
    Fault("no contrarian turns", "MEM-9", _RECOLLECTION, "np.where(contrarian, -1.0, 1.0)", "1.0",
          (f"{RECALL}::test_a_contrarian_turn_prefers_the_entries_of_the_opposite_mood",)),
    Fault("every thought is a contrarian turn", "MEM-9", _RECOLLECTION,
          "fleet.thought_tick[golem] = moment.tick", "pass",
          (f"{RECOLLECTION}::test_a_tick_retrieves_by_the_regimes_and_thoughts_that_the_golem_lived",)),
    Fault("no regime is dormant", "INH-9", _RECOLLECTION, "is_awake = awake > 0.0", "is_awake = awake >= 0.0",
          (f"{RECOLLECTION}::test_no_tick_retrieves_an_entry_of_a_dormant_regime",)),
    Fault("a fading regime weighs in full", "INH-9", _RECOLLECTION, "contributions(factors, awake, policy.retrieval)",
          "contributions(factors, 1.0, policy.retrieval)",
          (f"{RECALL}::test_entries_of_other_regimes_are_dormant_and_wake_with_their_regime",)),
    Fault("a golem knows the regime before its birth", "INH-9", _RECOLLECTION,
          "has_lived_before = (tick > t - start + 1) & (start > 0)", "has_lived_before = (tick > 0) & (start > 0)",
          (f"{RECOLLECTION}::test_an_heir_knows_no_regime_before_the_one_that_it_was_born_into",)),
    Fault("routine retrieves", "MEM-9", _RECOLLECTION, "wanted = is_awake & ~skips(rule)[owner]", "wanted = is_awake",
          (f"{RECALL}::test_a_calm_routine_tick_skips_retrieval_and_other_ticks_do_not",)),
    Fault("credits do not reach the recall", "MEM-11", "runtime/in_memory_fleet.py",
          "self.names, policy, self.credits)", "self.names, policy)",
          (f"{CREDITED}::test_a_fleet_recalls_with_the_credits_of_its_closed_cycles",)),
    Fault("an access does not refresh an entry", "MEM-11", _RECALL,
          "np.maximum(state[\"validated_us\"][rows], uses.last_us)", "state[\"validated_us\"][rows]",
          (f"{RECALL}::test_a_retrieval_that_helped_raises_an_entry_and_its_access_refreshes_it",)),
    # scars and propositions
    Fault("priors do not reach the recall", "KAT-7", "runtime/in_memory_fleet.py",
          "return with_priors(recall, self.priors(),", "return with_priors(recall, self.priors()[:0],",
          (f"{CREDITED}::test_a_record_names_the_propositions_that_its_golem_held_and_retrieved",)),
    Fault("failures are not qualified in life", "KAT-7", "runtime/in_memory_fleet.py",
          "self.failures.close(records, self._rules_of)", "pass",
          (f"{CREDITED}::test_a_fleet_qualifies_the_failures_of_its_closed_cycles_and_retrieves_their_scars",)),
    Fault("lessons do not reach the tick", "KAT-7", "runtime/in_memory_fleet.py",
          "self.propositions, self._beliefs, self._standing_lessons()])", "self.propositions, self._beliefs])",
          (f"{LIVED_LESSONS}::test_a_tick_decides_by_a_lesson_of_the_golems_own_dreams_and_its_reason_says_so",)),
    Fault("a lesson about waiting urges to act", "KAT-7", "dreams/lessons.py",
          '"threshold_higher": -1', '"threshold_higher": 1',
          (f"{LIVED_LESSONS}::test_a_lesson_to_wait_speaks_against_acting",)),
    Fault("priors do not move the threshold", "KAT-7", _DECIDE,
          "choice.prior_weight = prior_weight(memory, recall, len(golem))", "pass",
          (f"{PRIORS}::test_scars_hold_a_golem_back_and_propositions_may_urge_it_on",)),
    Fault("another golem's scar weighs in full", "KAT-7", "katabasis/priors.py", "rules.scar_sibling", "1.0",
          (f"{PRIORS}::test_importance_is_confidence_times_the_modifier_of_the_source",)),
    Fault("bloodstains fade as other scars", "KAT-7", "katabasis/priors.py",
          "half_life_days * if(is_bloodstain and golem_id <> owner_id, stained, 1.0) as half_life_days",
          "half_life_days", ("tests/property/katabasis/test_lived_failures.py"
          "::test_a_bloodstain_of_another_golem_lasts_longer_and_an_own_one_does_not",)),
    Fault("a proposition outweighs an own rule", "KAT-7", "heartbeat/caution.py",
          "counts[PRIORS:] &= ~has_rule", "pass",
          (f"{PRIORS}::test_only_priors_about_the_situation_count_and_an_own_rule_outweighs_propositions",)),
    Fault("undecided knowledge silences propositions", "KAT-7", "heartbeat/caution.py",
          " & (recall.sign[places] != 0)", "",
          (f"{PRIORS}::test_only_priors_about_the_situation_count_and_an_own_rule_outweighs_propositions",)),
    Fault("every scar is retrieved", "KAT-7", _RECOLLECTION, "rank < _PLACES[recall.shelf[entry[order]]]",
          "rank < RECALL", (f"{PRIORS}::test_the_three_best_scars_and_propositions_for_the_regime_are_retrieved",)),
    # reported causes
    Fault("reported causes teach nothing", "MEM-22", "curator/passes/learn_causal_links.py",
          "active.columns, rules, test.reported)", "active.columns, rules)",
          (f"{REPORTED}::test_a_weak_link_is_found_if_outcomes_report_it",)),
    Fault("unverified outcomes report causes", "MEM-22", "curator/causality/lagged_moments.py",
          "pc.and_(verified, pc.and_(cause.is_valid(), effect.is_valid()))",
          "pc.and_(cause.is_valid(), effect.is_valid())",
          (f"{REPORTED}::test_a_weak_link_is_found_if_outcomes_report_it",)),
    Fault("reports are lost in the cache", "MEM-22", "curator/causality/lagged_moments.py",
          "reports.reshape(_SHAPE) if len(reports) else memory.reports", "memory.reports",
          (f"{REPORTED}::test_reports_are_counted_in_any_division_and_survive_the_cache",)),
    Fault("entries below the confidence limit are recalled", "MEM-9", _RECALL,
          "published >= ppm(policy.retrieval.confidence_min)", "published >= 0",
          (f"{RECALL}::test_an_entry_below_the_retrieval_threshold_is_not_recalled",)),
    Fault("gas does not bear on likeness", "MEM-9", _RECALL, "+ rules.like_gas * covered", "+ rules.like_gas * 1.0",
          (f"{RECALL}::test_likeness_is_1_only_in_the_same_situation",)),
    Fault("warnings block in similar situations", "HB-1", _RECALL, "& (anomaly[at, None] == CELL_ANOMALY)", "",
          BLOCKS),
    Fault("the weakest warning blocks", "HB-1", _RECALL, "np.lexsort((-entry, confidence[entry]))",
          "np.lexsort((-entry, -confidence[entry]))", (f"{RECALL}::test_the_surest_of_two_warnings_blocks",)),
    Fault("doubtful warnings block", "HB-1", _RECALL, "(confidence >= ppm(policy.playbook.block_confidence_min))",
          "(confidence >= 0)", BLOCKS),
    # the probes, and what they look at
    Fault("anomalies from the low limit on", "HB-13", _PROBES, "self._signed > high * sign",
          "self._signed >= high * sign", (f"{PROBES}::test_a_probe_is_raised_only_beyond_its_limit",)),
    Fault("momentum by RSI alone", "HB-13", _PROBES,
          "np.minimum(np.abs(rsi - 50.0), np.abs(macd) * policy.probes.macd_points)", "np.abs(rsi - 50.0)",
          (f"{PROBES}::test_momentum_needs_rsi_and_macd",)),
    Fault("falls are no moves", "HB-13", _PROBES, "value[0] = np.abs(price_change)", "value[0] = price_change",
          MARKET_PROBES),
    Fault("a sane credit balance is an anomaly", "HB-13", _PROBES, "(rules.credit_low, rules.credit_high, -1.0)",
          "(rules.credit_low, rules.credit_high, 1.0)", (f"{PROBES}::test_quiet_sources_raise_no_probe",)),
    Fault("a candidate link is an anomaly", "HB-13", _PROBES, "(0.0, LINK_CANDIDATE, 1.0)", "(0.0, 0.0, 1.0)",
          (f"{PROBES}::test_a_new_link_is_low_and_an_invalidated_link_high",)),
    Fault("broken links stay whole", "MEM-22", _FORESIGHT, "np.sign(foreseen) == -np.sign(moved)",
          "np.sign(foreseen) == 2.0", BROKEN),
    Fault("links do not move the price", "MEM-22", _OBSERVE,
          "expected[PRICE] *= np.exp(fleet.foreseen * (tape.spread_ppm[t] / 1e6))", "pass", PREDICTED),
    Fault("every prediction holds", "HB-24", _OBSERVE, "held = np.abs(residual) <= fleet.half",
          "held = np.abs(residual) <= 9.0 * fleet.half", PREDICTED),
    Fault("errors are not learned", "HB-24", _OBSERVE,
          "resolved, memory * fleet.forecast_var + (1.0 - memory) * relative * relative, fleet.forecast_var",
          "resolved, fleet.forecast_var, fleet.forecast_var", wiring("an_interval_has_the_width_of_past_errors")),
    # credits
    Fault("gas above the available balance is sent", "HB-15", _GAS_GATE, "return (gas > available, GAS_AVAILABLE",
          "return (gas < 0, GAS_AVAILABLE",
          DEFERS),
    Fault("dear gas is sent", "HB-15", _GAS_GATE, "(gas > dear, GAS_HOURLY, dear)", "(gas < 0, GAS_HOURLY, dear)",
          DEFERS),
    Fault("the inference partition lends for gas", "HB-15", _GAS_GATE,
          "available = fleet.partitions[partitions.GAS, golem]", "available = fleet.credits[golem]",
          DEFERS),
    Fault("every payment is an hour", "HB-30", _GAS_GATE,
          "fleet.paid_hours[partition, golem] += fleet.paid_hour[partition, golem] != hour",
          "fleet.paid_hours[partition, golem] += 1",
          (f"{GAS}::test_the_hourly_cost_is_that_of_hours_with_a_payment_and_begins_with_one_usual_act",)),
    Fault("usual gas at this tick's price", "HB-30", _GAS_GATE, "gwei = tape.gas_gwei[t] / ratio if ratio > 0.0 else",
          "gwei = tape.gas_gwei[t] if ratio > 0.0 else", HOURLY),
    Fault("gas is free", "HB-30", _GAS_GATE, "    fleet.partitions[partitions.GAS, golem] -= gas\n", "",
          (f"{GAS}::test_gas_reduces_its_partition_at_once",)),
    Fault("inference runs dry beside a full gas partition", "HB-30", _PARTITIONS,
          "np.where(paid > balance[INFERENCE], split(total - paid, policy), own)", "np.maximum(own, 0)",
          (f"{GAS}::test_inference_is_paid_from_its_partition_and_then_both_are_split_anew",)),
    Fault("a split loses its remainder", "HB-30", _PARTITIONS, "gas = whole * share + rest * share // _PPM",
          "gas = whole * share",
          (f"{GAS}::test_credits_are_split_by_the_gas_share_without_a_remainder",)),
    # trials and pruning
    Fault("decisions to hold overlap", "HB-24", _TRIALS, "room = free.any(axis=0) & (acted | alone.all(axis=0))",
          "room = free.any(axis=0)",
          (f"{CHOOSE}::test_decisions_to_hold_are_tried_one_at_a_time_and_an_act_beside_them",)),
    Fault("inaction moves the trust in decisions", "HB-24", _TRIALS, "due[slot] & fleet.trial_thought[slot], memory",
          "due[slot], memory",
          (f"{CHOOSE}::test_a_trial_of_inaction_does_not_change_the_confidence_in_decisions",)),
    # choices
    Fault("a trial pays the expected slippage", "HB-24", _DECIDE,
          "np.where(acted[pick], plan.slip[pick], plan.centre.expected_slip[pick])",
          "plan.centre.expected_slip[pick]", SLIPS),
    Fault("a swap reverts by the expected slippage", "HB-1", _DECIDE,
          "(plan.slip > limit, REVERTED,", "(plan.expected_slip > limit, REVERTED,", SLIPS),
    Fault("entering pays the gas of leaving", "HB-1", _DECIDE,
          "[policy.cost.enter_gas_units, policy.cost.exit_gas_units,",
          "[policy.cost.exit_gas_units, policy.cost.enter_gas_units,", wiring("each_action_pays_its_own_units_of_gas")),
    Fault("a trial is about the gas at its end", "HB-24", _CHOICES, "tape.gas_hour_ratio[opened]",
          "tape.gas_hour_ratio[opened * 0 + t]", SITUATED),
    Fault("a trial is about the regime at its end", "HB-24", _CHOICES, "tape.regime[opened]",
          "tape.regime[opened * 0 + t]", SITUATED),
    Fault("a trial is about the debt at its end", "HB-24", _CHOICES, "fleet.window_owed > 0.0,",
          "fleet.debt_shares > 0.0 * fleet.window_owed,", (f"{LEARNED}::{CLOSING}",)),
    Fault("trials without ground truth teach", "HB-24", "curator/state/evidence.py",
          'counts = pc.struct_field(parts, "verified").to_numpy(zero_copy_only=False).astype(bool)',
          "counts = np.ones(len(parts), bool)", (f"{CHOICES}::test_trials_without_ground_truth_teach_nothing",)),
    Fault("a thought that acts on a loan alone is vain", "HB-9", _STEP,
          "acted |= False if loans is None else loans.executed[choice.golem]", "pass",
          wiring("a_thought_that_only_repays_a_loan_is_not_vain")),
    Fault("the dead leave nothing", "INH-1", _STEP, "np.floor(fleet.nav).astype(np.int64), fleet.final_nav",
          "0, fleet.final_nav", wiring("the_dead_keep_their_state_and_are_not_woken")),
    Fault("a shadow pays no gas", "HB-24", _CHOICES, "gas_micros(tape, start, gas_units) + swap * slip * 1e-6",
          "0.0 * gas_units + swap * slip * 1e-6", (SHADOWS,)),
    Fault("a shadow earns the fees of the tick before it", "HB-24", _CHOICES, "for first in range(start + 1, stop + 1,",
          "for first in range(start, stop + 1,", (SHADOWS,)),
    Fault("a window of four hours ends each hour", "HB-24", _CHOICES, '"4_hours": 4 * _HOUR_US', '"4_hours": _HOUR_US',
          (f"{TRIED}::test_windows_of_a_horizon_do_not_overlap_and_golems_that_live_through_one_are_judged",)),
    Fault("re-centring swaps half of the value whatever it needs", "HB-24", _CHOICES,
          "return np.abs(shares[1] - shares[0])", "return 0.0 * np.abs(shares[1] - shares[0]) + 0.5", (MOVED,)),
    Fault("re-centring is tried over hours far inside the range", "HB-24", _CHOICES,
          "held & (fleet.window_score >= policy.playbook.trial_score_min)", "held & (fleet.window_score >= 0.0)",
          (MOVED,)),
    Fault("a rule over hours does not replace that of 30 ticks", "HB-24", "curator/playbook.py",
          "short = signs[(*where, anomaly[structure])] == 0", "short = signs[(*where, anomaly[structure])] < 2",
          (f"{CHOICES}::test_the_longest_horizon_that_decides_replaces_the_shorter_ones_in_its_regime_and_band",)),
    Fault("the shortest horizon decides", "HB-24", "curator/choice_rules.py",
          "for horizon in EVIDENCE_HORIZONS[choice]:", "for horizon in EVIDENCE_HORIZONS[choice][::-1]:",
          (f"{CHOICES}::test_the_longest_horizon_that_decides_replaces_the_shorter_ones_in_its_regime_and_band",
           f"{CHOICES}::test_repaying_comes_before_taking_no_loan_and_that_before_borrowing")),
    Fault("a shadow loan pays no interest", "HB-24", _LOANS, "gain -= owed * (paid[1 - asset, last]",
          "gain -= 0.0 * owed * (paid[1 - asset, last]", (LOANED,)),
    Fault("a shadow loan keeps its collateral in a liquidation", "HB-24", _LOANS, "gain -= taken - repaid",
          "gain -= 0.0 * (taken - repaid)", (LOANED,)),
    Fault("a shadow borrows without gas and swap", "HB-24", _CHOICES, "(ratio - 1.0) * entered[able]) - cost",
          "(ratio - 1.0) * entered[able]) - 0.0 * cost", (LOANED,)),
    Fault("a borrower's smaller position is not counted", "HB-24", _CHOICES, "share * (made + (ratio - 1.0)",
          "share * (made + 0.0 * (ratio - 1.0)", (LOANED,)),
    Fault("a rule against borrowing is not followed", "HB-24", _BORROWING, "(first & (learned == TRAIT))",
          "(first & (learned >= TRAIT))",
          (f"{LEARNED}::test_a_golem_with_a_rule_against_borrowing_takes_no_loan_and_names_the_rule",)),
    Fault("a rule for repaying is not followed", "HB-24", _BORROWING, "(fleet.loan_choice[regime] == REPAYS)",
          "(fleet.loan_choice[regime] > REPAYS)", (f"{LEARNED}::{CLOSING}",)),
    Fault("a closed loan leaves nothing of its collateral", "HB-24", _BORROWING,
          "freed = (collateral - debt - swap", "freed = (0.0 * collateral - debt - swap", (f"{LEARNED}::{CLOSING}",)),
    Fault("a rule for borrowing is not followed again", "HB-24", _BORROWING, "free & enters & (learned == BORROWS)",
          "free & enters & first & (learned == BORROWS)",
          (f"{LEARNED}::test_a_golem_with_a_rule_for_borrowing_borrows_again_after_a_liquidation",)),
    Fault("a learned half-width is not minted", "HB-24", "heartbeat/fleet.py",
          "return np.where(learned > 0, learned, self.half_width)", "return self.half_width + 0 * learned",
          (f"{CHOICES}::test_golems_with_a_rule_mint_its_half_width_and_name_it_and_others_follow_their_trait",)),
    Fault("a rule to leave is not followed", "HB-24", _DECIDE, "gone = held & ~fallen & (learned == LEAVES)",
          "gone = held & fallen & (learned == LEAVES)", (f"{CHOICES}::{LEAVING}",)),
    Fault("a rule to enter is not followed", "HB-24", _DECIDE, "~held & (learned == ENTERS) & cool",
          "~held & (learned > LEAVES) & cool", (*CALLING, f"{CHOICES}::{LEAVING}")),
    Fault("a rule to enter ends the cool-down", "HB-24", _DECIDE, "~held & (learned == ENTERS) & cool",
          "~held & (learned == ENTERS)", CALLING),
    Fault("a rule to stay out is not followed", "HB-24", _DECIDE, "~held & (learned >= STAY_OUT), ~held",
          "~held & (learned > LEAVES), ~held", (f"{CHOICES}::{LEAVING}",)),
    Fault("a rule of one regime is not shrunk", "HB-24", "curator/choice_rules.py",
          "share = count / (count + policy.curator.pool_witnesses)", "share = 0.0 * count + 1.0",
          (f"{CHOICES}::test_a_rule_of_few_witnesses_is_shrunk_towards_the_general_one",)),
    Fault("a golem that stays out deliberates", "HB-9", _GATE, "return judged & away",
          "return judged & away & (fleet.tick < 0)", (f"{CHOICES}::{SETTLED}",)),
    Fault("ticks with a debt are settled", "HB-9", _GATE, "~sight.open & (fleet.debt_shares == 0.0) & (fleet",
          "~sight.open & (fleet", wiring("nothing_is_settled_for_a_golem_with_a_position_or_a_loan")),
    Fault("a learned rule settles ticks from birth", "HB-9", _GATE,
          "away & (policy.gate.attention_after_ticks < fleet.tick)", "away & (fleet.tick > 0)",
          (f"{CHOICES}::{SETTLED}",)),
    # the records
    Fault("an interval reaches too low", "HB-24", _RECORDS, '"low": expected - half,', '"low": expected - 2 * half,',
          (f"{FIGURES}::test_a_prediction_lies_in_the_middle_of_its_interval_and_holds_inside_of_it",)),
    Fault("a new regime is no episode", "MEM-1", _RECORDS, ' | (rows["sources"][:, 1] > 0) | rows.thinking',
          " | rows.thinking",
          (f"{FIGURES}::test_a_record_with_an_anomaly_a_new_regime_or_a_deliberation_is_an_episode",)),
    Fault("a loss beside holding is a gain", "HB-24", _RECORDS, '"impermanent_loss_micros": np.rint(position["loss"])',
          '"impermanent_loss_micros": -np.rint(position["loss"])',
          (f"{FIGURES}::test_a_position_never_beats_its_tokens_before_fees",)),
    Fault("a judged decision is about the regime before it", "HB-24", _TRIALS,
          "fleet.trial_regime[slot, golem] = tape.regime[t]", "fleet.trial_regime[slot, golem] = tape.regime[t - 1]",
          (f"{FIGURES}::test_a_judged_decision_states_the_situation_of_its_tick",)),
    Fault("an outcome forgets the slippage", "HB-1", _THOUGHTS,
          '"pnl_impact_micros": -(thinkers["choice_gas_micros"] + slippage)',
          '"pnl_impact_micros": -(thinkers["choice_gas_micros"] + 0 * slippage)', OUTCOMES),
    Fault("a refused act states a slippage", "HB-1", _THOUGHTS, "mask=status != EXECUTED)", "mask=status < 0)",
          OUTCOMES),
    Fault("every outcome of a loan names a cause", "MEM-22", "heartbeat/records/loan_fields.py",
          "arrow.text_of((None, CAUSE), taken.astype(np.int64))",
          "arrow.text_of((None, CAUSE), (taken | True).astype(np.int64))",
          (f"{FIGURES}::test_only_a_liquidation_names_its_cause",)),
    Fault("priors without confidence", "KAT-7", _THOUGHTS, '"confidence": recall.confidence[prior] / 1e6',
          '"confidence": recall.confidence[prior] * 0.0',
          (f"{CREDITED}::test_a_record_names_the_propositions_that_its_golem_held_and_retrieved",)),
    Fault("a retrieval states the mood after it", "MEM-9", _THOUGHTS, 'thinkers["pad_before"][:, 1].tolist()',
          'thinkers["pad_after"][:, 1].tolist()',
          (f"{RECOLLECTION}::test_a_record_states_the_rule_that_retrieved_or_skipped_with_its_numbers",)),
    Fault("links may move the price without limit", "MEM-22", _FORESIGHT, "_LIMIT_SPREADS = 4.0",
          "_LIMIT_SPREADS = 400.0",
          (f"{FORESIGHT}::test_a_trusted_link_shifts_the_expected_price_and_an_uncertain_link_does_not",)),
    Fault("floors do not stop pruning", "MEM-5", "curator/passes/promote.py",
          "pruned = (now < ppm(policy.curator.prune_confidence)) & (state.floor(rows, policy.decay) == 0)",
          "pruned = now < ppm(policy.curator.prune_confidence)",
          ("tests/unit/curator/test_curator_passes.py::test_an_entry_with_a_floor_is_not_pruned_by_decay_below_the_limit",)),
    # the budget, permits, the risk engine, the cache, attention items, the chain after the turn
    Fault("gas is not spent from the daily budget", "HB-17", _TURN, "turn.bill[0] + turn.bill[1])",
          "turn.bill[0] + 0 * turn.bill[1])", KEPT),
    Fault("midnight does not end the budget's day", "HB-17", _STEP, "begin_day(fleet, int(tape.at_us[t]))",
          "begin_day(fleet, int(tape.at_us[0]))", KEPT),
    Fault("forced ticks pass the budget", "HB-17", _STEP, "tier = lowered(tier, band)",
          "tier = np.where(unforced, lowered(tier, band), tier)", KEPT),
    Fault("a stopped steer is lost", "HB-17", _STEP, "follow_ups + steer * (tier != kept)", "follow_ups",
          (f"{SPENT}::test_a_steer_that_the_budget_stops_waits_for_the_next_deliberation",)),
    Fault("items are read beyond the budget", "HB-26", _TURN, "turn.band < NO_QUERY", "turn.band <= NO_QUERY",
          ("tests/property/heartbeat/test_attention_items.py::test_a_golem_beyond_its_daily_budget_reads_no_item",)),
    Fault("a permit counts twice", "HB-25", _PERMITS, "        self.granted = np.zeros(len(self.granted), bool)\n", "",
          ONCE),
    Fault("a permit allows any action", "HB-25", _PERMITS, "(self.action == action) & ", "", (*ONCE, *INTERLEAVED)),
    Fault("a permit outlives its tick", "HB-25", _PERMITS, " & (self.tick == fleet.tick[self.golem])", "", ONCE),
    Fault("a permit outlives its market", "HB-25", _PERMITS, "market_state(tape, t) == self.market_state and ", "",
          (*ONCE, *INTERLEAVED)),
    Fault("a permit never expires", "HB-25", _PERMITS, " and int(tape.at_us[t]) < self.expires_us", "", ONCE),
    Fault("refused actions get permits", "HB-25", _PERMITS,
          "(action != 0) & ((status == EXECUTED) | (status == REVERTED))",
          "(action != 0) & (status == status)",
          (f"{PERMITTED}::test_every_sent_action_names_its_permit_and_no_other_action_has_one",)),
    Fault("execution asks for no permit", "HB-25", _DECIDE, "    _defer_unpermitted(choice, allowed)\n", "",
          INTERLEAVED),
    Fault("gas is paid without a permit", "HB-25", _DECIDE, "column[~allowed] = 0", "column[stopped] = 0",
          (f"{PERMITTED}::test_an_action_that_was_replaced_after_its_permit_is_neither_executed_nor_paid",)),
    Fault("the risk engine is not asked", "HB-27", _DECIDE,
          "*risk_stops(fleet, tape, t, golem, sight.nav[golem], _stake(choice, plan, deep, mints), policy),", "",
          LAYERS),
    Fault("the accuracy gate is not asked", "HB-27", _DECIDE,
          "        accuracy_stop(fleet, golem, mints, policy),\n", "",
          LAYERS),
    Fault("acts at T1 are simulated", "HB-27", _DECIDE, "deep=deep & (choice.action != HOLD)",
          "deep=choice.action != HOLD",
          (f"{PERMITTED}::test_only_a_decision_at_t2_is_simulated_before_it_is_sent",)),
    Fault("Kelly has no floor", "HB-27", _RISK, "np.maximum(rules.kelly_floor, ", "np.maximum(0.0, ",
          (f"{PERMITTED}::test_half_kelly_grows_with_the_share_of_right_decisions_from_a_floor",)),
    Fault("a regime change keeps the cache", "HB-16", _STEP, "forget_regime(fleet, regime_changed)",
          "forget_regime(fleet, regime_changed & False)",
          (f"{CACHED}::test_the_hits_of_a_life_follow_from_its_own_deliberations_alone",)),
    Fault("an answered tick deliberates", "HB-16", _STEP, "np.where(cached.answered, T0, tier)",
          "np.where(False, T0, tier)",
          (f"{CACHED}::test_an_answer_costs_nothing_and_every_lookup_is_recorded_with_its_result",)),
    Fault("a change of mind counts on", "HB-16", _CACHE, "same = holds & (fleet.cache_outcome[place] == outcome)",
          "same = holds", (f"{CACHED}::test_three_like_outcomes_are_needed_and_another_one_begins_anew",)),
    Fault("drift keeps the cache", "HB-16", _CACHE, "rules.drift_max * np.abs(before)", "9.0 * np.abs(before)",
          (f"{CACHED}::test_a_condition_that_drifted_by_more_than_a_fifth_invalidates_a_decision",)),
    Fault("a new playbook keeps the cache", "HB-16", _CACHE,
          "columns = fleet.rebalance_threshold, fleet.presence, fleet.loan_choice",
          "columns = fleet.rebalance_threshold, fleet.presence, fleet.presence",
          (f"{CACHED}::test_a_change_of_the_playbook_invalidates_the_decisions_that_used_it",)),
    Fault("dull items stay active", "HB-26", _ITEMS, "np.where(dull, before - 1, np",
          "np.where(dull, before, np",
          ITEMISED),
    Fault("a violation promotes nothing", "HB-26", _ITEMS, "np.where(cause == VIOLATION, ACTIVE, before)", "before",
          ITEMISED),
    Fault("a dormant item never wakes", "HB-26", _ITEMS, "np.where(woken, WATCHED, level)", "level", ITEMISED),
    Fault("a digest goes on", "HB-26", _ITEMS, "np.where(due, 0, column)", "column", ITEMISED),
    Fault("a failing subsystem goes unrecorded", "HB-29", _STEP, "        out.failures[at] = turn.failures\n",
          "        pass\n",
          (f"{TURNED}::test_a_failing_subsystem_is_recorded_and_stops_no_other",)),
    Fault("lifespan comes before the heartbeat", "HB-29", _TURN,
          '    ("heartbeat", _heartbeat),\n    ("lifespan", _lifespan),\n',
          '    ("lifespan", _lifespan),\n    ("heartbeat", _heartbeat),\n',
          (f"{TURNED}::test_nine_subsystems_run_in_the_order_of_the_document_at_every_tick",)),
    # the heartbeat in real time
    Fault("a low steer cancels calls", "HB-11", "heartbeat/rhythm/heartbeat_state.py",
          "if self.sends_calls and steer.is_high:", "if self.sends_calls:", CUT),
    Fault("a steer in a deliberation waits", "HB-11", _HEART, "if state.step is Step.DECIDING:",
          "if state.step is Step.ANALYZING:", STEERED),
    Fault("a cancelled tick sends all calls", "HB-11", "runtime/live/tick_attempt.py",
          "cut = Cut(left, why) if calls_sent else None", "cut = None", CUT),
    Fault("a cut forgets the calls before it", "HB-11", "heartbeat/refusals.py", "self.left[golem] -= 1",
          "self.left[golem] -= 0", CUT),
    Fault("the kill switch stops no call", "HB-11", _LIVE, "if self.run.killed():", "if False:",
          (f"{LIVE}::test_the_kill_switch_restricts_the_calls_of_a_tick",)),
    Fault("a dream keeps the time", "HB-11", _LIVE, "heart.is_dreaming = True", "heart.is_dreaming = False",
          (f"{LIVE}::test_a_dream_suspends_the_heartbeat_and_is_whole_or_not_at_all",)),
    Fault("a steer counts again after a kill", "HB-11", _LIVE, "each.steer.steer_id not in self._past.steer_ids",
          "each.steer.steer_id", RESUMED),
    Fault("a resumed run compares nothing", "HB-11", "runtime/live/recorded_life.py",
          'row["content_hash"] != digest', "not digest", RESUMED),
    Fault("four ticks wait", "HB-18", "policy/agent.py", "pending_ticks_max: PositiveCount = setting(3",
          "pending_ticks_max: PositiveCount = setting(4", DROPPED),
    Fault("probes of dropped ticks are lost", "HB-18", "heartbeat/step.py",
          "merged(probes, interventions.dropped) if interventions.dropped else probes", "probes", DROPPED),
    Fault("a dropped tick loses its fees", "HB-18", _LIVE, "np.array([*self._bars, bar], np.int64)",
          "np.array([*self._bars[:-1], bar - 1, bar], np.int64)", DROPPED),
    Fault("theta is never throttled", "HB-21", _RATES, "return longest if throttled else interval",
          "return interval", THROTTLED),
    Fault("gamma has no floor", "HB-21", _RATES, ", rules.gamma_seconds_min)", ", 0.0)",
          (f"{STATES}::test_gamma_has_the_rates_of_the_source",)),
    Fault("gamma reads without a limit", "HB-21", _RATES, "return len(self._read_at) < self._most", "return True",
          THROTTLED),
    Fault("a write is prefetched", "HB-12", _GUESSES, "-chance >= rules.prefetch_chance_min and other in reads",
          "-chance >= rules.prefetch_chance_min", GUESSED),
    Fault("a likely read is not prefetched", "HB-12", _GUESSES, "ready.setdefault(follower, began + seconds)", "pass",
          PREFETCHED),
    Fault("calls are not learned", "HB-12", _LIVE, "CoOccurrence(self.context.policy.clocks)).note(tools)",
          "CoOccurrence(self.context.policy.clocks))", PREFETCHED),
    Fault("an absent follower keeps its chance", "HB-12", _GUESSES, "known[other] *= rules.absent_decay", "pass",
          GUESSED),
    Fault("gamma sees no violation", "HB-21", _RATES, "> self.half)", "> 9e99 * self.half)",
          (f"{LIVE}::test_gamma_resolves_predictions_between_ticks_and_clocks_keep_their_intervals",)),
    # public votes and pheromones
    Fault("critical warnings wait", "KAT-4", "katabasis/anonymous_votes.py",
          "effect_mean_ppm <= $critical_effect, $critical_gate", "effect_mean_ppm <= $critical_effect, $gate",
          ("tests/unit/katabasis/test_votes.py::"
           "test_a_confirmed_warning_of_a_large_loss_votes_from_sixty_five_percent",)),
    Fault("the relay signs for anyone", "KAT-4", _OFFICE, "score(request.identity) < SCORE_MIN",
          "score(request.identity) < 0", BOUNDED),
    Fault("signatures have no quota", "KAT-4", _OFFICE, "        if count > most:", "        if False:", BOUNDED),
    Fault("a reader takes unsigned posts", "KAT-4", _EXCHANGE,
          "if keys[purpose].verifies(content, found.signature):", "if True:",
          (f"{LETHE}::test_a_hostile_board_adds_nothing_and_stops_nothing",)),
    Fault("voters have one name in all homes", "KAT-6", "katabasis/public_posts.py",
          'hmac.digest(secret, f"voter', 'hmac.digest(b"", f"voter',
          (f"{LETHE}::test_voters_of_two_owners_with_the_same_golems_have_other_names",)),
    Fault("a home posts when it asks", "KAT-6", "derivation/clade/lethe_outbox.py",
          "            return 0\n        _write", "        _write",
          ("tests/scenario/clade/test_lethe_linkage.py::"
           "test_a_linkage_attack_guesses_authors_no_better_than_by_chance",)),
    Fault("beliefs reach no tick", "KAT-7", "runtime/in_memory_fleet.py",
          "self.propositions, self._beliefs, self._standing", "self.propositions, self._standing", HEARD),
    Fault("pheromones reach no tick", "KAT-11", "runtime/public_beliefs.py",
          "            self._smell(cohort, i, golem_id, names)\n", "", HEARD),
    Fault("helpful beliefs get no credit", "KAT-7", "runtime/in_memory_fleet.py",
          "        self._belief_credits.close(records, self._policy.curator)\n", "",
          ("tests/property/heartbeat/test_credited_fleet.py::"
           "test_a_fleet_weighs_its_beliefs_by_the_decisions_that_they_misled",)),
    Fault("a query costs nothing", "MEM-15", _EXCHANGE,
          "payers = able_to_pay(context, members, context.policy.clade.query_micros)", "payers = list(members)",
          (f"{LETHE}::test_a_query_beyond_a_budget_is_not_asked",)),
    Fault("a query beyond a budget reaches its layers", "KAT-13", _DOORS,
          'over = {layer: refusals[layer] or OVER_BUDGET for layer in _ASKED_FOR_PAY}',
          "over: dict[StyxLayer, str | None] = {}", (f"{DOORS}::test_a_call_beyond_a_budget_is_not_made",)),
    Fault("a closed layer takes an entry", "KAT-13", _DOORS, "None if is_open[layer] else", "None if is_open else",
          (f"{DOORS}::test_a_golem_whose_layers_are_off_asks_its_own_memory_and_leaves_no_event",)),
    Fault("calls of the doors count against no budget", "KAT-13", "derivation/clade/styx_budget.py",
          'yield call["golem_id"], call["observed_at"], call["cost_micros"]',
          'yield call["golem_id"], call["observed_at"], 0', (f"{DOORS}::test_a_call_beyond_a_budget_is_not_made",)),
    Fault("words are found after their time", "KAT-13", _LAYERS,
          "isinstance(facts, Told) and _is_kept(at, facts.kept_days, reader.where.at)", "isinstance(facts, Told)",
          TIMED),
    Fault("paid words do not decay", "KAT-13", _LAYERS, "told.confidence_ppm) | _FADING", "told.confidence_ppm)",
          TIMED),
    Fault("strangers are trusted as much as oneself", "INH-6", _LAYERS,
          "VAULT, factors), policy.clade.lethe_confidence)", "VAULT, factors))",
          (f"{DOORS}::test_a_runtime_writes_and_asks_through_the_two_doors_of_a_server",)),
    Fault("playbooks stay at home", "MEM-14", "derivation/clade/clade_notes.py",
          " *_snapshots(context, owner_id, golems, heard),", "",
          (f"{DOORS}::test_playbooks_travel_and_no_episode_cache_or_deliberation_does",)),
    Fault("a sibling's warning is trusted without evidence", "KAT-9", "runtime/sibling_notes.py",
          "else min(confidence / PPM, limit)", "else confidence / PPM",
          ("tests/scenario/clade/test_clade_notes.py::"
           "test_warnings_of_a_sibling_reach_the_next_probes_and_no_context",)),
    Fault("retracted dreams are events", "EV-7", "events/stream/from_projections.py",
          'dreams = dreams.filter(dreams["because"].is_null())', "dreams = dreams.filter(dreams[\"cycle\"].is_valid())",
          ("tests/unit/events/test_fabric.py::test_dreams_and_their_hypotheses_are_events_and_retracted_ones_are_not",)),
)  # fmt: skip
