# %% [markdown]
"""# Five questions to the warehouse of a home

The file is a notebook in the percent format: editors and Jupyter (with jupytext) run it cell by cell. As a script it
writes one SVG per question and a page `index.html` with all plots and tables:

    python examples/analysts/five_questions.py --home .bardo --out build/five-questions

It needs matplotlib (the extra `dev`). `bardo derive` builds the warehouse.
"""

# %%
from __future__ import annotations

import argparse
import html
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "five questions"  # equal marts give equal files

import matplotlib.pyplot as plt  # noqa: E402

GOOD, BAD, NEUTRAL = "#2a7f62", "#b5402f", "#6b7785"
SHOWN = 12
"""Maximum number of bars in a plot."""


@dataclass(frozen=True)
class Answer:
    """The answer to a question: one sentence, the rows behind it, and a plot."""

    name: str
    question: str
    sentence: str
    columns: list[str]
    rows: list[tuple[Any, ...]]
    figure: plt.Figure


def ask(marts: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows of a query."""
    cursor = marts.execute(sql)
    return [column[0] for column in cursor.description], cursor.fetchall()


def folded(text: str | None) -> str:
    """Return a text in lines of a label's width."""
    return textwrap.fill(text or "unknown entry", 76)


def dollars(amount: float) -> str:
    """Return an amount as text."""
    return f"-${-amount:,.2f}" if amount < 0 else f"${amount:,.2f}"


def plot(height: float = 4.0) -> tuple[plt.Figure, Any]:
    """Return an empty figure and its axes."""
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    axes.grid(axis="x", alpha=0.2)
    return figure, axes


def state_if_empty(axes: Any, rows: list[tuple[Any, ...]]) -> None:
    """Write a note into a plot without data."""
    if not rows:
        axes.text(0.5, 0.5, "no data in this home", ha="center", va="center", transform=axes.transAxes)


# %% [markdown]
# ## 1. Which warnings prevented losses?
#
# A verdict compares acting with holding thirty ticks later. If a golem obeyed a warning, the verdict states the loss
# that acting would have made, or the gain. A decision with several warnings counts in equal parts for each of them.

# %%
WARNINGS = """
with shares as (
    select
        unnest(warnings) as entry_id, warning_effect, prevented_loss_usd / len(warnings) as prevented,
        missed_gain_usd / len(warnings) as missed,
        if(warning_effect = 'ignored', effect_usd, 0) / len(warnings) as ignored
    from fct_decisions where warning_effect <> 'none' and is_verified
),
texts as (select entry_id, min(entry_text) as entry_text from fct_retrievals group by entry_id)
select
    entry_id, entry_text, count(*) filter (warning_effect <> 'ignored') as obeyed,
    count(*) filter (warning_effect = 'ignored') as ignored, sum(prevented) as prevented_usd,
    sum(missed) as missed_usd, sum(shares.ignored) as ignored_usd
from shares left join texts using (entry_id)
group by entry_id, entry_text order by sum(prevented) - sum(missed) desc, entry_id
"""


def warnings_that_prevented_losses(marts: duckdb.DuckDBPyConnection) -> Answer:
    """Compare prevented losses, missed gains and the effect of ignoring, by warning."""
    columns, rows = ask(marts, WARNINGS)
    shown = rows[:SHOWN][::-1]
    figure, axes = plot(1.5 + 0.5 * max(len(shown), 3))
    places, labels = range(len(shown)), [f"{row[0][:8]}\n{folded(row[1])}" for row in shown]
    axes.barh(places, [row[4] for row in shown], color=GOOD, label="loss prevented by obeying")
    axes.barh(places, [-row[5] for row in shown], color=NEUTRAL, label="gain missed by obeying")
    axes.barh([p - 0.3 for p in places], [row[6] for row in shown], height=0.2, color=BAD, label="effect of ignoring")
    axes.set_yticks(list(places), labels, fontsize=6)
    axes.set(xlabel="dollars")
    state_if_empty(axes, rows)
    axes.legend(fontsize=7)
    prevented, missed, ignored = (sum(row[i] for row in rows) for i in (4, 5, 6))
    best = sum(row[4] > row[5] for row in rows)
    sentence = (
        f"{best} of {len(rows)} warnings prevented more than they missed: obeying prevented {dollars(prevented)} and "
        f"missed {dollars(missed)}; acting against a warning had the effect {dollars(ignored)}."
    )
    return Answer("warnings", "Which warnings prevented losses?", sentence, columns, rows, figure)


# %% [markdown]
# ## 2. Which cost did a death have, and which knowledge did the heir keep?
#
# Dying is paid from the death reserve. The bottleneck selects entries for the bundle, and the heir receives them with
# lower confidence. An entry is kept while it is active in the heir.

# %%
DEATHS = """
with costs as (select golem_id, sum(cost_micros) / 1e6 as dying_usd from fct_dying group by golem_id),
kept as (
    select golem_id, count(*) as kept from fct_knowledge
    where origin_golem_id <> golem_id and generation > 0 group by golem_id
)
select
    deaths.golem_id, deaths.generation, deaths.cause, dying_usd, deaths.knowledge_at_death, bundle_entries,
    deaths.successor_id, heir.knowledge_at_birth as received, if(heir.golem_id is null, null, coalesce(kept, 0)) as kept
from fct_deaths as deaths
left join costs using (golem_id)
left join dim_golem as heir on heir.golem_id = deaths.successor_id
left join kept on kept.golem_id = deaths.successor_id
order by deaths.generation, deaths.golem_id
"""
DYING = """
select generation, dying_phase, avg(cost_micros) / 1e6 as cost_usd from fct_dying
group by generation, dying_phase, phase_number having sum(cost_micros) > 0 order by generation, phase_number
"""


def cost_of_deaths(marts: duckdb.DuckDBPyConnection) -> Answer:
    """Compare the entries at each death with those in the bundle, received and kept by the heir."""
    columns, rows = ask(marts, DEATHS)
    figure, (left, axes) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", width_ratios=(2, 3))
    _, costs = ask(marts, DYING)
    generations, phases = sorted({row[0] for row in costs}), dict.fromkeys(row[1] for row in costs)
    base = dict.fromkeys(generations, 0.0)
    for phase in phases:
        mean = {row[0]: row[2] for row in costs if row[1] == phase}
        heights = [mean.get(generation, 0.0) for generation in generations]
        left.bar(range(len(generations)), heights, bottom=list(base.values()), label=phase)
        base = {g: base[g] + height for g, height in zip(generations, heights, strict=True)}
    left.set_xticks(range(len(generations)), list(map(str, generations)))
    left.set(xlabel="generation", ylabel="mean dollars of a death")
    if costs:
        left.legend(fontsize=7)
    steps = ("at death", "in the bundle", "received", "active in the heir")
    with_heir = [row for row in rows if row[6] is not None]
    for row in with_heir:
        axes.plot(range(4), [row[4] or 0, row[5] or 0, row[7] or 0, row[8] or 0], color=NEUTRAL, alpha=0.4)
    means = [sum(row[i] or 0 for row in with_heir) / max(len(with_heir), 1) for i in (4, 5, 7, 8)]
    axes.plot(range(4), means, color=GOOD, marker="o", linewidth=2, label="mean")
    axes.set_xticks(range(4), steps)
    axes.set(ylabel="entries")
    state_if_empty(axes, with_heir)
    axes.legend(fontsize=7)
    paid = [row[3] for row in rows if row[3] is not None]
    sentence = (
        f"{len(rows)} deaths cost {dollars(sum(paid))} of their reserves; {len(with_heir)} had an heir, which received "
        f"{means[2]:.1f} of {means[0]:.1f} entries and holds {means[3]:.1f} of them at the end of the log, on average."
    )
    question = "Which cost did a death have, and which knowledge did the heir keep?"
    return Answer("deaths", question, sentence, columns, rows, figure)


# %% [markdown]
# ## 3. Which scars spread?
#
# A scar spreads if other golems of the owner hold an entry about the same situation. It failed to spread where the
# same failure was repeated.

# %%
SCARS = """
select
    scar_id, owner_id, causal_narrative, published, confidence_ppm / 1e6 as confidence, holder_count,
    bloodstain_holder_count, repeat_count, repeat_golem_count
from fct_scars order by holder_count desc, repeat_count, owner_id, scar_id
"""


def scars_that_spread(marts: duckdb.DuckDBPyConnection) -> Answer:
    """Compare the golems that hold an entry about a scar with the failures that repeated it."""
    columns, rows = ask(marts, SCARS)
    shown = rows[:SHOWN][::-1]
    figure, axes = plot(1.5 + 0.35 * max(len(shown), 4))
    places = range(len(shown))
    axes.barh(places, [row[5] for row in shown], color=GOOD, label="golems that hold an entry about it")
    axes.barh(places, [-row[7] for row in shown], color=BAD, label="failures that repeated it")
    axes.set_yticks(list(places), [f"{row[0]} ({row[3]})" for row in shown], fontsize=7)
    axes.set(xlabel="repetitions | holders")
    state_if_empty(axes, rows)
    axes.legend(fontsize=7)
    spread, repeated = sum(row[5] > 0 for row in rows), sum(row[7] > 0 for row in rows)
    sentence = f"{spread} of {len(rows)} scars reached another golem of the owner; {repeated} were repeated."
    return Answer("scars", "Which scars spread?", sentence, columns, rows, figure)


# %% [markdown]
# ## 4. Where does consensus disagree with outcomes?
#
# A proposition about an action states that acting pays or harms in a situation. Its verdicts are those of the same
# action in the same situation, of all golems. Propositions about levels (gas, volume) have no verdicts.

# %%
CONSENSUS = """
with situations as (
    select distinct
        proposition_id, entry.chain, entry.protocol, entry.pair, entry.action_type, entry.regime, entry.anomaly_band,
        entry.gas_band, entry.sign
    from fct_votes as votes join fct_knowledge as entry using (golem_id, entry_id)
    where entry.sign <> 0 and entry.action_type is not null
),
judged as (
    select
        proposition_id, count(*) as verdicts, avg((sign(effect_ppm) = situations.sign)::int) as agreeing_share,
        sum(situations.sign * effect_micros) / 1e6 as worth_usd
    from situations join fct_decisions as decisions
        on decisions.chain = situations.chain and decisions.protocol = situations.protocol
        and decisions.pair = situations.pair and decisions.is_verified
        and (decisions.action_type = situations.action_type or list_contains(alternatives, situations.action_type))
        and decisions.regime = coalesce(situations.regime, decisions.regime)
        and decisions.anomaly_band = coalesce(situations.anomaly_band, decisions.anomaly_band)
        and (
            coalesce(situations.gas_band, 'any') in ('any', decisions.gas_band)
            or situations.gas_band = 'not_dear' and decisions.gas_band <> 'dear'
            or situations.gas_band = 'not_cheap' and decisions.gas_band <> 'cheap'
        )
    group by proposition_id
)
select
    proposition_id, claim, consensus.confidence_ppm / 1e6 as confidence, vote_count, contradicted, verdicts,
    agreeing_share, worth_usd
from fct_consensus as consensus join judged using (proposition_id)
order by confidence - agreeing_share desc, proposition_id
"""


def consensus_against_outcomes(marts: duckdb.DuckDBPyConnection) -> Answer:
    """Compare the confidence of the clades in a proposition with the share of verdicts that agree."""
    columns, rows = ask(marts, CONSENSUS)
    figure, axes = plot()
    axes.plot([0, 1], [0, 1], color=NEUTRAL, linestyle=":", label="confidence equals the share")
    axes.scatter(
        [row[2] for row in rows], [row[6] for row in rows], s=[20 + 4 * row[5] for row in rows],
        c=[GOOD if row[7] >= 0 else BAD for row in rows], alpha=0.7,
    )  # fmt: skip
    axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02), xlabel="consensus confidence", ylabel="share of agreeing verdicts")
    state_if_empty(axes, rows)
    axes.legend(fontsize=7)
    worst = f" Widest: “{rows[0][1]}”" if rows and rows[0][2] > rows[0][6] else ""
    over = sum(row[2] > row[6] for row in rows)
    sentence = f"{over} of {len(rows)} judged propositions are believed more than their verdicts support.{worst}"
    return Answer("consensus", "Where does consensus disagree with outcomes?", sentence, columns, rows, figure)


