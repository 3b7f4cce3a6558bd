"""The chart of README: episodes a second of InterCode and of other isolations, from rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from xml.sax.saxutils import escape

from measurements import ROOT, Figure, Measurement, figures

CHART = ROOT / "docs" / "images" / "episodes-per-second.svg"
BARS = {
    "bash.episodes": ("InterCode", "namespaces, filter and limits"),
    "release-2023.episodes": ("InterCode of 2023", "a Docker container"),
    "peers.containers": ("Docker", "a new container for each episode"),
    "peers.bubblewrap": ("bubblewrap, by hand", "namespaces only"),
}
"""Row → label of its bar, and its isolation; the first bar is ours."""
WIDTH, HEIGHT, MARGIN, PITCH, TOP = 420, 350, 16, 60, 66
"""Pixels. On a phone the picture has three quarters of its width, and letters of 11 pixels."""
LENGTH = 270
"""Pixels of the longest bar; its figure is right of it."""
STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#14181f}
.ground{fill:#fff;stroke:#d5dbe6}.title{font-size:18px;font-weight:600}.label{font-size:15px}
.figure{font-size:16px;font-weight:600}.note{font-size:14px;fill:#566074}
.bar{fill:#aab6cc}.ours{fill:#2457d6}.spread{stroke:#14181f;stroke-width:1.5}
@media (prefers-color-scheme: dark){
text{fill:#edf0f6}.ground{fill:#12151c;stroke:#475268}.note{fill:#a5afc0}
.bar{fill:#475268}.ours{fill:#7aa2ff}.spread{stroke:#edf0f6}}
"""
"""The colours of docs/picture.svg."""


def draw(measurements: Mapping[str, Measurement]) -> str:
    """Return the chart as an SVG, with its own background: light, or dark as the system is.

    Raises:
        ValueError: The bars are not of one machine and day, so their lengths cannot be compared.
    """
    rows = figures(measurements)
    bar_measurements = [measurements[name.partition(".")[0]] for name in BARS]
    if len({(entry.machine, entry.date) for entry in bar_measurements}) > 1:
        raise ValueError("the chart's bars need one machine and one day: measure all of them again")
    cores = re.search(r"[0-9]+ cores", bar_measurements[0].machine)
    maximum = max(rows[name].value or 0 for name in BARS)
    bars = [
        _bar(rows[name], position, LENGTH / maximum, *labels)
        for position, (name, labels) in enumerate(BARS.items())
    ]
    day = date.fromisoformat(bar_measurements[0].date)
    notes = (
        f"Reset, echo hello and score, on {cores[0] if cores else 'one machine'},",
        f"{day.day} {day:%B %Y}. Lines: lowest to maximum.",
    )
    title = "Bash episodes a second, one thread"
    texts = [f"{label}: {_figure(rows[name])}" for name, (label, _) in BARS.items()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title description">',
            f'<title id="title">{title}</title>',
            f'<desc id="description">{escape("; ".join(texts))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="8"/>',
            f'<text class="title" x="{MARGIN}" y="32">{title}</text>',
            *bars,
            *(
                f'<text class="note" x="{MARGIN}" y="{HEIGHT - 36 + 20 * line}">{text}</text>'
                for line, text in enumerate(notes)
            ),
            "</svg>\n",
        ]
    )


def _bar(row: Figure, position: int, scale: float, label: str, note: str) -> str:
    """Return a bar below its label, with the spread as a line, and the figure right of both."""
    value, low, high = (number or 0.0 for number in (row.value, row.low, row.high))
    top, middle = TOP + PITCH * position, TOP + PITCH * position + 18
    kind = "bar" if position else "bar ours"
    begin, end, length = (MARGIN + scale * number for number in (low, high, value))
    return (
        f'<text class="label" x="{MARGIN}" y="{top}">{escape(label)}'
        f'<tspan class="note">: {escape(note)}</tspan></text>'
        f'<path class="{kind}" d="M{MARGIN} {top + 8}H{length:.1f}v20H{MARGIN}z"/>'
        f'<path class="spread" d="M{begin:.1f} {middle}H{end:.1f}"/>'
        f'<text class="figure" x="{max(end, length) + 8:.1f}" y="{top + 24}">{_figure(row)}</text>'
    )


def _figure(row: Figure) -> str:
    """Return the row's figure, with two digits at least."""
    value = row.value or 0.0
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def write(measurements: Mapping[str, Measurement], path: Path = CHART) -> None:
    """Write the chart."""
    path.write_text(draw(measurements))
