"""``python -m intercode_sandbox``, as a user types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import intercode_sandbox
from sources import SOURCES
from waiting import PATIENCE, eventually, new_marker, sleepers

pytestmark = pytest.mark.ordinary

INTERRUPTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
"""A ``sitecustomize`` that interrupts the process when it imports a module."""


def call(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "intercode_sandbox", *arguments],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_program_has_its_output_its_code_and_its_changes() -> None:
    script = "echo out; echo err >&2; echo x > /root/new; exit 7"
    done = call("run", "--changes", "--", "bash", "-c", script)
    assert (done.returncode, done.stdout) == (7, b"out\n")
    assert done.stderr == b"err\nadded file /root/new\n"


def test_it_has_an_input_only_if_asked_for() -> None:
    assert call("run", "-i", "--", "cat", stdin=b"a\xff").stdout == b"a\xff"
    assert call("run", "--", "cat", stdin=b"a").stdout == b""


def test_limits() -> None:
    done = call("run", "--timeout", "0.3", "--", "sleep", "999")
    assert done.returncode == 124
    assert b"time limit of 0.3 s" in done.stderr and b"--timeout" in done.stderr
    cut = call("run", "--output", "4K", "--", "seq", "9999").stdout
    assert cut.startswith(b"1\n2\n") and len(cut) < 5000


def test_the_help_states_each_default() -> None:
    text = " ".join(call("run", "--help").stdout.decode().split())
    options = [part for part in text.partition("options:")[2].split(" -")[2:] if " " in part]
    silent = [part for part in options if "default" not in part]
    assert silent == ["-help show this help message and exit"]
    for default in ("seconds; default: 10", "512M; default: 1024M", "number; default: 256"):
        assert default in text


def test_an_interrupt_ends_it_and_leaves_nothing() -> None:
    marker = new_marker()
    command = [sys.executable, "-m", "intercode_sandbox", "run", "--", "sleep", marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert eventually(lambda: sleepers(marker))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 130
    assert eventually(lambda: not sleepers(marker))


@pytest.mark.parametrize(
    "module",
    ["argparse", *(f"intercode_sandbox.{name}" for name in ("base", "units", "native.provider"))],
)
def test_an_interrupted_import_ends_it_without_a_word(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    done = subprocess.run(
        [sys.executable, "-m", "intercode_sandbox", "run", "--", "true"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *map(str, SOURCES)])},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory", "9", "--", "true"), "limit 'memory' must be at least 32M"),
        (("--image", "nothing", "--", "true"), "there is no image called 'nothing'"),
        (("--user", "nobody-here", "--", "true"), "nobody-here"),
        (("--sandbox", "mine", "--", "true"), "no sandbox provider 'mine'"),
        (("--network", "a b", "--", "true"), "network"),
        ((), "arguments are required: program"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: tuple[str, ...], message: str) -> None:
    done = call("run", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr.decode() and b"Traceback" not in done.stderr


def test_the_machine_is_checked() -> None:
    done = call("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"ok    sandbox " in done.stdout
    assert (
        call("--version").stdout.decode() == f"intercode_sandbox {intercode_sandbox.__version__}\n"
    )