# %% [markdown]
# ## 5. Which worth does retrieval have?
#
# An entry with a sign says to act or to hold. Its worth is that of doing so less that of the opposite, by the verdict
# on the decision that retrieved it; a decision counts once per retrieved entry.

# %%
RETRIEVAL = """
select
    kind, count(*) as retrieved, count(worth_micros) as judged, count(*) filter (is_useful) as useful,
    count(*) filter (is_misleading) as misleading, avg(is_followed::int) as followed_share,
    coalesce(sum(worth_usd), 0) as worth_usd, coalesce(sum(worth_usd) filter (is_followed), 0) as followed_usd,
    coalesce(sum(worth_usd) filter (not is_followed), 0) as not_followed_usd
from fct_retrievals group by kind order by kind
"""
RETRIEVAL_OVER_TIME = """
select
    kind, shown_at,
    sum(worth_usd) over (partition by kind order by shown_at, golem_id, tick, entry_id) as worth_usd
from fct_retrievals where worth_usd is not null order by kind, shown_at, golem_id, tick, entry_id
"""


def worth_of_retrieval(marts: duckdb.DuckDBPyConnection) -> Answer:
    """Sum the worth of retrieved entries over time, by kind."""
    columns, rows = ask(marts, RETRIEVAL)
    _, points = ask(marts, RETRIEVAL_OVER_TIME)
    figure, axes = plot()
    for kind in sorted({point[0] for point in points}):
        own = [point for point in points if point[0] == kind]
        axes.step([point[1] for point in own], [point[2] for point in own], where="post", label=kind)
    axes.axhline(0, color=NEUTRAL, linewidth=0.8)
    axes.set(ylabel="dollars, summed")
    figure.autofmt_xdate()
    state_if_empty(axes, points)
    if points:
        axes.legend(fontsize=7)
    retrieved, judged, useful, misleading = (sum(row[i] for row in rows) for i in (1, 2, 3, 4))
    worth, followed = sum(row[6] for row in rows), sum(row[7] for row in rows)
    sentence = (
        f"{judged:,} of {retrieved:,} retrieved entries have a verdict: {useful} were right, {misleading} wrong; doing "
        f"what they say was worth {dollars(worth)}, of which the golems took {dollars(followed)}."
    )
    return Answer("retrieval", "Which worth does retrieval have?", sentence, columns, rows, figure)


