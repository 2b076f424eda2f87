"""Every exception of Bardo, under one root.

BardoError
├── InputError                 bad input; the message names it and the cure
│   ├── TraceError             a market trace: file, line and column
│   ├── RecordError            a record violates the schema or a range
│   ├── ConfigError            a setting, flag or environment variable
│   ├── QueryError             SQL that fails, or an unknown identifier
│   │   └── UnknownGolemError  no golem in view has this id
│   ├── BundleError            a bundle is incomplete, altered or not allowed
│   ├── SuccessionError        a successor cannot be created as requested
│   ├── SignatureError         a record lacks a signature by its golem's key, or has a wrong one
│   ├── IdentityError          a record claims another golem's identity
│   ├── AuthorityError         a life event came by a door, or without a proof, that its kind does not allow
│   ├── ClockError             a record or event was observed later than the clock of the home allows
│   ├── WaiverError            a waiver names a critical expectation, or one that did not fail
│   ├── LibraryError           an entry cannot enter or leave a library, or a kit is unavailable
│   ├── OverrideError          an override is out of range or refers to a past state
│   ├── SealError              private parts cannot be sealed or opened
│   ├── BackupError            the backup of a clade is incomplete, altered or another owner's
│   ├── ToolError              a memory tool is unknown, or refuses its arguments
│   └── MemoryGateError        the memory tools are switched off
├── StreamError                a golem's ticks are out of order; names golem and tick
│   ├── ForkError              the log holds a different record for this tick
│   └── RegressionError        the tick is below the head and fills no gap, or follows a recorded death
│       └── DeclaredDeadError  the golem fell silent and was declared dead
├── LeaseError                 another writer holds the golem's lease
├── BackpressureError          the journal is full and the caller set no wait
├── StoreError                 a table or index on disk is missing, damaged or inconsistent
│   ├── NoHomeError            the folder holds no home
│   ├── DiskFullError          no space is left on a disk; nothing acknowledged is lost
│   ├── ReadOnlyError          a home that this user cannot write is asked to change
│   ├── SchemaVersionError     a newer version wrote this record or table
│   ├── JournalError           a journal segment is torn or altered
│   ├── DamagedError           a file of the home is altered, cut short or missing
│   ├── EmbedderMismatch       vectors of the wrong embedder, or an unfinished migration
│   └── CustodyError           a chain of records, a signature on record or a stored file is broken
├── ProvisioningError          an heir has no runtime yet; retried
├── RegistrationError          an heir is not registered; it lives without an identity; retried
│   └── IdentityTakenError     another golem holds the name; not retried
├── GatewayError               a language model gave no usable answer; the log records the outcome
│   ├── AnswerError            the answer does not parse or does not fit the request
│   ├── RefusalError           the model or its provider declined to answer
│   ├── UnreachableError       the model timed out or its provider failed
│   └── CostCapError           the cost cap is reached; no request was sent
├── NoticeError                a notice could not be posted; it stays queued
├── AccessError                a token does not allow a request
│   └── TokenError             a request has no token, or an unknown one
├── ServerError                a server of a home refused a request; names its status and error
│   └── NoServerError          no server answers at the address
└── DerivationError            a table cannot be derived
    ├── MartsRefused           a mart or a data test of the warehouse failed
    ├── DerivationDueError     a report would have to derive first, and its reader never derives
    ├── FingerprintMismatch    a rebuilt table differs from the active one
    └── EmbeddingPaused        the model drifted from its recorded vectors; embedding waits for a repair

Bad input raises one of these; broken logic raises AssertionError.
"""

from typing import Any

from bardo_pipeline.visible_text import visible


class BardoError(Exception):
    """Root of all errors that Bardo raises on purpose."""

    def __str__(self) -> str:
        """Return the message without the control characters of names in it, because logs and traces show it too."""
        return visible(super().__str__())


class InputError(BardoError):
    """Input from outside is invalid."""


class TraceError(InputError):
    """A market trace is malformed: names the file, the line and the column."""

    def __init__(self, file: str, fact: str, *, line: int | None = None, column: str | None = None) -> None:
        self.file, self.line, self.column = file, line, column
        location = file + (f", line {line}" if line is not None else "") + (f", column {column!r}" if column else "")
        super().__init__(f"{location}: {fact}")


class RecordError(InputError):
    """A record violates the schema or a range."""


class ConfigError(InputError):
    """A setting, flag or environment variable is invalid."""


class QueryError(InputError):
    """A query fails, or an identifier is unknown."""


class UnknownGolemError(QueryError):
    """No golem in view has this id."""


class BundleError(InputError):
    """A bundle is incomplete, altered, or holds content that must not be inherited."""


class SuccessionError(InputError):
    """A successor cannot be created as requested."""


class SignatureError(InputError):
    """A record lacks a signature by its golem's key, or has a wrong one."""


class IdentityError(InputError):
    """A record claims another golem's identity."""


class AuthorityError(InputError):
    """A life event came by a door, or without a proof, that its kind does not allow."""


class ClockError(InputError):
    """A record or event was observed later than the recording clock of the home allows."""


class WaiverError(InputError):
    """A waiver names a critical expectation, or one that did not fail."""


