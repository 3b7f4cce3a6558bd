"""The failure modes of a language model, in the last lines of a run and in reports."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Run


def test_it_is_told_after_a_run_in_reports_and_side_by_side(
    cli: Run, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "silent.jsonl").write_text(json.dumps({"say": "I do not know."}) + "\n")
    (tmp_path / "idle.jsonl").write_text(json.dumps({"say": "```bash\ntrue\n```"}) + "\n")
    modes = {
        "silent": "never submits 4, never looks 4, no code in a reply 4",
        "idle": "repeats one action 4, never submits 4, never looks 4",
    }
    for name, told in modes.items():
        done = cli(
            *("run", "bash", "--data", data, "--agent", "try-again", "--max-turns", 4, "--quiet"),
            *("--model", f"scripted/{name}.jsonl", "--out", name),
        )
        assert f"What went wrong in the 4 episodes not solved: {told}." in done.stdout
        assert "Success by turns: 0.0 % within 1, 0.0 % within 2, 0.0 % in all." in done.stdout
    alone = cli("report", "idle").stdout
    assert "What went wrong" in alone and "repeats one action" in alone
    both = cli("report", "silent", "idle").stdout
    assert "no code in a reply" in both and "repeats one action" in both
