"""A person as the agent of a run, at a terminal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode.episode import Episode
from intercode.records import read_episodes

from .conftest import command
from .test_terminal import on_terminal


def recorded(tmp_path: Path) -> list[Episode]:
    return list(read_episodes(tmp_path / "mine" / "episodes.jsonl"))


def test_a_person_is_recorded_like_any_agent(tmp_path: Path, data: Path) -> None:
    typed = b"echo h\\\nello\nsubmit\nprintf '\\033[2J\\377'\n:task\nskip\n\n\x04"
    arguments = ("run", "bash", "--data", data, "--agent", "human", "--out", "mine")
    told = on_terminal(tmp_path, typed, *arguments, code=130)
    assert "── hello ──" in told and "── bash_001 ──" in told and "── nasty ──" not in told
    assert "\\x1b[2J" in told and "\x1b" not in told
    assert "intercode resume mine" in told
    hello, touch = recorded(tmp_path)
    assert (hello.agent, hello.status, hello.success) == ("human", "submitted", True)
    assert [turn.action for turn in hello.turns] == ["echo h\\\nello"]
    assert (touch.status, touch.success) == ("skipped", False)
    assert touch.turns[0].observation == "\x1b[2J\udcff"
    # What was left is as if it had not been begun.
    told = on_terminal(tmp_path, b"skip\nskip\n", "resume", "mine", "--trust")
    assert [episode.task_id for episode in recorded(tmp_path)][2:] == ["bash_001", "nasty"]
    assert "── hello ──" not in told


def test_refused_before_anything_is_done(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    arguments = ["run", "bash", "--data", str(data), "--agent", "human", "--out", str(out)]
    assert main(arguments) == 2
    assert "a person at a terminal" in capsys.readouterr().err
    assert main([*arguments, "--workers", "2"]) == 2
    assert "--workers" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("env", "endless", "echo", "told"),
    [
        ("bash", "sleep 999; echo never", "echo still $((40 + 2))", "[interrupted: its processes"),
        ("python", "while True: pass\n", "print('still', 40 + 2)", "[interrupted: the interpreter"),
    ],
)
def test_an_interrupt_stops_the_command_and_not_the_task(
    tmp_path: Path, env: str, endless: str, echo: str, told: str
) -> None:
    arguments = command("play", env, "--limit", 1, "--timeout", 500)
    with subprocess.Popen(
        arguments, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as playing:
        assert playing.stdin is not None and playing.stdout is not None
        playing.stdin.write(f"{endless}\n{echo}\nsubmit\n")
        playing.stdin.flush()
        for line in playing.stdout:
            if "running … Ctrl-C interrupts it" in line:
                break
        playing.send_signal(signal.SIGINT)
        rest, _ = playing.communicate()
    assert playing.returncode == 0
    assert told in rest and "still 42\n" in rest and "never" not in rest
