"""The report's style sheet: light or dark as the reader's system is, safe for colour-blind eyes, and plain on paper.

The frame of every report: one HTML file that loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from simulator.files import write_whole

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Of pages with a script: they may load nothing, whatever a transcript holds."""

# Okabe and Ito's palette, darkened to be read on white and lightened to be read on black.
PAPER_COLOURS = {
    "ground": "#fff", "panel": "#fff", "ink": "#000", "soft": "#444", "rule": "#ccc",
    "a": "#0072b2", "b": "#c24e00", "c": "#00805d", "d": "#a8407f", "e": "#8a6d00", "f": "#3f8ec4", "g": "#555",
    "before": "#9aa7b4", "user": "#f2f6fa", "agent": "#fff",
}  # fmt: skip
"""For paper and for pictures by themselves."""
LIGHT = {**PAPER_COLOURS, "panel": "#f6f7f9", "ink": "#1b1f24", "soft": "#5c6570", "rule": "#dfe3e8", "user": "#eef4f9"}
DARK = {
    "ground": "#14171b", "panel": "#1c2026", "ink": "#e6e9ed", "soft": "#9da7b3", "rule": "#323942",
    "a": "#56b4e9", "b": "#f0883e", "c": "#2fbf91", "d": "#e08cc0", "e": "#d9b93b", "f": "#9fd0f0", "g": "#b5b5b5",
    "before": "#7b8794", "user": "#1b2733", "agent": "#20252c",
}  # fmt: skip


