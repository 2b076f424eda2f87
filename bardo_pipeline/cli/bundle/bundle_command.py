"""The command `bardo bundle`: look at what a golem left, check it, compare it, carry it elsewhere, vouch for it.

TARGET is a folder or an exported archive, or, of this home, a bundle's hash (or its beginning), or the golem that left
it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from bardo_pipeline.cli.golem.phrase_command import show_words
from bardo_pipeline.cli.operations.keys_command import File, Public, private_key_in, public_key_given
from bardo_pipeline.cli.options import FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import owners_of
from bardo_pipeline.derivation.death.testament_phrasing import PhrasedTestament, phrased_testament
from bardo_pipeline.derivation.legacy.bundle_archives import export_bundle, import_bundle, read_bundle_files
from bardo_pipeline.derivation.legacy.bundle_signing import sign_all_bundles
from bardo_pipeline.derivation.legacy.bundle_store import bundle_files
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.errors import BundleError, ConfigError, NoHomeError, QueryError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance.bundle_comparison import compared
from bardo_pipeline.inheritance.bundle_files import (
    EPISODES,
    LINKS,
    PROCEDURES,
    SIGNATURE,
    TESTAMENT,
    TESTAMENT_PAGE,
    Bundle,
)
from bardo_pipeline.inheritance.bundle_inspection import faults_of, inspected
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signature_of
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys

app = typer.Typer(help="What the dead leave: bundles that may be inherited, each file named by its hash.")
out = Console(soft_wrap=False, highlight=False)

Target = Annotated[str, typer.Argument(help="A folder, an archive, a bundle's hash or its beginning, or a golem.")]
BARS = 10


@app.command()
def show(
    target: Annotated[str | None, typer.Argument(help="As TARGET below; without it, all are listed.")] = None,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Show what a bundle holds, or list the bundles of this home."""
    check_format(format)
    if target is None:
        _list(DerivationContext.open(root_of(home)), format)
        return
    bundle = inspected(files_of(target, home), _policy(home).inheritance)
    facts = _facts(bundle)
    if format == "json":
        print_json(facts)
        return
    for name, value in facts.items():
        if not isinstance(value, dict):
            out.print(f"{name:18} {escape(str(value))}")
    print_table(out, "Entries", ["domain", "entries"], sorted(facts["domains"].items()))
    print_table(out, "Confidence at the anchor", ["from", "entries", ""], _histogram(facts["confidence"]))
    out.print(escape(bundle.files[TESTAMENT_PAGE].decode()), soft_wrap=True)
    words = _in_words(bundle, home)
    if words is not None:
        show_words(words)


@app.command()
def verify(target: Target, public: Public = None, file: File = None, home: HomeOption = None) -> None:
    """Check every byte, shape and range of a bundle and who vouches for it; exit 1 and every fault if it does not hold.

    With --public or --file that owner's key alone counts. Without, of a golem of this home, its owner's key on record.
    """
    files = files_of(target, home)
    faults = faults_of(files, _policy(home).inheritance)
    wanted = public_key_given(public, file) if public or file else None
    said: dict[str, str] | None = None
    if not faults:
        bundle = inspected(files, _policy(home).inheritance)
        said, wanted = signature_of(bundle), wanted or _key_on_record(bundle, home)
        fault = signature_fault(bundle, wanted)
        if fault is not None and (wanted is not None or SIGNATURE in files):
            faults = [fault]
    for fault in faults:
        out.print(f"[red]refused[/] {escape(fault)}", soft_wrap=True)
    if faults:
        raise typer.Exit(1)
    by = "signed by nobody" if said is None else f"signed by {said['owner_id']} with key {said['key_id']}"
    stranger = ", which nobody here vouches for: give --public or --file"
    trust = "" if said is None else ", the owner's" if wanted else stranger
    out.print(f"bundle {bundle.bundle_hash} holds: {len(files)} files, {escape(by)}{trust}", soft_wrap=True)


