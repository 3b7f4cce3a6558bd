"""README, typed as it stands, on a machine with Git and Python and nothing else of ours."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from docs.pages import OBSERVED, Block, blocks, check_output, check_python, commands
from first_hour.conftest import REPOSITORY, Someone, publish, variables
from intercode.models.scripted import Rule, script
from intercode_integrations.testing import Line, ScriptedServer
from waiting import PATIENCE

README = REPOSITORY / "README.md"
ADDRESS = "https://github.com/intercode-gym/intercode"
TYPED = """\
state="$HOME/.terminal"
[ ! -e "$state" ] || . "$state"
eval "$0"
code=$?
{ declare -px; printf 'cd %q\\n' "$PWD"; } > "$state"
exit $code
"""
"""Runs a command as a terminal does: directory and variables last until the next command."""
REPLIES = script(
    [Rule(Line("Thought: look first.\nAction: execute[ls]"), turn=0), Rule(Line("Action: submit"))]
)


@pytest.fixture
def reader(tmp_path: Path) -> Someone:
    """A user with Python, and with a Git that finds this checkout at the published address."""
    machine, home = tmp_path / "machine", tmp_path / "home"
    (machine / "bin").mkdir(parents=True)
    home.mkdir()
    python = machine / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys._base_executable)} "$@"\n')  # type: ignore[attr-defined]
    python.chmod(0o755)
    publish(REPOSITORY, tmp_path / "published")
    user = Someone(machine, home, env=variables(machine, home))
    user.file(".gitconfig", f'[url "{tmp_path / "published"}"]\n\tinsteadOf = {ADDRESS}\n')
    return user


def test_readme(reader: Someone) -> None:
    """Each block runs in README's order, also those that `tests/docs` leaves out."""
    with ScriptedServer(REPLIES) as server:
        reader = replace(reader, env={**reader.env, "OPENAI_BASE_URL": server.url})
        for block in blocks(README):
            if block.language == "console":
                for command, stated in commands(block):
                    run = visit if command.startswith("intercode view ") else type_command
                    check_output(stated, run(reader, command), block.where)
            elif block.language == "python":
                run_python(reader, block)
    assert len(server.exchanges) > 57  # the bundled Bash tasks


def type_command(reader: Someone, command: str) -> str:
    """Return what a command prints."""
    done = reader.run("bash", "-c", TYPED, command)
    return done.stdout + done.stderr


def run_python(reader: Someone, block: Block) -> None:
    """Run a Python block in the environment that README has installed."""
    program = reader.file(f"block_{block.line}.py", block.text)
    command = f"python {shlex.quote(str(OBSERVED))} {shlex.quote(str(program))}"
    check_python(block, type_command(reader, command))


def visit(reader: Someone, command: str) -> str:
    """Open the page that a command serves, then end the command by Ctrl-C."""
    with subprocess.Popen(
        ["bash", "-c", TYPED, command],
        cwd=reader.home,
        env=reader.env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE) as page:
                assert b"<html" in page.read()
        finally:
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        return address + process.stdout.read()
