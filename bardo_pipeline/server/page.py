"""The page of a home: golems, what they know, deaths, and cost a day, with plots as inline SVG. Pure.

The page loads nothing: no script, no font and no image. Each text is escaped, and its control characters are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from html import escape
from typing import Any

from bardo_pipeline.visible_text import visible

SECURITY = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--paper:#fff;--soft:#667085;--line:#d7dce5;--bar:#3b6fd4;--dead:#c4553d}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--paper:#14171d;--soft:#98a2b3;--line:#333b49;--bar:#7aa2f7;
--dead:#e08a75}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p,figcaption,.soft{color:var(--soft)}
dl{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:1.5rem 0}dt{color:var(--soft);font-size:.85rem}
dd{margin:0;font-size:1.35rem}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
@media(min-width:50rem){th,td{min-width:10ch}}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
figure{margin:0}svg{width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}.bar{fill:var(--bar)}
.dead{fill:var(--dead)}.axis{stroke:var(--line)}input{font:inherit;padding:.3rem .5rem;width:28rem;max-width:100%}
"""

GOLEMS_SHOWN = 200


@dataclass(frozen=True)
class Overview:
    """Figures of the page. Dollars are exact sums in micro-dollars until they are shown.

    Parameters
    ----------
    golems : rows of GOLEM_SCHEMA
    knowledge : entry kind -> number of active entries
    texts : most confident active entries: golem, kind, confidence, text
    deaths : cause -> number of deaths
    cost_micros : day -> cost of the recorded ticks
    """

    title: str
    as_of: datetime | None
    cycle: int
    log_version: int
    lag_ticks: int
    golems: Sequence[dict[str, Any]]
    knowledge: dict[str, int]
    texts: Sequence[tuple[str, str, float, str]]
    deaths: dict[str, int]
    cost_micros: dict[date, int]


def overview_page(home: Overview) -> str:
    """Return the page as HTML."""
    living = [golem for golem in home.golems if golem["died_at"] is None]
    spent = sum(home.cost_micros.values())
    as_of = "no cycle is derived yet" if home.as_of is None else f"{home.as_of:%Y-%m-%d %H:%M} UTC"
    facts = [
        ("Golems alive", f"{len(living):,}"),
        ("Golems dead", f"{len(home.golems) - len(living):,}"),
        ("Active entries", f"{sum(home.knowledge.values()):,}"),
        ("Cost of all ticks", f"${spent / 1e6:,.2f}"),
    ]
    parts = [
        f"<h1>{escape(home.title)}</h1>",
        f"<p>As of {escape(as_of)}, cycle {home.cycle:,}, log version {home.log_version:,}; "
        f"{home.lag_ticks:,} recorded ticks are not derived.</p>",
        '<p><a href="/docs/data/">Data Docs</a> of bundles, <a href="/docs/dbt/">dbt docs</a> of marts, '
        '<a href="/live">live golems</a></p>',
        "<dl>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts) + "</dl>",
        "<h2>Cost a day</h2>",
        _bars([(f"{day:%m-%d}", micros / 1e6, f"{day}: ${micros / 1e6:,.4f}")
               for day, micros in sorted(home.cost_micros.items())[-60:]], "Dollars of inference and gas by day",
              "no record yet"),
        "<h2>What golems know</h2>",
        _bars([(kind, count, f"{kind}: {count:,}") for kind, count in sorted(home.knowledge.items())],
              "Active entries by kind", "no entry yet"),
        _table(["golem", "kind", "confidence", "entry"],
               [(golem, kind, f"{confidence:.0%}", text) for golem, kind, confidence, text in home.texts], numbers={2}),
        "<h2>Deaths</h2>",
        _bars([(cause, count, f"{cause}: {count:,}") for cause, count in sorted(home.deaths.items())],
              "Deaths by cause", "no death yet", style="dead"),
        "<h2>Golems</h2>",
        _table(["golem", "owner", "generation", "tick", "lifespan", "entries", "born", "died"],
               [_golem_row(golem) for golem in home.golems[:GOLEMS_SHOWN]], numbers={2, 3, 4, 5}),
    ]  # fmt: skip
    if len(home.golems) > GOLEMS_SHOWN:
        parts.append(f"<p>{len(home.golems) - GOLEMS_SHOWN:,} more: <code>GET /v1/golems</code> lists all.</p>")
    return _document(home.title, "\n".join(parts))


