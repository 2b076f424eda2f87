"""Prints the reports of reading commands, equal for facts of the home and for those of a server.

Facts of a server are read from JSON: their moments are texts, and so are all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bardo_pipeline.cli.output.answers import show_answer, show_lineage
from bardo_pipeline.cli.output.bundle_report import show_bundle, show_checks
from bardo_pipeline.cli.output.clade_report import show_beliefs, show_notes, show_pheromones
from bardo_pipeline.cli.output.death_report import show_death, show_due, show_graveyard, show_notices, show_successions
from bardo_pipeline.cli.output.dream_report import show_dreams
from bardo_pipeline.cli.output.golem_state import show_golem_report
from bardo_pipeline.cli.output.grimoire_report import show_entry, show_grimoire, show_similar
from bardo_pipeline.cli.output.library_report import show_library, show_library_item
from bardo_pipeline.cli.output.scar_report import show_bloodstain, show_scars
from bardo_pipeline.cli.output.status_report import show_status
from bardo_pipeline.cli.output.tables import print_json

SHOWN: Mapping[str, Callable[..., None]] = {
    "ask": show_answer,
    "bloodstain": show_bloodstain,
    "bundle checks": show_checks,
    "bundle show": show_bundle,
    "clade beliefs": show_beliefs,
    "clade notes": show_notes,
    "clade pheromones": show_pheromones,
    "dreams": show_dreams,
    "golem death": show_death,
    "golem due": show_due,
    "golem notices": show_notices,
    "golem show": show_golem_report,
    "golem successions": show_successions,
    "graveyard": show_graveyard,
    "grimoire list": show_grimoire,
    "grimoire show": show_entry,
    "library list": show_library,
    "library show": show_library_item,
    "lineage": show_lineage,
    "scars": show_scars,
    "similar": show_similar,
    "status": show_status,
}
"""Command -> how it prints its facts, with the options that concern only the printing."""


def show_report(command: str, facts: Mapping[str, Any] | Sequence[Any], *, as_json: bool, **options: Any) -> None:
    """Print the facts of a reading command as JSON, or in words and tables.

    Parameters
    ----------
    options : options of the command that concern only the printing
    """
    if as_json:
        print_json(facts)
    else:
        SHOWN[command](facts, **options)
