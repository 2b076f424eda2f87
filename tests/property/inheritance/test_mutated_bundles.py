"""A thousand altered bundles: each is refused with its reason before anything is written."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.legacy.bundle_archives import (
    ARCHIVE_BYTES_MAX,
    pack_archive,
    unpack_archive,
)
from bardo_pipeline.errors import BundleError
from bardo_pipeline.inheritance.bundle_files import (
    ENTRIES,
    FILE_BYTES_MAX,
    FILES,
    LINKS,
    MANIFEST,
    SIGNATURE,
    TESTAMENT,
    Bundle,
    manifest_hash,
    open_bundle,
    seal,
)
from bardo_pipeline.inheritance.bundle_inspection import faults_of
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signed, with_signature_file
from bardo_pipeline.inheritance.canonical_json import canonical
from tests.support.example_count import times
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import POLICY, baseline, causal, entry, pattern

OWNER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
PUBLIC = OWNER.public_key().public_bytes_raw().hex()


def signed_bundle(bundle: Bundle, key: Ed25519PrivateKey = OWNER) -> Bundle:
    return with_signature_file(bundle, canonical(signed(bundle, "owner-1", key)))


LEVEL = {"level_p10": 9_000, "effect_low_ppm": 12_000, "effect_mean_ppm": 22_500, "effect_high_ppm": 31_000}
LEVEL |= {"level_p90": 90_000}
ROWS = (
    entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True),
    *(entry(about=pattern("t", regime=r), kind="heuristic", confidence_ppm=900_000) for r in ("volatile", "unknown")),
    entry(about=baseline("gas_price"), own_count=40, own_sum=900_000, **LEVEL),
)
WHOLE = signed_bundle(bundle_of(*ROWS))
ANOTHER = signed_bundle(bundle_of(*ROWS[:2]))

Files = dict[str, bytes]


def refusals(files: Files) -> list[str]:
    """Return the result for a steward with the owner's public key."""
    faults = faults_of(files, POLICY.inheritance)
    if faults:
        return faults
    fault = signature_fault(open_bundle(files), PUBLIC)
    return [] if fault is None else [fault]


def resealed(files: Files) -> Files:
    """Pack the files again with a matching manifest, and keep the old signature."""
    head = {n: v for n, v in WHOLE.manifest.items() if n not in ("files", "bundle_hash")}
    return {**seal({n: files[n] for n in FILES}, head).files, SIGNATURE: files[SIGNATURE]}


def turned_bit(files: Files, chance: random.Random) -> Files:
    name = chance.choice([n for n, data in files.items() if data])
    data = bytearray(files[name])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return files | {name: bytes(data)}


def cut_short(files: Files, chance: random.Random) -> Files:
    name = chance.choice([n for n, data in files.items() if data])
    return files | {name: files[name][: chance.randrange(len(files[name]))]}


def missing(files: Files, chance: random.Random) -> Files:
    gone = chance.choice(sorted(files))
    return {n: d for n, d in files.items() if n != gone}


def swapped_files(files: Files, chance: random.Random) -> Files:
    first, other = chance.sample([n for n in FILES if files[n]], 2)
    return files | {first: files[other], other: files[first]}


def file_of_another_bundle(files: Files, chance: random.Random) -> Files:
    name = chance.choice([n for n in files if files[n] != ANOTHER.files[n]])
    return files | {name: ANOTHER.files[name]}


def edited_confidence(files: Files, chance: random.Random) -> Files:
    """Edit a confidence and adjust the manifest, so that only the signature shows the change."""
    rows = [orjson.loads(line) for line in files[ENTRIES].splitlines()]
    row = chance.choice(rows)
    row["confidence_ppm"] = min(
        max(row["confidence_ppm"] + chance.choice((-1, 1)) * chance.randint(1, 500_000), 0), 10**6
    )
    row["effect_mean_ppm"] += 1
    return resealed(files | {ENTRIES: b"".join(canonical(row) for row in rows)})


