"""The benchmark, at a tiny size: that it runs, and what it writes. Never how fast anything is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "benchmarks" / "bench.py"
PARTS = ("reset", "first action", "submit")
ROLES = tuple(f"CPU, {role}" for role in ("all", "host", "spawner", "process 1", "shell"))


def test_stepping_writes_every_figure_with_its_spread(tmp_path: Path) -> None:
    size = ["--only", "stepping", "--rounds", "2", "--episodes", "1"]
    done = subprocess.run(
        [sys.executable, BENCH, *size, "--results", tmp_path], capture_output=True, text=True
    )
    assert done.returncode in (0, 1) and not done.stderr  # 1: a target was missed

    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert list(rows)[:2] == ["/bin/true", "bash -c true"]
    for kind in ("bash", "sql", "python", "ctf"):
        for model in ("back to back", "20 ms of thought"):
            figures = {name: rows[f"{kind}, {model}: {name}"] for name in PARTS + ROLES}
            together = sum(figures[role]["figure"][0] for role in ROLES[1:])
            assert math.isclose(figures[ROLES[0]]["figure"][0], together)
    for name, row in rows.items():
        assert len(row["figure"]) == 2 and row["low"] <= row["value"] <= row["high"]
        assert all(map(math.isfinite, row["figure"]))
        # Ticks of the kernel are longer than the CPU time of an episode: these may come to nothing.
        assert row["low"] > 0 or name.endswith((ROLES[0], *ROLES[2:4])), name
        assert name in done.stdout
    against = rows["bash, back to back: reset"]
    assert against["target"].startswith("< 6 x bash -c true")
    ratios = sorted(
        one / floor
        for one, floor in zip(against["figure"], rows["bash -c true"]["figure"], strict=True)
    )
    assert against["note"].endswith(f"({ratios[0]:.2f} to {ratios[1]:.2f})")
