"""`bardo bundle show | verify | diff | export | import | sign`.

TARGET is a folder, an exported archive, the hash (or a unique prefix) of a bundle in this home, or its dead golem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from typer import Argument, Exit, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.operations.keys_command import File, Public, public_key_given, signer_in
from bardo_pipeline.cli.options import context_or_none, named_owner, now, open_context, open_whole, root_for_owner
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import out, print_json, print_nonempty, say
from bardo_pipeline.derivation.death.bundle_documents import bundle_rows, content_of
from bardo_pipeline.derivation.legacy.bundle_archives import export_bundle, import_bundle, read_bundle_files
from bardo_pipeline.derivation.legacy.bundle_signing import sign_all_bundles
from bardo_pipeline.derivation.legacy.bundle_store import bundle_files, find_bundle
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance import bundle_files as parts
from bardo_pipeline.inheritance.bundle_comparison import compared
from bardo_pipeline.inheritance.bundle_inspection import faults_of, inspected
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signature_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys

app = Typer(help="Bundles: the knowledge of dead golems as files, each named by its hash.")

Target = Annotated[str, Argument(help="Folder, archive, bundle hash (or a unique prefix) or dead golem.")]


@app.command()
def show(
    target: Annotated[
        str | None, Argument(help="Folder, archive, bundle hash or dead golem; default: list all.")
    ] = None,
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """Show the content of a bundle, or list the bundles of this home."""
    if target is None:
        facts: Any = bundle_rows(open_context(home))
    else:
        facts = content_of(_inspected(target, home), context_or_none(home))
    show_report("bundle show", facts, as_json=format == "json")


@app.command()
def verify(target: Target, public: Public = None, file: File = None, home: opt.Home = None) -> None:
    """Check hashes, schemas, ranges and signature of a bundle; print every fault and exit 1 if there is one.

    The signature must be by the key in --public or --file; by default by the recorded key of the golem's owner.
    """
    files, rules = files_of(target, home), _policy(home).inheritance
    faults = faults_of(files, rules)
    public_key = public_key_given(public, file) if public or file else None
    signature: dict[str, str] | None = None
    if not faults:
        bundle = inspected(files, rules)
        signature, public_key = signature_of(bundle), public_key or _key_on_record(bundle, home)
        fault = signature_fault(bundle, public_key)
        if fault is not None and (public_key is not None or parts.SIGNATURE in files):
            faults = [fault]
    for fault in faults:
        out.print(f"[red]refused[/] {escape(fault)}", soft_wrap=True)
    if faults:
        raise Exit(1)
    by = "unsigned" if signature is None else f"signed by {signature['owner_id']} with key {signature['key_id']}"
    unknown_key = ", an unknown key: give --public or --file to check it"
    trust = "" if signature is None else ", the owner's" if public_key else unknown_key
    say(f"bundle {bundle.bundle_hash} is valid: {len(files)} files, {by}{trust}")


@app.command()
def diff(
    first: Target,
    second: Annotated[str, Argument(help="Bundle to compare with, as FIRST.")],
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """Compare two bundles: entries, playbook, testament."""
    comparison = compared(_inspected(first, home), _inspected(second, home))
    if format == "json":
        testament = {name: {"gone": removed, "new": added} for name, (removed, added) in comparison.testament.items()}
        facts = {"same": comparison.same, "entries": comparison.entries.to_pylist(), "playbook": comparison.playbook}
        print_json(facts | {"testament": testament})
        return
    out.print(f"{comparison.same} entries are the same in both")
    shares = ("confidence_ppm", "other_confidence_ppm")
    rows = [
        (r["change"], r["kind"], r["entry_id"][:10], *(None if r[n] is None else r[n] / PPM for n in shares), r["text"])
        for r in comparison.entries.to_pylist()
    ]
    print_nonempty("Entries", ["change", "kind", "entry", "first", "second", "text"], rows)
    for line in comparison.playbook:
        say(line)
    for name, (removed, added) in comparison.testament.items():
        for mark, sentences in (("-", removed), ("+", added)):
            for sentence in sentences:
                say(f"{mark} {name}: {sentence}")


@app.command()
def export(
    target: Annotated[str, Argument(help="Bundle hash (or a unique prefix) or dead golem.")],
    file: Annotated[Path, Argument(help="Archive to write (.tar.gz).")],
    home: opt.Home = None,
) -> None:
    """Write a published bundle as one archive; every export has the same bytes."""
    stores = open_context(home)
    bundle = export_bundle(stores, find_bundle(stores, target), file)
    signature = signature_of(bundle)
    by = f"signed by {signature['owner_id']}" if signature else "unsigned: `bardo keys owner` makes a key for its owner"
    where = f"{file} ({file.stat().st_size:,} bytes)"
    say(f"bundle {bundle.bundle_hash} of {bundle.golem_id} is in {where}, {by}")


@app.command("import")
def import_(
    source: Annotated[Path, Argument(help="Archive or folder.")],
    public: Public = None,
    file: File = None,
    unsigned: Annotated[bool, Option(help="Accept a bundle without checking its signature.")] = False,
    home: opt.Home = None,
) -> None:
    """Import a bundle from another home; check it completely before writing anything."""
    if (public is None and file is None) == (not unsigned):
        raise ConfigError("import needs a public key of the owner (--public HEX or --file PEM), or --unsigned")
    stores = open_whole(home)
    public_key = None if unsigned else public_key_given(public, file)
    bundle, new = import_bundle(stores, read_bundle_files(source), public_key=public_key, now=now())
    outcome = "is imported" if new else "was here already"
    say(f"bundle {bundle.bundle_hash} of {bundle.golem_id} {outcome}")


@app.command()
def sign(
    key: Annotated[
        Path | None, Option(help="PEM file with the private key of --owner, if this home does not hold it.")
    ] = None,
    home: opt.Home = None,
) -> None:
    """Sign every published bundle that lacks a signature by its owner's current key, if that key is available."""
    owner = named_owner()
    if owner is None and key is not None:
        raise ConfigError("--key is the key of one owner: give --owner too")
    keys = {owner: signer_in(key).key} if owner is not None and key is not None else {}
    signed = sign_all_bundles(open_context(home), keys, now=now())
    for bundle_hash, key_id in sorted(signed.items()):
        say(f"bundle {bundle_hash[:16]} signed with {key_id}")
    if not signed:
        out.print(
            "nothing to sign: every bundle is signed, or its owner's key is not in this home (`bardo keys owner`)"
        )


def _inspected(target: str, home: Path | None) -> parts.Bundle:
    """Read and check a bundle under the home's policy, or the default policy if there is no home."""
    return inspected(files_of(target, home), _policy(home).inheritance)


def _policy(home: Path | None) -> Policy:
    stores = context_or_none(home)
    return Policy() if stores is None else stores.policy


def files_of(target: str, home: Path | None) -> dict[str, bytes]:
    """Read the files of the bundle at a path, or of a bundle of this home."""
    path = Path(target)
    if path.exists() and (named_owner() is None or not path.resolve().is_relative_to(root_for_owner(home).resolve())):
        return read_bundle_files(path)
    stores = open_context(home)
    return bundle_files(stores.home.bundles / find_bundle(stores, path.name if path.exists() else target))


def _key_on_record(bundle: parts.Bundle, home: Path | None) -> str | None:
    """Return the current public key of the owner of the bundle's golem, None if either is unknown."""
    stores = context_or_none(home)
    owner = owners_of(stores).get(bundle.golem_id) if stores else None
    key = OwnerKeys(stores.home, stores.log).in_force().get(owner) if stores and owner else None
    return key.public_key if key else None