# %%
QUESTIONS: tuple[Callable[[duckdb.DuckDBPyConnection], Answer], ...] = (
    warnings_that_prevented_losses,
    cost_of_deaths,
    scars_that_spread,
    consensus_against_outcomes,
    worth_of_retrieval,
)


def cell(value: Any) -> str:
    """Return a value as a table cell."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<td>{html.escape(text)}</td>"


def page(answers: list[Answer], as_of: str) -> str:
    """Return the page with all plots and tables; it loads only the SVG files in its folder."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Five questions</title>",
        "<style>body{font:15px system-ui;max-width:60rem;margin:auto}table{border-collapse:collapse;font-size:12px}"
        "td,th{border-bottom:1px solid #ddd;padding:2px 8px;text-align:left}img{width:100%}</style>",
        f"<h1>Five questions</h1><p>As of {html.escape(as_of)}.</p>",
    ]
    for answer in answers:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in answer.columns)
        body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in answer.rows[: 3 * SHOWN])
        parts.append(
            f"<h2>{html.escape(answer.question)}</h2><p>{html.escape(answer.sentence)}</p>"
            f'<img src="{answer.name}.svg" alt="{html.escape(answer.question)}"><table><tr>{head}</tr>{body}</table>'
        )
    return "\n".join(parts) + "\n"


def main() -> None:
    """Answer the questions for a home, and write the page."""
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--home", type=Path, default=Path(os.environ.get("BARDO_HOME", ".bardo")))
    options.add_argument("--out", type=Path, default=Path("build/five-questions"))
    given = options.parse_args()
    warehouse = given.home / "warehouse.duckdb"
    if not warehouse.exists():
        raise SystemExit(f"{warehouse} does not exist: `bardo derive --home {given.home}` builds it")
    given.out.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(str(warehouse), read_only=True, config={"threads": 1}) as marts:  # a fixed order of sums
        answers = [question(marts) for question in QUESTIONS]
        ((as_of,),) = marts.execute("select coalesce(max(as_of)::varchar, 'no event') from dim_golem").fetchall()
    for answer in answers:
        answer.figure.savefig(given.out / f"{answer.name}.svg", metadata={"Date": None})
        plt.close(answer.figure)
        print(f"{answer.question} {answer.sentence}")
    (given.out / "index.html").write_text(page(answers, as_of))
    print(f"page: {given.out / 'index.html'}")


if __name__ == "__main__":
    main()
