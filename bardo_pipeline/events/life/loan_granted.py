"""The permission to borrow that an owner grants a golem at birth. Pure."""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import Name, Part, Unit


class LoanGranted(Part):
    """The golem and its heirs may borrow from a protocol against this collateral, up to this loan-to-value ratio.

    The debt is in the other token of its market.
    """

    protocol: Name
    collateral: Literal["USDC", "WETH"]
    loan_to_value: Unit
