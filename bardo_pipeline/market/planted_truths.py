"""The truths and decoys of a synthetic market, by its specification. Pure."""

from __future__ import annotations

import math

from bardo_pipeline.market.synthetic_spec import SyntheticSpec
from bardo_pipeline.quality.market_truths import PlantedTruth


def planted_truths(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    """Return the regularities of a market with this specification: causal and entailed truths, and decoys.

    Sizes follow from the specification. sigma is the standard deviation of one observation without the cause: of the
    log of gas, volume or liquidity, or of the log return over the lag.
    """
    return (*_of_crashes(spec), *_of_prices(spec), *_of_volume_and_gas(spec), *_of_liquidity(spec), *_decoys())


def _of_crashes(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    lag, back = spec.gas_lag_bars, round(spec.crash_recovery_half_life_bars)
    lift = math.log(math.prod(spec.gas_spike_factor)) / 2
    depth, recovery = sum(spec.crash_depth) / 2, sum(spec.crash_recovery) / 2
    spike = round(sum(spec.gas_spike_bars) / 2)
    return (
        PlantedTruth(
            "gas_follows_crash",
            f"Gas spikes {lag} minutes after a crash begins, for 10 to 30 minutes: act at once or wait.",
            "crash", "gas_gwei", lag, "any", 1, span_bars=spike, size=lift, sigma=spec.gas_noise_sd,
        ),
        PlantedTruth(
            "crash_recovers_partly",
            f"Part of a crash comes back, half of that within {back} minutes.",
            "crash", "price_return", back, "any", 1, span_bars=back, size=depth * recovery / 2,
            sigma=spec.trend_sigma * math.sqrt(back),
        ),
        PlantedTruth(
            "falls_lift_gas", "Gas rises after a sharp fall of the price.", "price_return", "gas_gwei", lag, "any", -1,
            span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "large_moves_lift_gas", "Gas rises after large moves of the price.", "price_move", "gas_gwei", lag, "any",
            1, span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "deep_falls_lift_gas", "Gas rises while the price stands far below its mean.", "price_excursion",
            "gas_gwei", lag, "any", -1, span_bars=spike, kind="entailed", restates="gas_follows_crash",
        ),
        PlantedTruth(
            "falls_drive_out_liquidity", "Liquidity leaves after a sharp fall of the price.", "price_return",
            "liquidity", 0, "any", 1, span_bars=30, kind="entailed", restates="liquidity_flees_crash",
        ),
        PlantedTruth(
            "deep_falls_drive_out_liquidity", "Liquidity leaves while the price stands far below its mean.",
            "price_excursion", "liquidity", 0, "any", 1, span_bars=30, kind="entailed",
            restates="liquidity_flees_crash",
        ),
        PlantedTruth(
            "crash_is_a_large_move", "In a crash the price moves far.", "crash", "price_move", 0, "any", 1,
            span_bars=spec.crash_bars, kind="entailed",
        ),
        PlantedTruth(
            "crash_is_traded", "A crash is traded.", "crash", "volume", 0, "any", 1, span_bars=spec.crash_bars,
            kind="entailed",
        ),
    )  # fmt: skip


def _of_prices(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    half_life = round(spec.excursion_half_life_bars)
    turned = spec.turn is not None and spec.turn.excursion_kept > 0
    drift = spec.trend_drift * 60
    excursion = (spec.excursion_min + spec.excursion_max) / 2
    trend = "In a {} trend the drift persists for hours: re-centring early pays."
    trends = tuple(
        PlantedTruth(
            name, trend.format(word), "past_return", "price_return", 60, regime, 1, span_bars=60, size=drift,
            sigma=spec.trend_sigma * math.sqrt(60),
        )
        for name, word, regime in (
            ("uptrend_persists", "rising", "trending_up"), ("downtrend_persists", "falling", "trending_down"),
        )
    )  # fmt: skip
    return (
        PlantedTruth(
            "excursions_revert",
            f"In volatile stretches excursions halve every {half_life} minutes: waiting beats re-centring.",
            "price_excursion", "price_return", half_life, "volatile", -1, span_bars=half_life, size=excursion / 2,
            sigma=math.hypot(spec.volatile_sigma, spec.excursion_sigma) * math.sqrt(half_life),
            rule_sign=-1, valid_until_bar=spec.turn.bar if turned and spec.turn else None,
        ),
        *trends,
        *_of_the_turn(spec),
        PlantedTruth(
            "moves_cluster", "Large moves of the price follow large moves.", "price_move", "price_move", 1, "any", 1,
            span_bars=60, kind="entailed",
        ),
    )  # fmt: skip


def _of_the_turn(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    """Return the truth about excursions after the turn; before it, excursions revert."""
    if spec.turn is None or spec.turn.excursion_kept <= 1.0:
        return ()
    half_life = round(spec.excursion_half_life_bars)
    return (
        PlantedTruth(
            "excursions_go_on", "Since the turn excursions go on, at the pace at which they used to come back.",
            "price_excursion", "price_return", half_life, "volatile", 1, span_bars=half_life, kind="entailed",
            valid_from_bar=spec.turn.bar,
        ),
    )  # fmt: skip


def _of_volume_and_gas(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    afternoon = 0.97  # mean of the daily cosine between 14 and 16 UTC
    return (
        PlantedTruth(
            "volume_follows_moves", "Volume rises with the price's moves.", "price_move", "volume", 0, "any", 1,
            span_bars=1, size=2 * spec.trade_log_sd, sigma=spec.trade_log_sd,
        ),
        PlantedTruth(
            "volume_peaks_14_to_16", "Trades are larger from 14 to 16 UTC.", "hour_14_to_16_utc", "volume", 0, "any", 1,
            span_bars=60, size=math.log(spec.trade_peak_factor), sigma=spec.trade_log_sd,
        ),
        PlantedTruth(
            "gas_peaks_at_15", "Gas is dearest around 15 UTC.", "hour_14_to_16_utc", "gas_gwei", 0, "any", 1,
            span_bars=120, size=math.log1p(afternoon * spec.gas_daily_amplitude), sigma=spec.gas_noise_sd,
        ),
        PlantedTruth(
            "depth_is_traded", "The deeper the pool, the more a move of the price takes.", "liquidity", "volume", 0,
            "any", 1, kind="entailed",
        ),
    )  # fmt: skip


def _of_liquidity(spec: SyntheticSpec) -> tuple[PlantedTruth, ...]:
    fled = math.log1p(-spec.liquidity_crash_share)
    truths = [
        PlantedTruth(
            "liquidity_flees_crash", "A crash drives liquidity out of the pool.", "crash", "liquidity", 0, "any", -1,
            span_bars=120, size=fled, sigma=spec.liquidity_log_sd,
        )
    ]  # fmt: skip
    if spec.liquidity_flight:
        turned = spec.turn is not None and not spec.turn.flight
        truths.append(
            PlantedTruth(
                "liquidity_flees_moves",
                f"Liquidity leaves {spec.flight_lag_bars} minutes after large moves of the price.",
                "price_move", "liquidity", spec.flight_lag_bars, "any", -1, span_bars=round(spec.flight_half_life_bars),
                size=spec.liquidity_flight * (spec.excursion_min + spec.excursion_max) / 2, sigma=spec.liquidity_log_sd,
                valid_until_bar=spec.turn.bar if turned and spec.turn else None,
            )
        )  # fmt: skip
    if spec.liquidity_daily_amplitude:
        truths.append(
            PlantedTruth(
                "liquidity_peaks_at_15", "The pool is deepest around 15 UTC.", "hour_14_to_16_utc", "liquidity", 0,
                "any", 1, span_bars=120, size=math.log1p(spec.liquidity_daily_amplitude), sigma=spec.liquidity_log_sd,
            )
        )  # fmt: skip
    return tuple(truths)


def _decoys() -> tuple[PlantedTruth, ...]:
    """Return correlated pairs without causation: they share a daily rhythm or a crash as common cause."""
    pairs = [
        ("volume", "gas_gwei", "Both follow crashes, and both peak in the afternoon."),
        ("gas_gwei", "volume", "Both follow crashes, and both peak in the afternoon."),
        ("gas_gwei", "price_return", "A crash lifts gas, and then part of it comes back."),
        ("gas_gwei", "price_move", "A crash lifts gas, and moves the price."),
        ("gas_gwei", "liquidity", "Both follow crashes."),
        ("liquidity", "gas_gwei", "Both follow crashes."),
        ("volume", "liquidity", "Both follow moves of the price, volume at once and liquidity later."),
    ]
    return tuple(
        PlantedTruth(
            f"{cause}_before_{effect}", why, cause, effect, 0, "any", 1, span_bars=10**6, kind="decoy",
        )
        for cause, effect, why in pairs
    )  # fmt: skip
