"""The command `replay`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run, cli as cli, keys, parsed, warm as warm, write
from cli.test_commands import recorded


def test_replay(cli: Run, tmp_path: Path) -> None:
    data = write(tmp_path / "tasks.json", [{"query": "say hello", "gold": "echo hello"}])
    turns = [("echo bye", "bye\n", 0.67), ("echo hello", "HELLO\n", 1.0)]
    results = write(tmp_path / "results.json", {"0": recorded(*turns)})
    arguments = ["replay", "--env", "bash", "--data", data, "--results", results]
    told = parsed(cli(*arguments, "--image", "host", "--json"))
    expected = (
        "episodes turns reward_equal observation_equal success_recorded success_replayed "
        "success_agree seconds by_task mismatches"
    )
    assert set(told) >= set(expected.split())
    assert (told["episodes"], told["turns"], told["success_agree"]) == (1, 2, 1)
    counts = {"turns": 2, "reward_equal": 2, "observation_equal": 1, "success_agree": True}
    assert told["by_task"] == {"0": counts}
    [mismatch] = told["mismatches"]
    keys(
        mismatch,
        "task turn action observation_recorded observation_replayed reward_recorded "
        "reward_replayed",
    )
    assert (mismatch["turn"], mismatch["observation_replayed"]) == (1, "hello\n")
    table = cli(*arguments, "--image", "host").stdout
    assert "rewards equal (turns)" in table and "mismatches: 1 turn" in table
    assert "no episode 7" in cli(*arguments, "--image", "host", "--task", "7", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "--data FILE, or --upstream"), (("--upstream", "x"), "belong together")],
)
def test_wrong_usage(cli: Run, arguments: tuple[str, ...], message: str) -> None:
    done = cli("replay", "--results", "r.json", *arguments, code=2)
    assert message in done.stderr and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "see 'intercode replay --help'"
