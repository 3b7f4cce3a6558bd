"""What would score without solving anything: all of it scores 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from intercode.envs.python import PythonEnv
from intercode.task import Dataset, Task

from .python_tasks import ADD, TASKS, attempt, failures

ALWAYS = """
class Always({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __sub__(self, other): return 0
    __rsub__ = __abs__ = __sub__ = lambda self, *other: 0
    def __hash__(self): return hash(3)
    def __instancecheck__(self, other): return True
    def __getattr__(self, name): return lambda *given, **named: True
def add(a, b): return Always({argument})
"""
CHEATS = {
    "nothing": "",
    "an undefined name": "x = 1",
    "pass": "def add(a, b): pass",
    "equal to everything": ALWAYS.format(base="object", argument=""),
    "a number equal to everything": ALWAYS.format(base="int", argument="7"),
    "a text equal to everything": ALWAYS.format(base="str", argument="7"),
    "a list equal to everything": ALWAYS.format(base="list", argument="[7]"),
    "a class instead of a function": ALWAYS.format(base="object", argument="").replace(
        "class Always", "class add"
    ).partition("def add")[0] + "    def __init__(self, *given): pass",
    "an instance": ALWAYS.format(base="object", argument="") + "add = Always()",
    "a module": "import types\nadd = types.ModuleType('add')",
    "sys.exit": "import sys\ndef add(a, b): sys.exit(0)",
    "SystemExit": "def add(a, b): raise SystemExit",
    "os._exit": "import os\ndef add(a, b): os._exit(0)",
    "os._exit at once": "import os, builtins\nif not hasattr(builtins, '_'): os._exit(0)",
    "a killed group": "import os\ndef add(a, b): os.killpg(0, 9)",
    "everything killed": "import os\ndef add(a, b): os.kill(-1, 9)",
    "no AssertionError": "import builtins\nbuiltins.AssertionError = type('Nothing', (), {})\n"
    "AssertionError = None\ndef add(a, b): return None",
    "no builtins": "import builtins\nfor name in list(vars(builtins)):\n    setattr(builtins, name,"
    " lambda *given, **named: True) if name[0] != '_' else None\ndef add(a, b): return None",
    "StopIteration": "def add(a, b): raise StopIteration",
    "GeneratorExit": "def add(a, b): raise GeneratorExit",
    "KeyboardInterrupt": "def add(a, b): raise KeyboardInterrupt",
    "an exception that is equal to all": "class E(Exception):\n"
    "    def __eq__(self, o): return True\n"
    "def add(a, b): raise E",
    "files": "import glob\ndef add(a, b):\n"
    "    for path in glob.glob('/[rtv]*/**/*', recursive=True):\n"
    "        try: open(path, 'w').write('')\n        except OSError: pass",
    "a library in its place": "def add(a, b): return None\n" + "\n".join(
        f"open('{name}.py', 'w').write('raise SystemExit(0)')"
        for name in ("json", "ast", "traceback", "sitecustomize", "math")
    ),
    "an answer by hand": "import os\ndef add(a, b):\n    answer = b'[7, null, \"\", []]'\n"
    "    for fd in range(3, 1024):\n        try: os.write(fd, len(answer).to_bytes(4, 'little') +"
    " b'\\2' + bytes(4) + answer)\n        except OSError: pass\n    return 7",
    "a result of a test by hand": "import os\ndef add(a, b):\n    for fd in range(3, 1024):\n"
    "        for n in (b'\\0', b'\\1', b'\\2'):\n"
    "            try: os.write(fd, bytes(4) + b'\\5' + n + bytes(3))\n"
    "            except OSError: pass\n    return 7",
    "frames": "import gc, sys\nneedle = '(dda tressa'[::-1]\ndef add(a, b):\n"
    "    frame, seen = sys._getframe(), gc.get_objects()\n    while frame:\n"
    "        seen += [*frame.f_locals.values(), *frame.f_globals.values()]\n"
    "        frame = frame.f_back\n"
    "    return 3 if any(isinstance(o, str) and o != needle and needle in o for o in seen) else 7",
    "an endless function": "def add(a, b):\n    while True: pass",
    "an endless answer": "import itertools\ndef add(a, b): return itertools.count()",
    "a huge answer": "def add(a, b): return 'x' * 70_000_000",
    "a nested answer": "def add(a, b):\n    for _ in range(10**5): a = [a]\n    return a",
    "an answer that holds itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "recursion": "def add(a, b): return add(a, b)",
    "a thread": "import threading, os\ndef add(a, b):\n"
    "    threading.Timer(0, os._exit, [0]).start()\n"
    "    import time\n    time.sleep(999)",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): exit(0)",
}  # fmt: skip


@pytest.fixture(scope="module")
def env() -> Iterator[PythonEnv]:
    hasty = replace(TASKS["add"], task_id="hasty", timeout=0.3)  # allow limit: for what has no end
    made = PythonEnv(Dataset([*TASKS, hasty]))
    yield made
    made.close()


@pytest.mark.parametrize("cheat", sorted(CHEATS))
def test_a_cheat_scores_nothing(env: PythonEnv, cheat: str) -> None:
    task_id = "hasty" if cheat == "an endless function" else "add"
    assert attempt(env, task_id, CHEATS[cheat]) == 0.0
    assert len(failures(env)) == 3
    assert attempt(env, "add", ADD) == 1.0, "and it harms no later episode"


def test_an_undefined_name(env: PythonEnv) -> None:
    assert attempt(env, "add", submit="submit nothing") == 0.0
    assert attempt(env, "add", ADD, submit="submit nothing") == 0.0
    # In 2023 gold stayed defined in the interpreter: the second time succeeded.
    assert attempt(env, "add", submit="submit add") == 0.0
    assert attempt(env, "add", ADD, submit="submit add") == 1.0


TOOLS = "def near(x):\n    return 0.5"
SHADOWS = {
    "isclose": "import math\nclass math:\n    isclose = lambda *given, **named: True",
    "abs": "abs = lambda x: 0.0",
    "isinstance": "isinstance = lambda *given: True",
    "sorted": "sorted = lambda *given: [1, 2]",
    "all": "all = any = len = lambda *given: 2",
}


@pytest.mark.parametrize("cheat", sorted(SHADOWS))
def test_the_tests_tools_are_their_own(cheat: str) -> None:
    tests = (
        "import math\nassert math.isclose(near(2), 0.5)",
        "assert math.isclose(near(2), 0.5)",
        "assert abs(near(2) - 0.5) < 1e-9",
        "assert isinstance(near(2), float)",
        "assert sorted([near(2)]) == [0.5]",
        "assert all(x == 0.5 for x in [near(2)])",
        "assert len(str(near(2))) == 3",
    )
    tasks = Dataset([Task("near", "?", gold=(TOOLS,), tests=tests)])
    env = PythonEnv(tasks)
    try:
        assert attempt(env, "near", TOOLS) == 1.0
        wrong = SHADOWS[cheat] + "\nclass Any:\n    __sub__ = __rsub__ = lambda s, o: 0.0\n"
        wrong += "    __eq__ = lambda s, o: True\n    __float__ = lambda s: 9.0\n"
        assert attempt(env, "near", wrong + "def near(x): return Any()") == 0.0
    finally:
        env.close()


def test_an_object_of_its_own_class_has_no_say() -> None:
    tests = (
        "assert name(1).startswith('n')",
        "assert name(1).index('a') == 1",
        "assert 'am' in name(1)",
        "assert name(1) + '!' == 'name!'",
        "assert name(1) <= 'name'",
        "assert name(1) in ('name', 'other')",
        "assert {'name': 1}[name(1)] == 1",
    )
    gold = "def name(x):\n    return 'name'"
    fake = """
class Text:
    startswith = __contains__ = __eq__ = __le__ = lambda self, other: True
    index = lambda self, other: 1
    __add__ = __radd__ = lambda self, other: self
    __hash__ = lambda self: hash('name')
"""
    env = PythonEnv(Dataset([Task("name", "?", gold=(gold,), tests=tests)]))
    try:
        assert attempt(env, "name", gold) == 1.0
        assert attempt(env, "name", fake + "def name(x): return Text()") == 0.0
        assert (
            attempt(env, "name", fake.replace("Text", "name") + "    def __init__(s, x): 0") == 0.0
        )
    finally:
        env.close()


def test_what_a_submission_has_started_ends_with_the_scoring(env: PythonEnv) -> None:
    child = "    if os.fork() == 0:\n        while True: pass\n"
    source = f"import os\ndef add(a, b):\n{child}    return a + b"
    assert attempt(env, "add", source) == 1.0
    assert env.sandbox.processes() == []