@app.command()
def diff(
    first: Target,
    second: Annotated[str, typer.Argument(help="Another.")],
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Show what changed from one bundle to another: entries, playbook, testament."""
    check_format(format)
    rules = _policy(home).inheritance
    found = compared(*(inspected(files_of(name, home), rules) for name in (first, second)))
    if format == "json":
        told = {name: {"gone": gone, "new": new} for name, (gone, new) in found.testament.items()}
        print_json(
            {"same": found.same, "entries": found.entries.to_pylist(), "playbook": found.playbook, "testament": told}
        )
        return
    out.print(f"{found.same} entries are the same in both")
    figures = ("confidence_ppm", "other_confidence_ppm")
    rows = [
        (row["change"], row["kind"], row["entry_id"][:10], *(_share(row[name]) for name in figures), row["text"])
        for row in found.entries.to_pylist()
    ]
    if rows:
        print_table(out, "Entries", ["change", "kind", "entry", "first", "second", "text"], rows)
    for line in found.playbook:
        out.print(escape(line), soft_wrap=True)
    for name, (gone, new) in found.testament.items():
        for mark, sentences in (("-", gone), ("+", new)):
            for sentence in sentences:
                out.print(escape(f"{mark} {name}: {sentence}"), soft_wrap=True)


@app.command()
def export(
    target: Annotated[str, typer.Argument(help="A bundle's hash or its beginning, or the golem that left it.")],
    file: Annotated[Path, typer.Argument(help="The archive to write (.tar.gz).")],
    home: HomeOption = None,
) -> None:
    """Write a published bundle as one file, the same bytes whenever it is exported."""
    stores = DerivationContext.open(root_of(home))
    bundle = export_bundle(stores, hash_of(stores, target), file)
    said = signature_of(bundle)
    by = f"signed by {said['owner_id']}" if said else "unsigned: `bardo keys owner` gives its owner a key"
    out.print(f"bundle {bundle.bundle_hash} of {bundle.golem_id} is in {file} ({file.stat().st_size:,} bytes), {by}",
              markup=False, soft_wrap=True)  # fmt: skip


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="An archive or a folder.")],
    public: Public = None,
    file: File = None,
    unsigned: Annotated[bool, typer.Option(help="Take it though no known key vouches for it.")] = False,
    home: HomeOption = None,
) -> None:
    """Take a bundle from another home: inspected as a whole before anything is written, and recorded."""
    if (public is None and file is None) == (not unsigned):
        raise ConfigError("give the owner's public key (--public HEX or --file PEM), or --unsigned")
    stores = DerivationContext.open(root_of(home))
    public_key = None if unsigned else public_key_given(public, file)
    bundle, new = import_bundle(stores, read_bundle_files(source), public_key=public_key, now=now())
    what = "is here now" if new else "was here already"
    out.print(f"bundle {bundle.bundle_hash} of {bundle.golem_id} {what}", markup=False, soft_wrap=True)


@app.command()
def sign(
    owner: Annotated[str | None, typer.Option(help="With --key: whose key it is.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="A PEM file with the owner's private key, where it is not kept in this home.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Sign every published bundle that its owner's key in force has not signed, where that key is at hand."""
    if (owner is None) != (key is None):
        raise ConfigError("--owner and --key belong together: whose key it is, and where it lies")
    given = {owner: private_key_in(key)} if owner is not None and key is not None else {}
    done = sign_all_bundles(DerivationContext.open(root_of(home)), given, now=now())
    for bundle_hash, key_id in sorted(done.items()):
        out.print(f"bundle {bundle_hash[:16]} signed with {key_id}")
    if not done:
        out.print("nothing to sign: each is signed, or its owner's key is not here (`bardo keys owner`)")


def _policy(home: Path | None) -> Policy:
    """The home's policy; a bundle can be looked at without a home, too."""
    try:
        return DerivationContext.open(root_of(home)).policy
    except NoHomeError:
        return Policy()


def _in_words(bundle: Bundle, home: Path | None) -> PhrasedTestament | None:
    """The bundle's testament in a model's words, if its golem is of this home and a model phrased it."""
    try:
        stores = DerivationContext.open(root_of(home))
    except NoHomeError:
        return None
    said = orjson.loads(bundle.files[TESTAMENT])
    return phrased_testament(
        stores, bundle.golem_id, {name: [i["statement"] for i in said[name]] for name in CATEGORIES}
    )


def files_of(target: str, home: Path | None) -> dict[str, bytes]:
    """The files of a bundle that a target names: a path, or a bundle of this home."""
    path = Path(target)
    if path.exists():
        return read_bundle_files(path)
    stores = DerivationContext.open(root_of(home))
    return bundle_files(stores.home.bundles / hash_of(stores, target))


def hash_of(stores: DerivationContext, target: str) -> str:
    """The hash of a bundle of this home. Raises QueryError where none or several answer to the target."""
    left = published_bundles(stores, [target])
    if target in left:
        return left[target]
    there = sorted(p.name for p in stores.home.bundles.glob("[!.]*") if p.is_dir() and p.name.startswith(target))
    if len(there) != 1 or not target:
        what = "no bundle answers to it" if not there else f"{len(there)} bundles begin so"
        raise QueryError(f"{target!r}: {what}: `bardo bundle show` lists them")
    return there[0]


def _key_on_record(bundle: Bundle, home: Path | None) -> str | None:
    """The public key in force of the owner of the golem that left the bundle, if both are on record here."""
    try:
        stores = DerivationContext.open(root_of(home))
    except NoHomeError:
        return None
    owner = owners_of(stores).get(bundle.golem_id)
    key = OwnerKeys(stores.home, stores.log).in_force().get(owner) if owner is not None else None
    return key.public_key if key is not None else None


def _facts(bundle: Bundle) -> dict[str, Any]:
    manifest, said, entries = bundle.manifest, signature_of(bundle), bundle.entries()
    confidence = [ppm / PPM for ppm in entries["confidence_ppm"].to_pylist()]
    return {
        "bundle": bundle.bundle_hash,
        "golem": bundle.golem_id,
        "generation": manifest["generation"],
        "lineage": manifest["lineage_id"],
        "died_at": manifest["died_at"],
        "made_by": f"derivation {manifest['derivation_id']}, policy {manifest['policy_hash']}, "
        f"records up to tick {manifest['source_watermark']}",
        "signed_by": None if said is None else f"{said['owner_id']} with key {said['key_id']}",
        "entries": entries.num_rows,
        "anti_knowledge": sum(entries["is_anti_knowledge"].to_pylist()),
        "bloodstains": sum(entries["is_bloodstain"].to_pylist()),
        "episodes": len(bundle.rows(EPISODES)),
        "links": len(bundle.rows(LINKS)) if LINKS in bundle.files else 0,
        "procedures": len(bundle.rows(PROCEDURES)) if PROCEDURES in bundle.files else 0,
        "domains": dict(Counter(entries["domain"].to_pylist())),
        "confidence": dict(sorted(Counter(min(int(c * BARS), BARS - 1) for c in confidence).items())),
    }


def _histogram(counts: dict[int, int]) -> list[tuple[str, int, str]]:
    most = max(counts.values(), default=1)
    return [(f"{at / BARS:.1f}", counts.get(at, 0), "█" * round(30 * counts.get(at, 0) / most)) for at in range(BARS)]


def _list(stores: DerivationContext, format: str) -> None:
    rows: list[tuple[Any, ...]] = []
    left = published_bundles(stores)
    for path in sorted(p for p in stores.home.bundles.glob("[!.]*") if p.is_dir()):
        try:
            bundle = inspected(bundle_files(path), stores.policy.inheritance)
        except BundleError as error:
            rows.append((path.name[:16], "?", None, None, None, f"unreadable: {error}"))
            continue
        said = signature_of(bundle)
        whence = "" if left.get(bundle.golem_id) == bundle.bundle_hash else "overtaken, or imported"
        rows.append(
            (path.name[:16], bundle.golem_id, bundle.manifest["generation"], bundle.entries().num_rows,
             said["owner_id"] if said else None, whence)
        )  # fmt: skip
    names = ["bundle", "golem", "generation", "entries", "signed_by", "remark"]
    if format == "json":
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(out, None, names, rows)


def _share(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / PPM