def impossible_value(files: Files, chance: random.Random) -> Files:
    """Insert invalid values, then seal and sign again: the owner's signature does not make them valid."""
    rows = [orjson.loads(line) for line in files[ENTRIES].splitlines()]
    wrong: dict[str, list[Any]] = {
        "confidence_ppm": [1_700_000, -1, "much", None], "generation": [0, -3], "kind": ["prophecy"],
        "decay_class": ["eternal"], "rank": [77], "anchor_at": ["yesterday"], "provenance": ["heaven"],
        "entry_id": [rows[-1]["entry_id"], "f" * 24], "evidence_count": [-5, 2**70], "sign": [7],
        "regime": ["a storm", None], "anomaly_band": ["odd"], "gas_band": ["free", None], "metric": ["charm"],
        "cause": ["the moon"], "effect": ["luck"], "lag_ticks": [-1], "category": ["gossip"], "domain": ["poetry"],
        "effect_mean_ppm": [2**60, -(2**60)], "effect_high_ppm": [2**62], "structure": ["a|b", rows[-1]["structure"]],
        "validated_at": ["2999-01-01T00:00:00Z"], "pair": ["ETH/BTC"],
    }  # fmt: skip
    name = chance.choice(sorted(wrong))
    rows[0][name] = chance.choice(wrong[name])
    made = resealed(files | {ENTRIES: b"".join(canonical_any(row) for row in rows)})
    return dict(signed_bundle(open_bundle(made)).files)


def canonical_any(row: dict[str, Any]) -> bytes:
    try:
        return canonical(row)
    except TypeError:
        return orjson.dumps({n: v for n, v in row.items() if n != "evidence_count"})[:-1] + b',"evidence_count":1e30}\n'


def impossible_head(files: Files, chance: random.Random) -> Files:
    """A manifest from which no event can be built."""
    wrong = {
        "died_at": "yesterday",
        "golem_id": "",
        "lineage_id": "l" * 300,
        "generation": -1,
        "source_watermark": True,
    }
    name = chance.choice(sorted(wrong))
    manifest = orjson.loads(files[MANIFEST]) | {name: wrong[name]}
    manifest["bundle_hash"] = manifest_hash(manifest)
    return dict(signed_bundle(open_bundle(files | {MANIFEST: canonical(manifest)})).files)


def malformed_testament(files: Files, chance: random.Random) -> Files:
    document = orjson.loads(files[TESTAMENT]) | {"worked": chance.choice(("all of it", ["all of it"], [{"ticks": []}]))}
    return dict(signed_bundle(open_bundle(resealed(files | {TESTAMENT: canonical(document)}))).files)


def impossible_owner_signature(files: Files, chance: random.Random) -> Files:
    """Sign validly under an impossible owner name."""
    return dict(
        with_signature_file(open_bundle(files), canonical(signed(WHOLE, chance.choice(("", "o" * 300)), OWNER))).files
    )


def replayed_signature(files: Files, chance: random.Random) -> Files:
    del chance
    return files | {SIGNATURE: ANOTHER.files[SIGNATURE]}


def untrusted_signature(files: Files, chance: random.Random) -> Files:
    """Sign with an untrusted key under the owner's name, with or without a claim to the owner's public key."""
    signed_content = signed(open_bundle(files), "owner-1", STRANGER)
    return files | {SIGNATURE: canonical(signed_content | ({"public_key": PUBLIC} if chance.random() < 0.5 else {}))}


def later_version(files: Files, chance: random.Random) -> Files:
    manifest = orjson.loads(files[MANIFEST]) | {"schema_version": chance.choice((0, 4, 99, True, None, "3"))}
    manifest["bundle_hash"] = manifest_hash(manifest)
    return dict(signed_bundle(open_bundle(files | {MANIFEST: canonical(manifest)})).files)