class OverrideError(InputError):
    """An owner's override of an entry is out of range, or refers to a past state."""


class LibraryError(InputError):
    """An entry cannot enter or leave a library: too late, too uncertain, or another owner's."""


class SealError(InputError):
    """Private parts cannot be sealed or opened."""


class BackupError(InputError):
    """The backup of a clade lacks messages, was altered, or holds what its owner does not own."""


class ToolError(InputError):
    """A memory tool is unknown, or its arguments are invalid or contradict the log."""


class MemoryGateError(InputError):
    """The memory tools are switched off, or the learning profile is not active."""


class LeaseError(BardoError):
    """Another writer holds the golem's lease."""


class BackpressureError(BardoError):
    """The journal is full and the caller set no wait."""


class StreamError(BardoError):
    """A golem's ticks are not in order."""

    def __init__(self, golem_id: str, tick: int, fact: str) -> None:
        self.golem_id, self.tick = golem_id, tick
        super().__init__(f"golem {golem_id}: tick {tick} {fact}")


class ForkError(StreamError):
    """The log holds a different record for this tick."""


class RegressionError(StreamError):
    """The tick is below the accepted head and fills no gap, or follows a recorded death."""


class DeclaredDeadError(RegressionError):
    """A golem was declared dead for its silence and now writes again; its successor has taken over."""

    def __init__(self, golem_id: str, tick: int, death: int) -> None:
        super().__init__(
            golem_id,
            tick,
            f"comes after its end at tick {death}: it fell silent there and was declared dead by an observer, and its "
            "heirs hold its knowledge now: run its successor, or give this runtime another golem",
        )


class StoreError(BardoError):
    """A table or index on disk is missing, damaged or inconsistent."""


class NoHomeError(StoreError):
    """The folder holds no home."""


class DiskFullError(StoreError):
    """No space, or no quota, is left on a disk. Acknowledged records stay durable."""


class ReadOnlyError(StoreError):
    """A home that this user cannot write, or a backup, is asked to change."""


class SchemaVersionError(StoreError):
    """A newer version of the library wrote this record or table."""


class JournalError(StoreError):
    """A journal segment is torn or altered."""


class DamagedError(StoreError):
    """A file of the home is altered, cut short or missing; the message names it and the cure for its kind."""

    def __init__(self, path: object, fact: str) -> None:
        self.path = str(path)
        folders = reversed(self.path.split("/"))
        cure = next((_CURES[folder] for folder in folders if folder in _CURES), "restore it from a backup of the home")
        super().__init__(f"{path} is damaged ({fact}): {cure}")


_CURES = {
    "conversations": "restore it from a backup of the home",
    "derivations": "`bardo derive` makes the derived tables again",
    "index": "`bardo derive` makes the index again",
    "log": "restore the home from a backup; `bardo verify` lists every damaged file",
}
"""Folder of a home -> what to do about a damaged file below it."""


class EmbedderMismatch(StoreError):
    """Stored vectors are of the wrong embedder, or a migration to another embedder is unfinished."""


class CustodyError(StoreError):
    """A chain of records, a signature on record or a stored file is broken."""


class ProvisioningError(BardoError):
    """An heir has no runtime yet; provisioning is retried."""


class RegistrationError(BardoError):
    """An heir is not registered: it lives without an identity, and registration is retried."""


class IdentityTakenError(RegistrationError):
    """The registry gave this name to another golem; registration is not retried."""


class GatewayError(BardoError):
    """A language model gave no usable answer; the log records the outcome."""


class AnswerError(GatewayError):
    """A model's answer does not parse or does not fit the request."""


class RefusalError(GatewayError):
    """A model or its provider declined to answer."""


class UnreachableError(GatewayError):
    """A model timed out or its provider failed."""


class CostCapError(GatewayError):
    """The cost cap is reached; no request was sent."""


class NoticeError(BardoError):
    """A notice could not be posted; it stays queued."""


class AccessError(BardoError):
    """A token does not allow a request."""


class TokenError(AccessError):
    """A request has no token, or one that the home does not know."""


class ServerError(BardoError):
    """A server of a home refused a request.

    Parameters
    ----------
    status : HTTP status
    error : name of the error's class at the server
    cure : remedy that the server states; None without one
    """

    def __init__(self, status: int, error: str, message: str, cure: str | None = None) -> None:
        self.status, self.error, self.message, self.cure = status, error, message, cure
        super().__init__(message if cure is None or message.endswith(cure) else f"{message}: {cure}")


class NoServerError(ServerError):
    """No server answers at an address."""

    def __init__(self, message: str, command: str = "bardo serve") -> None:
        super().__init__(503, "NoServerError", message, f"start it with `{command}`")


class DerivationError(BardoError):
    """A table cannot be derived."""


class MartsRefused(DerivationError):
    """A mart or a data test of the warehouse failed. tests: results of the tests that ran."""

    def __init__(self, message: str, tests: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.tests = tests


class DerivationDueError(DerivationError):
    """A report would have to derive first, and its reader never derives."""


class FingerprintMismatch(DerivationError):
    """A rebuilt table differs from the active one."""


class EmbeddingPaused(DerivationError):
    """The model drifted from its recorded vectors; embedding is paused until the model is repaired."""
