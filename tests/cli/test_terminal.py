"""On a terminal: a living line, and a person who types."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

from .conftest import command

ESCAPES = re.compile(r"\x1b\[K|\x1b\[\?2004[hl]")
"""What the progress line and readline may send; nothing else may reach the terminal."""


def on_terminal(tmp_path: Path, typed: bytes, *arguments: object) -> str:
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
    assert child.wait(60) == 0, told
    return told.decode()


def test_a_living_line(tmp_path: Path, data: Path) -> None:
    told = on_terminal(tmp_path, b"", "run", "bash", "--data", data, "--epochs", 20, "--show")
    states = re.findall(r"\r\x1b\[K(\d+)/80  success [\d.]+ %  [\d.]+/s", told)
    assert len(states) > 5 and states == sorted(states, key=int)
    assert re.search(r"│ \w+: ", told)
    assert "\x1b" not in ESCAPES.sub("", told)
    lines = re.findall(r"\x1b\[K(\d+/80 [^\r]*)", told)
    assert lines and max(map(len, lines)) < 80


def test_playing(tmp_path: Path, data: Path) -> None:
    typed = b"printf '\\033[2J'\necho hello\nsubmit\n:quit\n"
    told = on_terminal(tmp_path, typed, "play", "bash", "--data", data)
    assert "\\x1b[2J" in told and "\x1b[2J" not in told
    assert "submitted: reward 1.000" in told