def variables(colours: Mapping[str, str]) -> str:
    """The colours as CSS."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


COLOURS = f"""
:root {{ color-scheme: light dark; {variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}
@media print {{ :root {{ color-scheme: light; {variables(PAPER_COLOURS)} }} }}
"""

WORDS = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); }
body { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
p { margin: 0 0 .6em; }
@media (max-width: 623px) { main { padding: 24px 16px 48px; } }
h1 { font-size: 25px; line-height: 1.35; font-weight: 600; margin: 6px 0 8px; max-width: 38em; text-wrap: pretty; }
h2 { font-size: 18px; margin: 44px 0 4px; }
h3 { font-size: 14px; margin: 0 0 2px; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
pre { background: var(--panel); padding: 12px 16px; border-radius: 8px; white-space: pre-wrap; overflow-wrap: anywhere; }
a { color: var(--a); }
summary { cursor: pointer; color: var(--soft); }
.where, .lead, .note, figcaption { color: var(--soft); }
.where { margin: 0; }
.note, figcaption { font-size: 13px; }
.none { color: var(--soft); font-style: italic; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: 12px; font-size: 14px; }
th, td { text-align: left; padding: 5px 28px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { font-weight: 500; color: var(--soft); }
td.num, th.num { text-align: right; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px; margin: 22px 0; }
.facts { border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
.facts div { box-shadow: 0 0 0 1px var(--rule); padding: 10px 14px; }
.facts dt, .facts small { color: var(--soft); font-size: 12.5px; }
.facts dd { margin: 0; font-size: 19px; font-variant-numeric: tabular-nums; }
.grid-2, .grid-3, .pair { display: grid; gap: 22px; align-items: start; }
.grid-3 { grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); }
.grid-2, .pair { grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
.alarm { border-left: 4px solid var(--b); padding: 6px 14px; background: var(--panel); margin: 8px 0; }
.alarm summary { color: var(--ink); }
.alarm ul { margin-top: 6px; }
.quiet { border-left-color: var(--c); }
.know { border-left: 4px solid var(--e); padding: 6px 14px; background: var(--panel); margin: 14px 0; font-size: 14px; }
ul { margin: 4px 0 8px; padding-left: 20px; }
.wide + h3, .note + h3 { margin-top: 22px; }
.wide th, .wide td { padding-right: 18px; white-space: nowrap; }
.wide th.num, .wide th.list { white-space: normal; }
.wide tr:first-child th { vertical-align: bottom; }
.wide td:last-child, .wide th:last-child { padding-right: 4px; }
.wide td.list { white-space: normal; min-width: 13em; }
"""

FIGURES = """
figure { margin: 14px 0 0; min-width: 0; }
.wide, .scroll { overflow-x: auto; background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
.wide, .scroll { background-position: left, right, left, right; }
.wide, .scroll { background-size: 40px 100%, 40px 100%, 10px calc(100% - 2px), 10px calc(100% - 2px); }
.wide, .scroll { background-image:
  linear-gradient(to right, var(--ground) 40%, transparent), linear-gradient(to left, var(--ground) 40%, transparent),
  linear-gradient(to right, var(--before), transparent), linear-gradient(to left, var(--before), transparent); }
figcaption { margin-top: 2px; }
svg.figure { display: block; width: 100%; height: auto; }
.full svg { min-width: 864px; }
@media (max-width: 540px) { .hero + figcaption::before { content: "Scroll sideways to see all of it. "; } }
@media (max-width: 911px) { .full + figcaption::before { content: "Scroll sideways to see all of it. "; } }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; }
svg.drawn text { fill: var(--ink); }
svg.drawn { stroke-linejoin: round; }
svg .grid { stroke: var(--rule); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg polyline.a { stroke: var(--a); }
svg .dot.a { fill: var(--a); }
"""

TRANSCRIPTS = """
.transcript { border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
.transcript header { padding: 12px 16px; background: var(--panel); display: grid; grid-template-columns: 1fr auto; column-gap: 12px; }
.transcript header p { margin: 0; color: var(--soft); font-size: 13px; }
.spark { grid-row: 1 / 3; grid-column: 2; width: 110px; height: 34px; align-self: center; }
.turn { padding: 9px 16px; border-top: 1px solid var(--rule); }
.turn.user { background: var(--user); }
.turn.agent { background: var(--agent); }
.turn p { margin: 0; }
.who, .heard { font-size: 12px; color: var(--soft); }
.thought { font-style: italic; color: var(--soft); font-size: 13.5px; }
.heard span, .emotion { border: 1px solid var(--rule); border-radius: 9px; padding: 0 7px; }
.heard span { margin-right: 4px; }
.emotion { color: var(--ink); border-color: var(--soft); font-variant-numeric: tabular-nums; }
.up { color: var(--a); font-weight: 600; }
.down { color: var(--b); font-weight: 600; }
"""

PAPER = """
@media print {
  body { font-size: 10pt; }
  main { padding: 0; max-width: none; }
  .grid-3 { grid-template-columns: repeat(3, 1fr); }
  .facts { grid-template-columns: repeat(auto-fit, minmax(105px, 1fr)); }
  .wide th, .wide td { white-space: normal; padding-right: 9px; font-size: 8.5pt; }
  .wide, .scroll { overflow: visible; background-image: none; }
  .scroll svg { min-width: 0 !important; }
  .hero + figcaption::before, .full + figcaption::before { content: none; }
  .grid-2, .pair { grid-template-columns: repeat(2, 1fr); }
  figure, tr, .turn, .facts, .alarm { break-inside: avoid; }
  h2, h3, header { break-after: avoid; }
  details:not(.alarm) { display: none; }
}
"""

VIEWER = """
body.viewer { height: 100vh; overflow: hidden; }
.viewer main { max-width: 1500px; height: 100%; padding: 18px 24px 0; display: flex; flex-direction: column; }
.viewer h1 { margin: 0 0 6px; }
.filters { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: end; padding: 10px 14px; }
.filters { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; }
.filters label { display: flex; flex-direction: column; font-size: 12.5px; color: var(--soft); }
.checks { display: flex; gap: 12px; }
.filters .check { flex-direction: row; align-items: center; gap: 5px; }
.viewer input, .viewer select, .viewer button { font: inherit; font-size: 13.5px; color: var(--ink); background: var(--ground); }
.viewer input, .viewer select, .viewer button { border: 1px solid var(--rule); border-radius: 6px; padding: 3px 8px; }
.viewer input[type=search] { width: 175px; }
.filters select { max-width: 150px; }
.viewer input[type=number] { width: 64px; }
.viewer button { cursor: pointer; }
.viewer :focus-visible { outline: 2px solid var(--a); outline-offset: 1px; }
.range { display: flex; gap: 4px; }
.tally { margin: 8px 0; font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
.panes { flex: 1; min-height: 0; display: grid; grid-template-columns: minmax(340px, 440px) 1fr; gap: 22px; padding-bottom: 18px; }
#list { overflow-y: auto; border: 1px solid var(--rule); border-radius: 8px; }
#rows { position: relative; }
.row { position: absolute; left: 0; right: 0; height: 52px; padding: 5px 12px; display: flex; gap: 12px; align-items: center; }
.row { border-bottom: 1px solid var(--rule); cursor: pointer; font-size: 13.5px; line-height: 1.35; }
.row:hover { background: var(--panel); }
.row.chosen { background: var(--user); box-shadow: inset 4px 0 0 var(--a); }
.row .words { flex: 1; min-width: 0; }
.row .words > * { display: block; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.row b { font-weight: 500; }
.row small { color: var(--soft); font-size: 12px; }
.row .end { text-align: right; font-variant-numeric: tabular-nums; }
.row .end > * { display: block; }
.row .spark { flex: none; width: 74px; height: 34px; }
#detail { overflow-y: auto; padding: 0 8px 24px 2px; }
#detail > * { max-width: 820px; }
#detail h2 { margin: 0 0 2px; overflow-wrap: anywhere; }
#detail .note { margin: 0 0 .3em; overflow-wrap: anywhere; }
#detail header > p:not(.note) { margin: .5em 0; }
#detail pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.course { display: block; width: 100%; max-width: 640px; height: auto; margin: 4px 0; }
.relatives button { margin: 0 4px 4px 0; padding: 1px 8px; font-variant-numeric: tabular-nums; }
.relatives button.chosen { border-color: var(--a); color: var(--a); font-weight: 600; }
.viewer .transcript { margin: 10px 0 16px; }
.viewer .turn:first-child { border-top: 0; }
.said { white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: var(--b); color: var(--ground); border-radius: 2px; }
.turn details { margin: 2px 0; font-size: 13px; }
.turn details ol { margin: 2px 0 6px; padding-left: 22px; }
.same { color: var(--soft); }
@media (max-width: 860px) {
  body.viewer { height: auto; overflow: visible; }
  .viewer main { height: auto; padding: 14px 12px; }
  .panes { grid-template-columns: 1fr; }
  #list { height: 45vh; }
}
@media print {
  body.viewer { height: auto; overflow: visible; }
  .filters, #list { display: none; }
  .viewer main, #detail { height: auto; overflow: visible; display: block; }
  .panes { display: block; }
}
"""
"""The page of all transcripts, on top of what the report has."""

STYLE = COLOURS + WORDS + FIGURES + TRANSCRIPTS + PAPER
"""All of it."""


def write_page(path: Path, *, title: str, body: str) -> Path:
    """Writes a page whole or not at all; returns its path."""
    return write_whole(path, document(title, body))


def document(title: str, body: str, *, style: str = STYLE, has_script: bool = False, of_class: str = "") -> str:
    """The page with its style sheet.

    Args:
        has_script: the page has a script, so that its head forbids it to load anything.
        of_class: the body's class, where its style sheet asks for one.
    """
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    guard = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' if has_script else ""
    head = f"<head>{meta}{guard}<title>{escape(title)}</title><style>{style}</style></head>"
    start = f'<body class="{of_class}">' if of_class else "<body>"
    return f'<!doctype html>\n<html lang="en">{head}\n{start}<main>\n{body}\n</main></body></html>\n'
