"""`bardo golem birth`: records a golem that an outside runtime runs, and so founds its owner."""

from __future__ import annotations

from typing import Annotated

from rich.markup import escape
from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import bounds_of, moment_of, named_owner, now, root_for_owner
from bardo_pipeline.cli.output.tables import out
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import births_of
from bardo_pipeline.derivation.succession.birth_events import UNKNOWN, record_founder
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.custody.authority import NO_GOLEM
from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home


def record_birth(
    golem: Annotated[str, Argument(help="Id of the new golem, which its runtime writes into every record.")],
    lineage: Annotated[str | None, Option(help="Name of its line of descent (default: the golem's id).")] = None,
    market: Annotated[str, Option(help="Market that its records observe.")] = UNKNOWN,
    budget: Annotated[
        float, Option(min=0.01, max=opt.DOLLARS_MAX, help="Capital and credits at birth in dollars.")
    ] = 50.0,
    lifespan: Annotated[str | None, Option(help="Bounds of its lifespan in ticks, LOW-HIGH.")] = None,
    at: Annotated[str | None, Option(help="Moment of the birth (default: now); not after its first record.")] = None,
    home: opt.Home = None,
) -> None:
    """Record the birth of a golem of --owner whose records come from an outside runtime; create the home if missing.

    The birth founds an unknown owner.
    """
    if golem == EVERY_GOLEM:
        raise ConfigError(NO_GOLEM)
    if (owner := named_owner()) is None:
        raise ConfigError(f"golem {golem}: name its owner: --owner NAME")
    moment, founding = now(), Founding((owner,), round(budget * 1e6), lifespan_ticks=bounds_of(lifespan))
    Home.create(root_for_owner(home), Policy(), moment)
    context = DerivationContext.open(root_for_owner(home))
    _, is_new = record_founder(
        context, golem, owner_id=owner, lineage_id=lineage or golem, founding=founding,
        market=market, at=moment if at is None else moment_of(at, "--at"), now=moment,
    )  # fmt: skip
    if births_of(context, [golem])[golem][0].owner_id != owner:
        raise ConfigError(f"golem {golem}: the id belongs to a golem of another owner: choose another")
    outcome = f"is born to owner {escape(owner)}" if is_new else "was born before: nothing was changed"
    out.print(f"[bold]{escape(golem)}[/] {outcome}")
