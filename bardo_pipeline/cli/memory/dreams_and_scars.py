"""`bardo dreams | scars | bloodstain`: dreams, verified failures, and the record of a death."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import open_context, require_born
from bardo_pipeline.cli.output.tables import out, percent, print_json, print_records, print_table, say
from bardo_pipeline.derivation.dreams.derive_dreams import dreams_and_hypotheses
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain as bloodstain_of_golem
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars

FATES = ("confirmed", "staged", "gone")


def dreams(
    golem: Annotated[str | None, Argument(help="Golem id (default: the newest dreams of all golems).")] = None,
    home: opt.Home = None,
    json: opt.Json = False,
    limit: Annotated[int, Option(min=1, help="Maximum rows per table.")] = 20,
    embedder: opt.Embedder = None,
) -> None:
    """List dreams with their causes, and hypotheses: staged, confirmed by later outcomes, or rejected."""
    stores = open_context(home, embedder)
    require_born(stores, golem)
    dreamt, hypotheses = dreams_and_hypotheses(stores, golem)
    if json:
        print_json({"dreams": dreamt, "hypotheses": hypotheses})
        return
    if not dreamt:
        subject = f"golem {golem} has not" if golem else "no golem has"
        say(f"{subject} dreamt yet: dreams run while idle, every four hours of a golem's time; `bardo ui` runs them")
        return
    shown = [_dream_row(row, golem) for row in dreamt[-limit:]]
    print_records("Dreams (s: hypotheses staged, c: confirmed, g: gone)", shown)
    for fate in FATES:
        for hypothesis in [h for h in hypotheses if h["state"] == fate][:limit]:
            out.print(_hypothesis_text(hypothesis, golem), markup=False)
    waiting = sum(h["state"] == "imagined" for h in hypotheses)
    out.print(f"{waiting} more have too little evidence to be staged")


def _dream_row(row: dict[str, Any], golem: str | None) -> dict[str, Any]:
    return ({} if golem else {"golem": row["golem_id"]}) | {
        "cycle": row["cycle"],
        "when": f"{row['at']:%m-%d %H:%M}",
        "by": row["began_by"],
        "replays": len(row["replayed"]) + len(row["scars"]),
        "branches": row["branch_count"],
        "s": row["staged_count"],
        "c": row["confirmed_count"],
        "g": row["gone_count"],
    }


def _hypothesis_text(row: dict[str, Any], golem: str | None) -> str:
    prefix = "" if golem else f"{row['golem_id']}: "
    lines = [f"{prefix}{row['fate']}, {percent(row['confidence_now_ppm'])}: {row['text']}"]
    if row["entry_id"]:
        offered = ", offered to the clade" if row["pushed"] else ""
        lines.append(f"    known as entry {row['entry_id'][:12]}{offered}")
    if row["revision"]:
        lines.append(f"    staged revision of the playbook: {row['revision']}")
    for side, source in (("", "in imagined failures"), ("live_", "in later decisions")):
        if row[f"{side}count"]:
            mean, low, high = (row[f"{side}{n}_ppm"] for n in ("mean", "low", "high"))
            lines.append(f"    {source} n={row[f'{side}count']}: {mean:+,} ppm ({low:+,} to {high:+,})")
    return "\n".join(lines)


def scars(
    golem: Annotated[str | None, Argument(help="Golem id (default: all golems).")] = None,
    home: opt.Home = None,
    format: opt.Format = "table",
    failures: Annotated[bool, Option("--failures", help="Include failures without a scar, with the reason.")] = False,
    embedder: opt.Embedder = None,
) -> None:
    """List scars: verified failures that were new to the golem's clade, with their causes."""
    stores = open_context(home, embedder)
    require_born(stores, golem)
    failure_rows = [row for row in failures_with_scars(stores, golem) if failures or row["is_scar"]]
    if format == "json":
        print_json(failure_rows)
        return
    if not failure_rows:
        say("no scars on record")
        return
    for row in failure_rows:
        say(f"{row['scar_id']}, {_scar_state(row)}: {row['causal_narrative']}")


def _scar_state(row: dict[str, Any]) -> str:
    if not row["is_scar"]:
        return f"no scar ({row['because']})"
    repeats = f", seen {row['seen_count']} times" if row["seen_count"] > 1 else ""
    kind = "bloodstain" if row["is_bloodstain"] else "scar"
    return f"{kind} of {percent(row['confidence_now_ppm'])}, {row['emotion'].lower()}{repeats}"


def bloodstain(
    golem: Annotated[str, Argument(help="Dead golem.")],
    home: opt.Home = None,
    format: opt.Format = "table",
    public: Annotated[bool, Option("--public", help="Show only the public part (the echo).")] = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show the bloodstain of a death: market conditions, scars, last votes, testament, bundle."""
    stain = bloodstain_of_golem(open_context(home, embedder), golem)
    if format == "json":
        print_json(stain["echo"] if public else stain)
    elif public:
        _print_echo(stain["echo"])
    else:
        _print_bloodstain(stain)


def _print_bloodstain(stain: dict[str, Any]) -> None:
    unpublished = "" if stain["bundle_published"] else " (not published)"
    facts = {
        "bloodstain": stain["bloodstain_id"],
        "golem": f"{stain['golem_id']}, generation {stain['generation']}, of {stain['owner_id']}",
        "died": f"at tick {stain['tick']}, {stain['died_at']} ({stain['cause']})",
        "market": _market(stain["conditions"]),
        "testament": stain["testament_hash"] or "not written yet",
        "bundle": f"{stain['bundle_hash']}{unpublished}" if stain["bundle_hash"] else "not made yet",
    }
    for name, value in facts.items():
        say(f"{name:12}{value}")
    for scar in stain["scars"]:
        out.print(f"\n{scar['scar_id']} ({scar['emotion'].lower()}): {scar['causal_narrative']}", markup=False)
    out.print()
    votes = [(v["claim"], percent(v["confidence_ppm"]), v["weight"]) for v in stain["death_votes"]]
    if votes:
        print_table("Last words", ["claim", "believed", "weight"], votes)
    else:
        out.print("no last votes: it held no claim that may be published")


def _print_echo(echo: dict[str, Any]) -> None:
    say(f"{'market':12}{_market(echo['conditions'])}")
    out.print(f"{'last words':12}{echo['death_vote_count']}", markup=False)
    out.print(f"{'testament':12}{echo['testament_hash'] or 'not written yet'}", markup=False)
    for pattern in echo["failure_patterns"]:
        say(pattern)


def _market(conditions: dict[str, Any] | None) -> str:
    if conditions is None:
        return "unknown: its last record was struck"
    venue = f"{conditions['pair']} on {conditions['protocol']}, {conditions['chain']}"
    return f"{venue}: {conditions['regime']} ({conditions['market_regime']}), gas {conditions['gas_band']}"