def escaping_path(files: Files, chance: random.Random) -> Files:
    return files | {chance.choice(("../grimoire", "/etc/passwd", "a/b", "home.json", "..")): b"{}"}


def dangling_link(files: Files, chance: random.Random) -> Files:
    rows = [orjson.loads(line) for line in files[LINKS].splitlines()]
    rows[0][chance.choice(("entry_id", "other_id"))] = "f" * 32
    made = resealed(files | {LINKS: b"".join(canonical(row) for row in rows)})
    return dict(signed_bundle(open_bundle(made)).files)


MUTATIONS: list[Callable[[Files, random.Random], Files]] = [
    turned_bit, cut_short, missing, swapped_files, file_of_another_bundle, edited_confidence, impossible_value,
    impossible_head, malformed_testament, impossible_owner_signature, replayed_signature, untrusted_signature,
    later_version, escaping_path, dangling_link,
]  # fmt: skip


@pytest.mark.row("INH-7")
def test_an_unaltered_bundle_is_accepted() -> None:
    assert refusals(dict(WHOLE.files)) == []
    assert refusals(dict(ANOTHER.files)) == []
    assert refusals(unpack_archive(pack_archive(WHOLE))) == []


@pytest.mark.row("INH-7")
def test_each_of_a_thousand_mutated_bundles_is_refused_with_a_reason() -> None:
    counts: Counter[str] = Counter()
    for number in range(times(1000)):
        change = MUTATIONS[number % len(MUTATIONS)]
        files = change(dict(WHOLE.files), random.Random(number))
        faults = refusals(files)
        assert faults, f"{change.__name__}, seed {number}: accepted"
        assert all(":" in fault for fault in faults), f"{change.__name__}, seed {number}: a reason names its file"
        counts[change.__name__] += 1
    assert len(counts) == len(MUTATIONS)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue())


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, "/etc/passwd" if kind != tarfile.REGTYPE else ""
    return made


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a path upwards": (lambda: tar_of((member("../entries.jsonl"), b"{}")), "no file of a bundle"),
    "an absolute path": (lambda: tar_of((member("/entries.jsonl"), b"{}")), "no file of a bundle"),
    "a symbolic link": (lambda: tar_of((member(ENTRIES, tarfile.SYMTYPE), b"")), "no plain file"),
    "a hard link": (lambda: tar_of((member(ENTRIES, tarfile.LNKTYPE), b"")), "no plain file"),
    "a device": (lambda: tar_of((member(ENTRIES, tarfile.CHRTYPE), b"")), "no plain file"),
    "a file twice": (lambda: tar_of((member(ENTRIES), b"{}"), (member(ENTRIES), b"[]")), "twice"),
    "a bomb": (lambda: gzip.compress(bytes(ARCHIVE_BYTES_MAX + 1)), "unfolds into more than"),
    "no archive": (lambda: b"entries", "no archive"),
    "cut short": (lambda: pack_archive(WHOLE)[:-9], "cut short"),
    "more behind it": (lambda: pack_archive(WHOLE) + b"more", "cut short, or something stands behind it"),
}


@pytest.mark.row("INH-7")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(BundleError, match=reason):
        unpack_archive(make())


def test_archive_bytes_are_independent_of_the_order_of_files() -> None:
    assert pack_archive(WHOLE) == pack_archive(open_bundle(dict(reversed(list(WHOLE.files.items())))))


def test_a_file_above_the_size_limit_is_refused() -> None:
    files = dict(WHOLE.files) | {ENTRIES: bytes(FILE_BYTES_MAX + 1)}
    assert faults_of(files, POLICY.inheritance) == [
        f"{ENTRIES}: larger than {FILE_BYTES_MAX:,} bytes, which no bundle needs"
    ]


