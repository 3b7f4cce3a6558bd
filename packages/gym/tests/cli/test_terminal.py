"""On a terminal: a living line, and a person who types."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from intercode.cli.run_output import ProgressPrinter
from intercode.episode import Episode
from intercode.records import Outcome

from .conftest import command

ESCAPES = re.compile(r"\x1b\[(2K|1A|1m|0m|\?25[hl]|\?2004[hl])")
"""What rich and readline may send: lines written over, names of columns in bold, the cursor shown.
Nothing else may reach the terminal."""


def on_terminal(tmp_path: Path, typed: bytes, *arguments: object, code: int = 0) -> str:
    """What a terminal receives from a command."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
    )
    os.close(follower)
    os.write(leader, typed)
    told = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # the child has closed its side
            break
        told += block
    os.close(leader)
    assert child.wait(60) == code, told
    return told.decode()


def test_a_living_line(tmp_path: Path, data: Path) -> None:
    told = on_terminal(tmp_path, b"", "run", "bash", "--data", data, "--epochs", 20, "--show")
    states = re.findall(r"\r\x1b\[2K(\d+)/80  success [\d.]+ %(?: \(\d+-\d+\))?  [\d.]+/s", told)
    assert len(states) > 5 and states == sorted(states, key=int)
    assert re.search(r"│ \w+: ", told)
    assert "\x1b" not in ESCAPES.sub("", told)
    lines = re.findall(r"\x1b\[2K(\d+/80 [^\r]*)", told)
    assert lines and max(map(len, lines)) < 80


def test_what_a_model_takes_is_shown_and_what_it_took_before(tmp_path: Path, data: Path) -> None:
    (tmp_path / "rules.jsonl").write_text('{"say": "```bash\\necho hello\\n```"}\n')
    (tmp_path / "prices.json").write_text(
        json.dumps({"models": {"scripted/rules.jsonl": {"input": 1000, "output": 0}}})
    )
    command = ("run", "bash", "--data", data, "--agent", "single-turn", "--show", "--out", "run")
    model = ("--model", "scripted/rules.jsonl", "--prices", "prices.json")
    told = [on_terminal(tmp_path, b"", *command, *model, "--epochs", epochs) for epochs in (1, 2)]
    first, second = ([float(x) for x in re.findall(r"  \$([\d.]+)", part)] for part in told)
    assert 0 < first[0] < first[-1]
    assert first[-1] <= second[0] <= second[-1]
    assert "resuming a run: 4 of 8 episodes are done" in told[1]


def test_tokens_where_the_price_is_not_known() -> None:
    watcher = ProgressPrinter(quiet=True)
    episode = Episode("t", "?", "bash")
    for tokens, shown in (None, ""), (9_000, "9001 tokens"), (80_000, "89k"), (10**6, "1.1M"):
        if tokens is not None:
            talk = {"input_tokens": tokens, "output_tokens": 1, "cost": None}
            episode.metadata["model"] = talk
        watcher.episode(episode)
        assert shown in watcher.status() and "$" not in watcher.status()


def test_what_does_not_fit_is_left_out() -> None:
    watcher = ProgressPrinter(quiet=True)
    watcher.begin(10_000, [])
    episode = Episode("t", "?", "bash", status="error")
    episode.metadata["model"] = {"input_tokens": 999_999, "output_tokens": 1, "cost": 1234.5}
    for _ in range(2_000):
        watcher.episode(episode)
    whole, line, short = watcher.status(), watcher.status(79), watcher.status(50)
    assert re.fullmatch(r"2000/10000  success -  .*/s  \$2469000.00  errors 2000  .* left", whole)
    assert len(line) <= 79 and len(short) <= 50
    assert short == "2000/10000  success -  $2469000.00  errors 2000"


def test_the_nodes_of_a_cluster_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = ProgressPrinter()
    watcher.begin(10, [])
    assert "node" not in watcher.status()
    watcher.nodes(2, "one\x1b takes part")
    assert capsys.readouterr().err == "intercode: one\\x1b takes part\n"
    assert "  2 nodes" in watcher.status()
    watcher.nodes(1, "one is left out")
    assert "  1 node" in watcher.status()


def test_playing(tmp_path: Path, data: Path) -> None:
    typed = b"printf '\\033[2J'\necho hello\nsubmit\n:quit\n"
    told = on_terminal(tmp_path, typed, "play", "bash", "--data", data)
    assert "\\x1b[2J" in told and "\x1b[2J" not in told
    assert "submitted: reward 1.000" in told


@pytest.mark.parametrize("earlier", [False, True])
def test_attempts_at_one_task_get_no_interval_of_independent_episodes(earlier: bool) -> None:
    watcher = ProgressPrinter(quiet=True)
    episodes = [Episode("t", "?", "bash", status="submitted", epoch=epoch) for epoch in (0, 1)]
    watcher.begin(2, [Outcome.from_episode(one) for one in episodes] if earlier else [])
    if not earlier:
        watcher.episode(episodes[0])
        assert watcher.result() == "success 0.0 % (0-80)"
        watcher.episode(episodes[1])
    assert watcher.result() == "success 0.0 %"
