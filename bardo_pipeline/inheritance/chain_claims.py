"""Finds transaction hashes in foreign entries, to verify them on chain before the entries are accepted. Pure.

Entries derived by this pipeline name no transaction unless a name in a record contains one.
Source: INH S5.2 (on-chain verification).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple, Protocol

import pyarrow as pa

_TRANSACTION = re.compile(r"0x[0-9a-fA-F]{64}")


class Claim(NamedTuple):
    """An entry's claim that a transaction exists; tx_hash is in lower case."""

    entry_id: str
    tx_hash: str


class ChainCheck(Protocol):
    """Looks up transactions on a chain."""

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Return the given hashes (lower case) that exist on the chain."""
        ...


def claims_of(entries: pa.Table) -> tuple[Claim, ...]:
    """Return the transactions named by these entries (entry_id, text), sorted by entry and hash."""
    rows = zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True)
    return tuple(sorted({Claim(entry, tx.lower()) for entry, text in rows for tx in _TRANSACTION.findall(text)}))


def unproven(claims: Collection[Claim], chain: ChainCheck) -> tuple[str, ...]:
    """Return the sorted ids of entries with a transaction that does not exist. Without claims, no lookup is made."""
    if not claims:
        return ()
    confirmed = chain.known({claim.tx_hash for claim in claims})
    return tuple(sorted({claim.entry_id for claim in claims if claim.tx_hash not in confirmed}))