def test_a_signature_is_valid_only_for_its_bundle_and_owner() -> None:
    assert signature_fault(WHOLE) is None
    assert "missing" in str(signature_fault(bundle_of(*ROWS)))
    assert "not with the owner's" in str(signature_fault(signed_bundle(bundle_of(*ROWS), STRANGER), PUBLIC))
    signed_content = signed(WHOLE, "owner-1", OWNER) | {"owner_id": "owner-2"}
    assert "did not sign" in str(signature_fault(with_signature_file(WHOLE, canonical(signed_content))))
    renamed = signed(WHOLE, "owner-1", OWNER) | {"key_id": "0" * 16}
    assert "named for another" in str(signature_fault(with_signature_file(WHOLE, canonical(renamed)), PUBLIC))
    spaced = WHOLE.files[SIGNATURE].replace(b":", b": ")
    assert "not a signature" in str(signature_fault(with_signature_file(WHOLE, spaced), PUBLIC))


UNKNOWN_NAMES: dict[str, Structure] = {
    "a regime": pattern("t", regime="a storm"), "a range": pattern("t", anomaly_band="odd"),
    "a price of gas": pattern("t", gas_band="free"), "no price of gas": pattern("t", gas_band=None),
    "no act": pattern("t", action_type=None), "a metric": baseline("charm"), "a cause": causal("the moon", "gas_gwei"),
    "an effect": causal("volume", "luck"), "no lag": causal("volume", "gas_gwei")._replace(lag_ticks=None),
}  # fmt: skip


@pytest.mark.row("INH-7")
@pytest.mark.parametrize("what", UNKNOWN_NAMES)
def test_an_entry_with_an_unknown_name_in_its_structure_is_refused(what: str) -> None:
    about = UNKNOWN_NAMES[what]
    (fault, *_) = refusals(dict(signed_bundle(bundle_of(*ROWS, entry(about=about))).files))
    assert fault.startswith(f"{ENTRIES}: entry {entry(about=about)['entry_id']}: ")
    assert "which this version does not know" in fault or " without " in fault


FALLING_LEVELS: dict[str, dict[str, int]] = {
    "the 10th percentile above the quartile": {"level_p10": 12_001},
    "the quartile above the median": {"effect_low_ppm": 22_501},
    "the median above the quartile": {"effect_mean_ppm": 31_001},
    "the quartile above the 90th percentile": {"effect_high_ppm": 90_001},
    "no 90th percentile beside a 10th": {"level_p90": 0},
    "quartiles alone that fall": {"level_p10": 0, "level_p90": 0, "effect_low_ppm": 22_501},
}


@pytest.mark.row("INH-7", "MEM-3")
@pytest.mark.parametrize("name", FALLING_LEVELS)
def test_a_level_whose_percentiles_fall_is_refused(name: str) -> None:
    level = entry(about=baseline("gas_price"), **(LEVEL | FALLING_LEVELS[name]))
    (fault,) = refusals(dict(signed_bundle(bundle_of(*ROWS[:3], level)).files))
    figures = ", ".join(f"{column} {level[column]:,}" for column in LEVEL)
    assert fault == f"{ENTRIES}: entry {level['entry_id']}: {figures} must not fall from one to the next"


@pytest.mark.row("INH-7", "MEM-3")
@pytest.mark.parametrize(
    "figures", [{"level_p10": 0, "level_p90": 0}, dict.fromkeys(LEVEL, 0), dict.fromkeys(LEVEL, 7)]
)
def test_a_level_of_quartiles_alone_or_of_equal_percentiles_is_accepted(figures: dict[str, int]) -> None:
    level = entry(about=baseline("gas_price"), **(LEVEL | figures))
    assert refusals(dict(signed_bundle(bundle_of(*ROWS[:3], level)).files)) == []


@pytest.mark.row("INH-7")
def test_the_interval_of_a_pattern_need_not_hold_its_mean() -> None:
    rule = entry(about="w", effect_mean_ppm=-300, effect_low_ppm=200, effect_high_ppm=100)
    assert refusals(dict(signed_bundle(bundle_of(rule)).files)) == []
