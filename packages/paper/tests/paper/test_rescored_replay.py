"""The recorded runs of 2023, rescored where they are to be had."""

from __future__ import annotations

import json
from pathlib import Path

from intercode_paper.rescored_runs_report import read_rows

from .test_rescored_runs import ROWS, rescored, write
from .upstream import UPSTREAM, needs_upstream


@needs_upstream
def test_the_recorded_python_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    assert rescored(UPSTREAM, "--env", "python", "--workers", "2", "--rows", str(rows)) == 0
    (made,) = read_rows(rows)
    assert (made.recorded, made.episodes) == (69, 117)
    assert made.counts["2023"].success_count == 69 and made.counts["default"].success_count == 63
    (kept,) = [run for run in read_rows(ROWS) if run.env == "python"]
    assert (made.counts, made.changes) == (kept.counts, kept.changes)


@needs_upstream
def test_recorded_bash_episodes(tmp_path: Path) -> None:
    """A run's file is copied, so that the folder has a single file."""
    file = UPSTREAM / "data/results/bash/gpt-3.5/ic_bash_react_10_turns_fs_3.json"
    write(tmp_path / "gpt-3.5" / file.name, json.loads(file.read_text()))
    rows = tmp_path / "rows.json"
    options = ["--env", "bash", "--limit", "2", "--rows", str(rows), "--results", str(tmp_path)]
    assert rescored(UPSTREAM, *options) == 0
    (made,) = read_rows(rows)
    assert (made.model, made.strategy, made.episodes) == ("gpt-3.5", "ReAct", 2)
    assert set(made.counts) == {"2023", "default", "reviewed"}
