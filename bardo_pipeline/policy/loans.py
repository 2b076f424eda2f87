"""How golems borrow: what Aave asks of a loan, and what the cage and the health guard make of it."""

from __future__ import annotations

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit

_AAVE = "Aave v3 on Polygon, proto_polygon_v3 in 2023"


class LendingPolicy(Frozen):
    """A loan beside the pool. Aave's terms are those of the recorded days; the rest is what golems make of them."""

    usdc_loan_to_value: Unit = Field(0.825, description=f"most that may be borrowed against USDC ({_AAVE})")
    usdc_threshold: Unit = Field(0.85, description=f"liquidation threshold of USDC ({_AAVE})")
    usdc_bonus: Unit = Field(0.04, description=f"liquidation bonus of USDC ({_AAVE})")
    weth_loan_to_value: Unit = Field(0.80, description=f"most that may be borrowed against WETH ({_AAVE})")
    weth_threshold: Unit = Field(0.825, description=f"liquidation threshold of WETH ({_AAVE})")
    weth_bonus: Unit = Field(0.05, description=f"liquidation bonus of WETH ({_AAVE})")
    close_factor: Unit = Field(0.5, description="share of the debt that one liquidation repays (Aave v3)")
    full_close_health: Positive = Field(0.95, description="health from which down it repays all of it (Aave v3)")
    collateral_share: Unit = Field(0.5, description="share of the idle capital that becomes collateral (ours)")
    ratio_max: Unit = Field(0.75, description="PolicyCage: debt over collateral, at most (leverage; ours)")
    rate_max: Positive = Field(0.25, description="PolicyCage: a dearer rate a year is not borrowed at (ours)")
    health_guard: Positive = Field(1.05, description="health guard: below, a thinking golem repays (ours)")
    health_target: Positive = Field(1.25, description="and so much that this is its health again (ours)")
    health_free: Positive = Field(10.0, description="health of a loan that hardly owes anything is told as this (ours)")
    borrow_gas_units: Count = Field(520_000, description="swap, supply and borrow (ours)")
    repay_gas_units: Count = Field(480_000, description="decrease, collect, swap and repay (ours)")
