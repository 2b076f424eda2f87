"""Loan: what an owner allows a golem to borrow, told beside its birth. Pure."""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import Name, Part, Unit


class LoanGranted(Part):
    """The golem may borrow at a lending protocol: against what, and how much for each unit of it.

    The debt is in the other token of its market. Its heirs may do the same.
    """

    protocol: Name
    collateral: Literal["USDC", "WETH"]
    loan_to_value: Unit
