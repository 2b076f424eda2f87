"""A message about entries, derivations, bundles and heirs names the step with which the command succeeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.policy import Policy
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, ids, value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


def derivations_of(home: Path) -> dict[str, bool]:
    """Return the derivations on disk, and whether each is in force."""
    rows = json.loads(bardo("whatif", "--list", "--json", home=home))
    return {row["name"]: row["in_force"] for row in rows}


def test_an_unknown_golem_leads_to_the_golems_even_before_the_first_warehouse(founded: Path) -> None:
    listed = cure_in(bardo("remember", "nobody", "text", home=founded, expect=2))
    bardo(*cure_in(bardo(*listed, home=founded, expect=2), "derive"), home=founded)
    assert "g-1" in ids(bardo(*listed, home=founded))
    bardo("remember", "g-1", "text", home=founded)


def test_the_beginning_of_several_ids_is_continued(owned: Path) -> None:
    heir = belongings(owned, CORAL).heir
    entries = ids(bardo("grimoire", "list", heir, "--status", "all", home=owned))
    beginning = next(a[0] for a in entries if sum(b[0] == a[0] for b in entries) > 1)
    refused = bardo("lineage", beginning, home=owned, expect=2)
    assert "give more of the id" in refused
    bardo("lineage", value_in(refused, rf"\(({beginning}[0-9a-f]+),"), home=owned)


def test_the_lineage_of_an_entry_that_a_golem_never_held_names_its_holders(owned: Path) -> None:
    coral, pearl = belongings(owned, CORAL), belongings(owned, PEARL)
    refused = bardo("lineage", coral.entry, "--golem", pearl.golem, home=owned, expect=2)
    assert "omit --golem to list the golems that did" in refused
    assert coral.golem in bardo("lineage", coral.entry, home=owned)


def test_an_entry_of_a_dead_golem_is_overridden_in_its_heir(owned: Path) -> None:
    own = belongings(owned, CORAL)
    for entry in ids(bardo("grimoire", "list", own.golem, home=owned)):
        refused = bardo("grimoire", "pin", own.golem, entry, "--why", "x", home=owned, expect=2)
        if "override it in the heirs" in refused:
            break
    heir = value_in(refused, r"override it in the heirs that hold it: (\S+)")
    refused = bardo("grimoire", "retract", own.golem, entry, "--why", "x", home=owned, expect=2)
    bardo(
        "grimoire", "retract", value_in(refused, r"in the heirs that hold it: (\S+)"), entry, "--why", "x", home=owned
    )
    assert heir == own.heir


def test_a_bloodstain_of_a_living_golem_leads_to_the_dead(owned: Path) -> None:
    refused = bardo("bloodstain", belongings(owned, CORAL).heir, home=owned, expect=2)
    dead = ids(bardo(*cure_in(refused), home=owned))
    bardo("bloodstain", dead[0], home=owned)


def test_a_death_of_a_living_golem_leads_to_the_dead(owned: Path) -> None:
    refused = bardo("golem", "death", belongings(owned, CORAL).heir, home=owned, expect=2)
    bardo("golem", "death", ids(bardo(*cure_in(refused), home=owned))[0], home=owned)


def test_a_pull_from_a_living_golem_is_an_export(owned: Path) -> None:
    own = belongings(owned, CORAL)
    entry = ids(bardo("grimoire", "list", own.heir, "--status", "all", home=owned))[0]
    refused = bardo("library", "pull", own.heir, entry, "--why", "x", home=owned, expect=2)
    assert "is exported into the library" in bardo(*cure_in(refused), own.heir, entry, "--why", "x", home=owned)


def test_an_order_of_nothing_names_its_entries(owned: Path) -> None:
    words = ("library", "equip", "--owner", CORAL, "--why", "x")
    assert "name entries, or a kit by --kit" in bardo(*words, home=owned, expect=2)
    entries = ids(bardo("library", "list", "--owner", CORAL, home=owned))
    assert "wait for the owner's next golem" in bardo(*words, entries[0], home=owned)


def test_a_bundle_is_sold_to_another_known_owner(owned: Path) -> None:
    words = ("bundle", "consent", belongings(owned, CORAL).bundle, "--why", "x", "--owner", CORAL, "--to")
    assert "name another owner by --to" in bardo(*words, CORAL, home=owned, expect=2)
    bardo(*words, PEARL, home=owned)
    refused = bardo(*words, "amber", home=owned, expect=2)
    known = value_in(refused, r"a golem, a (\w+) or credit makes an owner known")
    bardo(*((known + "s", "owner", "amber")), home=owned)
    bardo(*words, "amber", home=owned)


def test_a_waiver_of_another_expectation_names_the_failed_ones(owned: Path) -> None:
    words = ("bundle", "waive", belongings(owned, CORAL).golem)
    refused = bardo(*words, "nothing", "--why", "x", home=owned, expect=2)
    failed = value_in(refused, r"it failed (\w+)")
    option = value_in(bardo(*words, failed, "--why", " ", home=owned, expect=2), r"add (--why)")
    assert f"{failed} is waived" in bardo(*words, failed, option, "x", home=owned)


def test_a_reorg_is_named_by_first_and_last_of_one_of_the_two(owned: Path) -> None:
    golem = belongings(owned, CORAL).golem
    rows = DerivationContext.open(owned).log.read_cycles(["observation"], golems=[golem])
    chain = rows["observation"][0].as_py()["chain"]
    words = ("reorg", golem, "--chain", chain)
    assert "give first and last of one of the two" in bardo(*words, home=owned, expect=2)
    assert re.search(r"is left out", bardo(*words, "--tick-from", "3", "--tick-to", "4", home=owned))


def test_the_model_in_force_embeds_again_by_the_named_option(owned: Path) -> None:
    words = ("reembed", "--model", "minilm")
    option = value_in(bardo(*words, home=owned, expect=2), r"give another --model, or (--again)")
    assert "is active instead of" in bardo(*words, option, home=owned)


def test_derivations_are_built_adopted_and_dropped_as_messages_say(lived: Path) -> None:
    (in_force,) = derivations_of(lived)
    refused = bardo("adopt", in_force, "--why", "x", home=lived, expect=2)
    bardo(*cure_in(refused), home=lived)
    assert "adopt another one first" in bardo("whatif", "--drop", in_force, home=lived, expect=2)
    golem = DerivationContext.open(lived).life("GolemBorn")["golem_id"][0].as_py()
    words = ("whatif", "--set", "decay.tactical_days=20")
    bardo(*words, "--golem", golem, home=lived)
    (part,) = (name for name, active in derivations_of(lived).items() if not active)
    assert "build it without --golem" in bardo("adopt", part, "--why", "x", home=lived, expect=2)
    bardo(*words, home=lived)
    bardo("adopt", part.partition(".")[0], "--why", "x", home=lived)
    bardo("whatif", "--drop", in_force, home=lived)
    assert in_force not in derivations_of(lived)


def test_a_side_derivation_too_many_replaces_a_dropped_one(founded: Path) -> None:
    limit = Policy().care.derivations_beside_max
    for days in range(20, 20 + limit):
        bardo("whatif", "--set", f"decay.tactical_days={days}", home=founded)
    words = ("whatif", "--set", "decay.tactical_days=50")
    refused = bardo(*words, home=founded, expect=2)
    listed = bardo(*cure_in(refused, "whatif --list"), home=founded)
    assert cure_in(refused, "whatif --drop")[-1] in listed
    bardo(*cure_in(refused, "whatif --drop"), home=founded)
    bardo(*words, home=founded)
