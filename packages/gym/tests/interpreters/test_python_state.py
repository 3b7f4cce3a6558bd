"""What an action shows, and what lives on from one to the next."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from intercode.errors import ActionError, ImageError, TaskError, UsageError
from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import provider
from intercode_sandbox import get_provider
from waiting import PATIENCE

from .conftest import OpenPython

pytestmark = pytest.mark.ordinary

SHOWN = {
    "1 + 1": "2\n",
    "x = 5": "",
    "x = 5\nx": "5\n",
    "None": "",
    "'text'": "'text'\n",
    "print('a'); 'b'": "a\n'b'\n",
    "for i in range(2):\n    i": "",
    "'doc'": "'doc'\n",
    "": "",
    "# nothing": "",
    "print('é \\u2028 \\x0c')\n1": "é \u2028 \x0c\n1\n",
    "print('no line end', end='')": "no line end",
    "__name__": "'__main__'\n",
    "import sys; sys.argv, sys.path[0]": "([''], '')\n",
    "import os; os.getcwd(), os.environ['HOME']": "('/root', '/root')\n",
    "open('/tmp/f', 'w').write('x')": "1\n",
    "import random; random.random() != random.random()": "True\n",
    "import os, threading; threading.main_thread().native_id == os.getpid()": "True\n",
    "import os, random\nrandom.seed(1); a = random.random(); random.seed(1)\n"
    "if os.fork() == 0: os._exit(random.random() == a)\nos.wait()[1]": "0\n",
    "import sqlite3; sqlite3.connect(':memory:').execute('select 1').fetchone()": "(1,)\n",
    "import asyncio\nasync def f(): return 3\nasyncio.run(f())": "3\n",
    "import pickle\nclass A: x = 1\npickle.loads(pickle.dumps(A())).x": "1\n",
    "import statistics, email.message, xml.dom.minidom; statistics.mean([1, 2])": "1.5\n",
    "import multiprocessing as m; m.get_context('fork').Pool(2).map(abs, [-1])": "[1]\n",
    "import inspect\ndef f(): return 1\ninspect.getsource(f)": "'def f(): return 1\\n'\n",
    "import inspect, json; 'class JSONDecoder' in inspect.getsource(json.decoder)": "True\n",
    "import doctest\ndef f():\n  '''\n  >>> 1\n  1\n  '''\ndoctest.testmod().attempted": "1\n",
}


def test_no_two_draw_the_same_numbers(python: PythonInterpreter) -> None:
    other = PythonInterpreter(python.sandbox)
    draw = "import random; random.random()"
    drawn = {one.execute(draw).output for one in (python, other)}
    other.close()
    assert len(drawn) == 2


@pytest.mark.parametrize("action", SHOWN)
def test_what_is_shown(python: PythonInterpreter, action: str) -> None:
    done = python.execute(action)
    assert done.observation == SHOWN[action]
    assert (done.ok, done.notes, done.info) == (True, (), {})


def test_names_live_on(python: PythonInterpreter) -> None:
    for action in (
        "import math",
        "def area(r):\n    return math.pi * r * r",
        "f = open('/tmp/f', 'w+')",
    ):
        assert python.execute(action).ok
    assert python.execute("round(area(1), 2)").observation == "3.14\n"
    python.execute("f.write('kept')\nf.seek(0)")
    assert python.execute("f.read()").observation == "'kept'\n"
    assert python.execute("_").observation == "'kept'\n"
    python.execute("x = [1]")
    assert python.execute("_").observation == "'kept'\n"


def test_future_statements_live_on(python: PythonInterpreter) -> None:
    python.execute("from __future__ import annotations")
    assert (
        python.execute("def f(x: unknown): pass\nf.__annotations__['x']").output == b"'unknown'\n"
    )


def test_streams_keep_their_order(python: PythonInterpreter) -> None:
    action = """
import os, subprocess, sys
print('1', end=' ')
print('2', end=' ', file=sys.stderr)
os.system('printf "3 "')
subprocess.run(['printf', '4 '])
os.write(1, b'5 ')
sys.stdout.buffer.write(b'6 ')
if os.fork() == 0:
    print('7', end=' ')
    os._exit(0)
