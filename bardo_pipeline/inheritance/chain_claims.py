"""Claims about the chain: what an entry that comes from elsewhere names there, to be looked up before belief. Pure.

Entries of ours name no transaction: they say what judged decisions had in common, and for them there is nothing to
check. A name in an entry comes from whoever wrote the records, and may hold one. Source: INH S5.2 (on-chain
verification).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple, Protocol

import pyarrow as pa

_TRANSACTION = re.compile(r"0x[0-9a-fA-F]{64}")


class Claim(NamedTuple):
    """An entry says that this transaction was (its hash, lower case)."""

    entry_id: str
    tx_hash: str


class ChainCheck(Protocol):
    """Who can say what is on a chain."""

    def known(self, tx_hashes: Collection[str]) -> set[str]:
        """Those of these transactions (lower case) that are there."""
        ...


def claims_of(entries: pa.Table) -> tuple[Claim, ...]:
    """Every transaction that these entries (entry_id, text) name, by entry and hash."""
    rows = zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True)
    return tuple(sorted({Claim(entry, tx.lower()) for entry, text in rows for tx in _TRANSACTION.findall(text)}))


def unproven(claims: Collection[Claim], chain: ChainCheck) -> tuple[str, ...]:
    """Entries of which a claim does not check, by id. Nobody is asked where nothing is claimed."""
    if not claims:
        return ()
    known = chain.known({claim.tx_hash for claim in claims})
    return tuple(sorted({claim.entry_id for claim in claims if claim.tx_hash not in known}))
