"""Memory and rate over many episodes, as a picture in results/ and as a line on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).parent / "results" / "runner.svg"
WIDTH, HEIGHT, LEFT, TOP = 640, 130, 70, 24
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Sample:
    """How it was after so many episodes."""

    episodes: int
    memory: float
    """MiB."""
    rate: float
    """Episodes a second since the last sample."""


def write(samples: Sequence[Sample]) -> None:
    """Draw both curves, each from 0 on, so that flat looks flat."""
    named = {
        "MiB held": [sample.memory for sample in samples],
        "episodes a second": [sample.rate for sample in samples],
    }
    parts = [_panel(number, name, values) for number, (name, values) in enumerate(named.items())]
    height = len(parts) * (HEIGHT + 2 * TOP)
    last = samples[-1].episodes
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}'
        f'<text x="{WIDTH}" y="{height - 6}" text-anchor="end">{last} episodes</text></svg>\n'
    )
    for name, values in named.items():
        print(f"{name:>18} {''.join(_bar(v / max(values)) for v in values)} {values[-1]:.0f}")


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def _panel(number: int, name: str, values: Sequence[float]) -> str:
    top = TOP + number * (HEIGHT + 2 * TOP)
    step = (WIDTH - LEFT - 8) / max(1, len(values) - 1)
    most = max(values)
    points = " ".join(
        f"{LEFT + n * step:.1f},{top + HEIGHT * (1 - value / most):.1f}"
        for n, value in enumerate(values)
    )
    bottom = top + HEIGHT
    return (
        f'<text x="{LEFT}" y="{top - 8}">{name}</text>'
        f'<text x="{LEFT - 6}" y="{top + 6}" text-anchor="end">{most:.0f}</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<path d="M{LEFT},{top}V{bottom}H{WIDTH}" fill="none" stroke="#999"/>'
        f'<polyline points="{points}" fill="none" stroke="#06c" stroke-width="2"/>'
    )
