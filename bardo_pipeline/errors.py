"""Every exception of Bardo, under one root.

BardoError
├── InputError                 something that came from outside is wrong; the message names it and the cure
│   ├── TraceError             a market trace: file, line and column
│   ├── RecordError            a record that does not fit the schema or a range
│   ├── ConfigError            a setting, flag or environment variable
│   ├── QueryError             SQL or an identifier that nothing answers to
│   ├── BundleError            a bundle that is incomplete, altered or not allowed
│   ├── SuccessionError        a successor that cannot be, or not so
│   ├── SignatureError         a record without the signature that its golem's key asks for, or with a wrong one
│   ├── IdentityError          a record that claims another golem's identity
│   ├── WaiverError            a failed expectation that nobody can waive, or one that did not fail
│   ├── LibraryError           an entry that a library does not take, or a kit that cannot be given
│   ├── OverrideError          an owner's word on an entry that cannot stand: out of range, or of a past state
│   └── SealError              private parts that cannot be sealed or opened
├── StreamError                the order of a golem's ticks; always names golem and tick
│   ├── ForkError              another record for a tick that is already on record
│   └── RegressionError        a tick below the accepted head that fills no gap, or past a recorded death
│       └── DeclaredDeadError  of a golem that fell silent and was declared dead meanwhile
├── LeaseError                 another writer holds the golem
├── BackpressureError          the journal is full and the caller does not want to wait
├── StoreError                 a table or an index on disk is not what it should be
│   ├── NoHomeError            there is no home in this folder yet
│   ├── SchemaVersionError     a record or table was written by a newer version
│   ├── JournalError           a journal segment is torn or altered
│   ├── EmbedderMismatch       vectors of one embedder where those of another belong, or a migration half done
│   └── CustodyError           a chain of records, a signature on record or a stored file is broken
├── ProvisioningError          an heir has no place to live in; it is tried again
├── RegistrationError          an heir has no identity; it lives without and it is tried again
│   └── IdentityTakenError     its name is another golem's: it lives without for good
├── GatewayError               a language model gave nothing that can be used; what happened is on record
│   ├── AnswerError            its answer does not parse, or is not what was asked for
│   ├── RefusalError           it, or its provider, declined to answer
│   ├── UnreachableError       it could not be reached in time, or its provider failed
│   └── CostCapError           the cap on what asking may cost is reached: it was not asked
├── NoticeError                a notice could not be posted; it is kept
└── DerivationError            a projection cannot be derived
    ├── FingerprintMismatch    a rebuilt projection differs from the one in force
    └── EmbeddingPaused        the model drifted from its own vectors on record: none are made until that is mended

Bad input is one of these; broken logic is an AssertionError.
"""


class BardoError(Exception):
    """Root of all errors that Bardo raises on purpose."""


class InputError(BardoError):
    """Something that came from outside is wrong."""


class TraceError(InputError):
    """A market trace is malformed: names the file, the line and the column."""

    def __init__(self, file: str, fact: str, *, line: int | None = None, column: str | None = None) -> None:
        self.file, self.line, self.column = file, line, column
        place = file + (f", line {line}" if line is not None else "") + (f", column {column!r}" if column else "")
        super().__init__(f"{place}: {fact}")


class RecordError(InputError):
    """A record does not fit the schema or leaves its ranges."""


class ConfigError(InputError):
    """A setting cannot be used as it is."""


class QueryError(InputError):
    """A query or identifier that nothing answers to."""


class BundleError(InputError):
    """A bundle is incomplete, altered, or holds what must not cross."""


class SuccessionError(InputError):
    """A successor that cannot be, or not as it was asked for."""


class SignatureError(InputError):
    """A record lacks the signature that its golem's key asks for, or has a wrong one."""


class IdentityError(InputError):
    """A record claims another golem's identity."""


class WaiverError(InputError):
    """A steward's waiver cannot stand: what failed is critical, or nothing of that name failed."""


class OverrideError(InputError):
    """An owner's word on an entry cannot stand: it leaves its ranges, or is said of what is past."""


class LibraryError(InputError):
    """A library does not take an entry, or cannot give it: too late, not sure enough, of another owner."""


class SealError(InputError):
    """Private parts cannot be sealed or opened."""


class LeaseError(BardoError):
    """Another writer holds the golem."""


class BackpressureError(BardoError):
    """The journal is full and the caller does not want to wait."""


class StreamError(BardoError):
    """A golem's ticks are not in order."""

    def __init__(self, golem_id: str, tick: int, fact: str) -> None:
        self.golem_id, self.tick = golem_id, tick
        super().__init__(f"golem {golem_id}: tick {tick} {fact}")


class ForkError(StreamError):
    """Another record for a tick that is already on record."""


class RegressionError(StreamError):
    """A tick below the accepted head that fills no gap, or past a recorded death."""


class DeclaredDeadError(RegressionError):
    """A golem that fell silent, was declared dead by an observer, and now goes on: its place is its successor's."""

    def __init__(self, golem_id: str, tick: int, death: int) -> None:
        super().__init__(
            golem_id,
            tick,
            f"comes after its end at tick {death}: it fell silent there and was declared dead by an observer, and what "
            "it knew is its heirs' now: let its successor live on, or give this runtime a golem of its own",
        )


class StoreError(BardoError):
    """A table or an index on disk is not what it should be."""


class NoHomeError(StoreError):
    """There is no home in this folder yet."""


class SchemaVersionError(StoreError):
    """Written by a newer version than this one can read."""


class JournalError(StoreError):
    """A journal segment is torn or altered."""


class EmbedderMismatch(StoreError):
    """Vectors of one embedder where those of another belong, or a migration to another that is half done."""


class CustodyError(StoreError):
    """A chain of records, a signature on record or a stored file is broken."""


class ProvisioningError(BardoError):
    """An heir has no place to live in: it is tried again."""


class RegistrationError(BardoError):
    """An heir has no identity: it lives without, and it is tried again."""


class IdentityTakenError(RegistrationError):
    """The registry has this name as another golem's: no attempt will change that."""


class GatewayError(BardoError):
    """A language model gave nothing that can be used; what happened is on record."""


class AnswerError(GatewayError):
    """A model's answer does not parse, or is not what was asked for."""


class RefusalError(GatewayError):
    """A model, or its provider, declined to answer."""


class UnreachableError(GatewayError):
    """A model could not be reached in time, or its provider failed."""


class CostCapError(GatewayError):
    """The cap on what asking may cost is reached: the model was not asked."""


class NoticeError(BardoError):
    """A notice could not be posted; it is on record, and is posted later."""


class DerivationError(BardoError):
    """A projection cannot be derived."""


class FingerprintMismatch(DerivationError):
    """A rebuilt projection differs from the one in force."""


class EmbeddingPaused(DerivationError):
    """The model drifted from its own vectors on record: no vectors are made until that is mended."""
