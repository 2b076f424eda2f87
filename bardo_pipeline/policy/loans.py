"""Policy of loans: Aave's terms, limits of the PolicyCage, the health guard."""

from __future__ import annotations

from pydantic import Field

from bardo_pipeline.policy.base import Count, Frozen, Positive, Unit

_AAVE = "Aave v3 on Polygon, proto_polygon_v3 in 2023"


class LendingPolicy(Frozen):
    """Terms of a loan (Aave v3, of the recorded days) and the golem's own limits."""

    usdc_loan_to_value: Unit = Field(0.825, description=f"most that may be borrowed against USDC ({_AAVE})")
    usdc_threshold: Unit = Field(0.85, description=f"liquidation threshold of USDC ({_AAVE})")
    usdc_bonus: Unit = Field(0.04, description=f"liquidation bonus of USDC ({_AAVE})")
    weth_loan_to_value: Unit = Field(0.80, description=f"most that may be borrowed against WETH ({_AAVE})")
    weth_threshold: Unit = Field(0.825, description=f"liquidation threshold of WETH ({_AAVE})")
    weth_bonus: Unit = Field(0.05, description=f"liquidation bonus of WETH ({_AAVE})")
    close_factor: Unit = Field(0.5, description="share of the debt that one liquidation repays (Aave v3)")
    full_close_health: Positive = Field(0.95, description="health below which a liquidation repays all of it (Aave v3)")
    collateral_share: Unit = Field(0.5, description="share of the idle capital that becomes collateral (ours)")
    ratio_max: Unit = Field(0.75, description="PolicyCage: largest ratio of debt to collateral (ours)")
    rate_max: Positive = Field(0.25, description="PolicyCage: highest interest rate per year (ours)")
    health_guard: Positive = Field(1.05, description="health below which a deliberating golem repays (ours)")
    health_target: Positive = Field(1.25, description="health after such a repayment (ours)")
    health_free: Positive = Field(10.0, description="cap of the reported health, for loans with little debt (ours)")
    borrow_gas_units: Count = Field(520_000, description="swap, supply and borrow (ours)")
    repay_gas_units: Count = Field(480_000, description="decrease, collect, swap and repay (ours)")
