"""The worker's source runs under every Python from 3.8 that this machine has."""

from __future__ import annotations

import ast
import json
import os
import struct
import subprocess
import sys

import pytest

from intercode.interpreters import python_start
from intercode.interpreters.inside import wire
from pythons import program

SENT = sorted({name for names in python_start._WORKER_MODULES.values() for name in names})


@pytest.mark.parametrize("name", SENT)
def test_its_source_has_nothing_newer_than_3_8(name: str) -> None:
    ast.parse(python_start._source(name), feature_version=(3, 8))


def test_it_runs() -> None:
    programs = [program(f"3.{n}") for n in range(8, 15)]
    assert sys.executable in programs
    for found in filter(None, programs):
        check_that_it_runs(found)


def check_that_it_runs(found: str) -> None:
    sources = [
        (f"{python_start._PACKAGE}.{name}", python_start._source(name))
        for name in python_start._WORKER_MODULES[python_start.SESSION]
    ]
    facts = json.dumps({"modules": sources, "cwd": "/", "limit": 1000}).encode()
    actions = [b"x = 20\nx + 1", b"def f():\n    return 1 / 0\nf()", b"exit(3)", b"x"]
    data = struct.pack("=I", len(facts)) + facts
    data += b"".join(wire.frame(0, n, action) for n, action in enumerate(actions))
    read, write = os.pipe()
    # The numbers that it reads and writes are its caller's to arrange.
    shell = 'exec 230<&0 231>&"$0" 0</dev/null; exec "$1" -c "$2"'
    with os.fdopen(read, "rb") as answers:
        done = subprocess.run(
            ["bash", "-c", shell, str(write), found, python_start._BOOTSTRAP],
            input=data,
            stdout=subprocess.PIPE,
            pass_fds=[write],
        )
        os.close(write)
        frames = wire.MessageStreamParser(1 << 20).feed(answers.read())
    assert frames == [(wire.STARTED, 0, b""), (1, 0, b""), (2, 1, b""), (4, 2, b"3"), (1, 3, b"")]
    lines = [line for line in done.stdout.decode().splitlines() if set(line) - set(" ^~")]
    assert lines == [
        "21",
        "Traceback (most recent call last):",
        '  File "<action 1>", line 3, in <module>',
        "    f()",
        '  File "<action 1>", line 2, in f',
        "    return 1 / 0",
        "ZeroDivisionError: division by zero",
        "20",
    ]
