"""The sources of the marts. Data, apart from the dbt plugin, which only dbt's process can import quickly."""

DATABASE = "home"
"""Name of the attached database in memory, as in models/sources.yml."""

DERIVED = (
    "cycles",
    "grimoire",
    "lessons",
    "curation",
    "episodes",
    "dreams",
    "failures",
    "scars",
    "votes",
    "vote_causes",
    "consensus",
    "testaments",
    "library",
)
"""Names of the projections, in the order in which their versions are pinned, as sources `derived_<name>` of dbt.

`cycles` is pinned first, so the grimoire is no older; votes are pinned before the consensus that counts them.
"""