os.wait()
print('8')
"""
    assert python.execute(action).output == b"1 2 3 4 5 6 7 8\n"


def test_a_traceback_shows_what_was_written(python: PythonInterpreter) -> None:
    python.execute("import json\ndef load(text):\n    return json.loads(text)")
    done = python.execute("x = 1\nload('{')")
    lines = [line for line in done.observation.splitlines() if set(line) - set(" ^~")]
    assert lines[:6] == [
        "Traceback (most recent call last):",
        '  File "<action 2>", line 2, in <module>',
        "    load('{')",
        '  File "<action 1>", line 3, in load',
        "    return json.loads(text)",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
    ]
    assert not done.ok
    assert python.execute("x").output == b"1\n"


def test_a_chained_traceback(python: PythonInterpreter) -> None:
    text = python.execute(
        "try:\n    1 / 0\nexcept Exception as e:\n    raise ValueError('x') from e"
    )
    assert "ZeroDivisionError" in text.observation
    assert "direct cause" in text.observation
    assert "intercode" not in text.observation


@pytest.mark.parametrize(
    ("action", "line"),
    [("1 +", "    1 +"), ("if x\n    pass", "    if x"), ("x = 'a", "    x = 'a")],
)
def test_a_syntax_error_has_its_place(python: PythonInterpreter, action: str, line: str) -> None:
    said = python.execute(action).observation.splitlines()
    assert said[0].startswith('  File "<action 1>", line 1')
    assert said[1] == line
    assert set(said[2]) <= set(" ^")
    assert said[3].startswith("SyntaxError: ")


def test_nothing_of_an_action_with_a_syntax_error_runs(python: PythonInterpreter) -> None:
    assert not python.execute("x = 1\n(yield)").ok
    assert "NameError" in python.execute("x").observation


def test_what_an_action_writes_can_be_imported_at_once(python: PythonInterpreter) -> None:
    for number in range(3):
        name = f"module{number}"
        python.execute(f"open('{name}.py', 'w').write('x = {number}')")
        assert python.execute(f"import {name}; {name}.x").output == b"%d\n" % number
    python.execute("open('module0.py', 'w').write('x = 7')\nimport importlib")
    assert python.execute("importlib.reload(module0).x").output == b"7\n"
    assert python.execute("import os; os.path.exists('__pycache__')").output == b"False\n"


def test_a_prelude_runs_first(open_python: OpenPython) -> None:
    python = open_python(prelude="limit = 3\nprint('not shown')")
    assert python.execute("limit").observation == "3\n"
    python.execute("import os; os._exit(0)")
    assert python.execute("limit").observation == "3\n"


def test_a_prelude_that_fails(open_python: OpenPython) -> None:
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        open_python(prelude="1 / 0")


def test_a_nul(python: PythonInterpreter) -> None:
    with pytest.raises(ActionError, match="NUL"):
        python.execute("x = '\0'")


def test_an_image_without_that_program() -> None:
    sandbox = provider().start()
    try:
        with pytest.raises(ImageError, match="no-python"):
            PythonInterpreter(sandbox, "no-python")
    finally:
        sandbox.close()


def test_any_image_will_do() -> None:
    sandbox = provider().start("scratch")
    python = PythonInterpreter(sandbox)
    try:
        assert python.execute("import csv, asyncio; 1 + 1").observation == "2\n"
    finally:
        python.close()
        sandbox.close()


def test_a_provider_that_has_not_loaded_it() -> None:
    sandbox = get_provider().start()
    try:
        with pytest.raises(UsageError, match="PRELOAD"):
            PythonInterpreter(sandbox)
    finally:
        sandbox.close()


def test_one_that_ends_in_a_process_with_very_many_files(python: PythonInterpreter) -> None:
    """It may have hundreds of sandboxes: more than `select` can wait for."""
    with ExitStack() as held:
        for _ in range(1100):
            held.enter_context(open(os.devnull))
        for _ in range(2):  # the second one was started among them
            said = python.execute("import os; os._exit(3)").observation
            assert "ended with exit code 3" in said


def test_one_whose_start_outlasts_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its action is interrupted like any other: an interrupt would end what only starts."""
    monkeypatch.setattr("intercode.interpreters.python._GRACE_SECONDS", PATIENCE)
    sandbox = provider().start()
    script = b'#!/bin/sh\nsleep 0.4\nexec /usr/bin/python3 "$@"\n'
    sandbox.write_file("/root/slow", script, 0o755)
    python = PythonInterpreter(sandbox, "/root/slow")
    done = python.execute("while True: pass", 0.1)  # allow limit: it has no end
    assert done.info == {"timed_out": True, "interrupted": True}
    assert python.execute("1 + 1", PATIENCE).observation == "2\n"
    python.close()
    sandbox.close()
