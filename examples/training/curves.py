"""Draw the learning curves of runs: ``python curves.py OUT… --picture curves.svg``.

It needs matplotlib. Runs of one arm, which differ by their seeds, make one curve: their mean, and
a band from the least to the most.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot

Curves = dict[str, dict[int, list[float]]]
"""Arm → step → percent of the validation tasks solved, one number for each run."""


def main(argv: Sequence[str] | None = None) -> None:
    """Draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("outs", type=Path, nargs="+", metavar="OUT", help="the folder of a run")
    parser.add_argument("--picture", type=Path, required=True, help="the file: .svg, .png, .pdf")
    args = parser.parse_args(argv)
    draw(read(args.outs), args.picture)


def read(outs: Sequence[Path]) -> Curves:
    """Return the curves of some runs' ``curves.jsonl``."""
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for out in outs:
        for line in (out / "curves.jsonl").read_text(encoding="utf-8").splitlines():
            point = json.loads(line)
            curves[point["arm"]][point["step"]].append(100 * point["solved"] / point["of"])
    return curves


def draw(curves: Curves, path: Path) -> None:
    """Draw a line for each arm."""
    pyplot.switch_backend("svg")  # no display is needed
    pyplot.rcParams["svg.hashsalt"] = "intercode"  # the same picture from the same curves
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for arm, points in curves.items():
        steps = sorted(points)
        (line,) = axes.plot(steps, [fmean(points[step]) for step in steps], marker="o", label=arm)
        least, most = ([end(points[step]) for step in steps] for end in (min, max))
        axes.fill_between(steps, least, most, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel="% of validation tasks solved", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