def live_page(golems: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of the golems of live runs as HTML: state, phase, mood, position, last decisions, budget."""
    states = [
        (golem["golem_id"], f"{golem['tick']:,}", golem["at"][:19].replace("T", " "), golem["state"], golem["phase"],
         f"{golem['emotion']} ({', '.join(f'{value:+.2f}' for value in golem['mood'])})", f"{golem['vitality']:.0%}",
         f"{golem['net_asset_value_micros'] / 1e6:,.2f}", "; ".join(golem["positions"]) or "none",
         f"{golem['spent_share']:.0%}",
         "-" if golem["prefetch_hit_rate"] is None else f"{golem['prefetch_hit_rate']:.0%}")
        for golem in golems
    ]  # fmt: skip
    decisions = [
        (golem["golem_id"], f"{each['tick']:,}", each["decision"], each["reason"],
         "; ".join([*each["actions"], *(f"steer: {intent}" for intent in each["steers"])]))
        for golem in golems for each in golem["decisions"]
    ]  # fmt: skip
    names = ["golem", "tick", "market time", "state", "phase", "mood", "vitality", "worth $", "position",
             "day's budget", "prefetch hits"]  # fmt: skip
    parts = [
        "<h1>Live golems</h1>",
        _table(names, states, numbers={1, 6, 7, 9, 10}) or "<p>No live run: <code>bardo live</code> starts one.</p>",
        "<h2>Last decisions</h2>" if decisions else "",
        _table(["golem", "tick", "decision", "reason", "actions and steers"], decisions, numbers={1}),
        '<p><a href="/">The home</a></p>',
    ]
    return _document("Live golems", "\n".join(parts))


def sign_in_page(fault: str | None = None, page: str = "/") -> str:
    """Return the form that asks for a token. page: the path that the browser asked for."""
    note = f"<p>{escape(fault)}</p>" if fault else ""
    return _document(
        "Bardo",
        f"<h1>Bardo</h1>{note}<p>Give a token of <code>bardo keys token OWNER</code>.</p>"
        '<form method="post" action="/">'
        f'<input name="page" type="hidden" value="{escape(page)}">'
        '<input name="token" type="password" autocomplete="off" aria-label="Token" required> '
        '<input type="submit" value="Open" style="width:auto"></form>',
    )


def _document(title: str, body: str) -> str:
    return visible(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n{body}\n'
        "</body></html>\n"
    )


def _golem_row(golem: dict[str, Any]) -> tuple[str, ...]:
    died = "alive" if golem["died_at"] is None else f"{golem['died_at']:%Y-%m-%d %H:%M}, {golem['cause']}"
    numbers = (golem["generation"], golem["tick"], golem["lifespan_ticks"], golem["entries_active"])
    return (golem["golem_id"], golem["owner_id"], *(f"{n:,}" for n in numbers), f"{golem['born_at']:%Y-%m-%d %H:%M}",
            died)  # fmt: skip


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[int]) -> str:
    if not rows:
        return ""

    def cells(tag: str, values: Sequence[str]) -> str:
        marks = (' class="n"' if i in numbers else "" for i in range(len(values)))
        return "".join(f"<{tag}{mark}>{escape(value)}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', names)}</tr></thead><tbody>{body}</tbody></table>"


def _bars(bars: Sequence[tuple[str, float, str]], caption: str, empty: str, *, style: str = "bar") -> str:
    """Return a bar chart: label, value and tooltip of each bar."""
    if not bars:
        return f"<p>{escape(caption)}: {escape(empty)}.</p>"
    width, height, base = 960.0, 180.0, 150.0
    step = width / len(bars)
    top_value = max(0.0, *(value for _, value, _ in bars))
    highest = top_value or 1.0
    every = max(1, len(bars) // 12)
    drawn = []
    for i, (label, value, tip) in enumerate(bars):
        tall = base * 0.9 * max(value, 0.0) / highest
        x, wide = i * step + step * 0.1, min(step * 0.8, 120.0)
        drawn.append(
            f'<rect class="{style}" x="{x:.1f}" y="{base - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
            f"<title>{escape(tip)}</title></rect>"
        )
        if i % every == 0:
            drawn.append(f'<text x="{x:.1f}" y="{base + 16:.0f}">{escape(label[:24])}</text>')
    top = f'<text x="0" y="11">{top_value:,.4g}</text>'
    line = f'<line class="axis" x1="0" y1="{base:.0f}" x2="{width:.0f}" y2="{base:.0f}"/>'
    return (
        f'<figure><svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(caption)}">'
        f"{top}{line}{''.join(drawn)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )
