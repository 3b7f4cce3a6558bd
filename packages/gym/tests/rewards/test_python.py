"""The Python reward: what of a submission counts, and what tests can do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest

from envs.haste import haste
from intercode.envs.python import PythonEnv
from intercode.errors import SandboxError
from intercode.interpreters.inside.grader import TEST
from intercode.interpreters.inside.submission import LOAD
from intercode.interpreters.python_start import PythonWorkerProcess, provider
from intercode.rewards import python_run
from intercode.rewards.python_plan import make_plan
from intercode.rewards.python_run import GradingSandbox, SubmissionTestRun
from intercode.task import Dataset, Task
from waiting import PATIENCE

OK = "ok"
TRIED: dict[str, tuple[str, str]] = {
    "numbers": ("def f(*x): return x", "assert f(1, -2.5, 10**40, 1j) == (1, -2.5, 10**40, 1j)"),
    "texts": ("def f(*x): return x", r"assert f('a\ud800\0', b'\xff') == ('a\ud800\0', b'\xff')"),
    "containers": (
        "def f(x): return x",
        "for x in ({1: {2}}, [(1,), frozenset({1})], {(1, 2): None}, range(3), bytearray(b'a')):\n"
        "    assert f(x) == x and type(f(x)) is type(x)",
    ),
    "the library's types": (
        "def f(x): return x",
        "from collections import *\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "import datetime as d\n"
        "for x in (Counter('aab'), OrderedDict(a=1), deque([1]), Decimal('1.10'), Fraction(1, 3),\n"
        "          d.date(2020, 1, 2), d.datetime(2020, 1, 2, 3), d.timedelta(1.5), d.time(1)):\n"
        "    assert f(x) == x and type(f(x)) is type(x)",
    ),
    "infinities": ("def f(x): return x", "assert f(float('inf')) > 1e308 and f(float('nan')) != 1"),
    "a named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "assert f() == (1, 2) and f().x == 1 and f()[1] == 2 and len(f()) == 2 and f() == P(1, 2)",
    ),
    "an enumeration": (
        "import enum\nclass E(enum.IntEnum):\n    A = 3\ndef f(): return E.A",
        "assert f() == 3 and E.A == f() and E(3) == E.A and f() < 4 and f() + 1 == 4",
    ),
    "arguments in place": (
        "def f(x):\n    x[0].append(9)\n    x.reverse()\n    x.append(1)",
        "x = y = [[0], [5]]\nf(x)\nassert x == [[5], [0, 9], 1] and y is x",
    ),
    "a matrix in place": (
        "def f(m):\n    for row in m: row.reverse()",
        "m = [[1, 2], [3, 4]]\nrow = m[0]\nf(m)\nassert m == [[2, 1], [4, 3]] and row == [2, 1]",
    ),
    "a dict and a set in place": (
        "def f(d, s): d.update(b=2); d.pop('a'); s.clear()",
        "d, s = {'a': 1}, {1}\nf(d, s=s)\nassert (d, s) == ({'b': 2}, set())",
    ),
    "an exception": (
        "def f(x):\n    if x < 0: raise ValueError('negative', x)\n    return x",
        "try:\n    f(-1)\nexcept ValueError as e:\n    assert e.args == ('negative', -1)\n"
        "else:\n    assert False\nassert f(1) == 1",
    ),
    "an exception of its own": (
        "class Base(Exception): pass\nclass E(Base, KeyError):\n"
        "    def __init__(self, code):\n        super().__init__(code)\n        self.code = code\n"
        "def f(): raise E(7)",
        "for kind in (E, Base, KeyError):\n    try: f()\n    except kind as e: assert e.code == 7\n"
        "    else: assert False",
    ),
    "the library's exception": (
        "import json\ndef f(): json.loads('{')",
        "import json\ntry: f()\nexcept json.JSONDecodeError: pass\nelse: assert False",
    ),
    "a generator": (
        "def f(n):\n    for i in range(n): yield i * i",
        "assert list(f(2000))[-1] == 1999 ** 2\nassert next(f(5)) == 0\nassert sum(f(4)) == 14\n"
        "g = f(3)\nassert [next(g), next(g)] == [0, 1] and 4 in f(3)",
    ),
    "an endless generator": (
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "import itertools\nassert list(itertools.islice(f(), 5)) == [0, 1, 2, 3, 4]",
    ),
    "a failing generator": (
        "def f():\n    yield 1\n    raise ValueError",
        "seen = []\ntry:\n    for x in f(): seen.append(x)\nexcept ValueError: seen.append('e')\n"
        "assert seen == [1, 'e']",
    ),
    "a closure": (
        "def f(n):\n    return lambda x: x + n",
        "assert f(3)(4) == 7 and callable(f(3))",
    ),
    "a callback": (
        "def f(g, xs):\n    return [g(x) for x in xs]",
        "assert f(lambda x: x * 2, [1, 2]) == [2, 4] and f(str, [1]) == ['1']\n"
        "seen = []\nf(seen.append, [1, 2])\nassert seen == [1, 2]\n"
        "assert f(lambda x: f(lambda y: y + x, [1]), [10]) == [[11]]",
    ),
    "a decorator": (
        "def f(g):\n    def inner(*a):\n        inner.calls += 1\n        return g(*a)\n"
        "    inner.calls = 0\n    return inner",
        "@f\ndef g(x): return x + 1\nassert g(1) == 2 and g(2) == 3 and g.calls == 2",
    ),
    "a callback that fails": (
        "def f(g):\n    try: return g()\n    except Exception as e: return 'caught'",
        "assert f(lambda: 1 / 0) == 'caught'",
    ),
    "a type": ("def f(x): return type(x)", "assert f(1) is int and f('') == str"),
    "what it prints": (
        "def f(): print('hello'); return 1",
        "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\n"
        "assert out.getvalue() == 'hello\\n'",
    ),
    "a coroutine": (
        "async def f(x): return x + 1",
        "import asyncio\nasync def g(): return await f(1)\nassert asyncio.run(g()) == 2",
    ),
    "a variable": ("answer = {'a': [1]}\nclass f: pass", "assert answer == {'a': [1]}"),
    "a list of objects": (
        "class N:\n    def __init__(self, v, n=None): self.v, self.n = v, n\n"
        "def f(n):\n    out = []\n    while n: out.append(n); n = n.n\n    return out",
        "a = N(1, N(2))\nassert [n.v for n in f(a)] == [1, 2] and f(a)[0] is a and f(a)[0] == a\n"
        "a.n.v = 5\nassert f(a)[1].v == 5 and a in f(a) and len({a, a.n}) == 2",
    ),
    "a container class": (
        "class f:\n    def __init__(self): self.d = {}\n    def __len__(self): return len(self.d)\n"
        "    def __getitem__(self, k): return self.d[k]\n"
        "    def __setitem__(self, k, v): self.d[k] = v\n"
        "    def __delitem__(self, k): del self.d[k]\n"
        "    def __contains__(self, k): return k in self.d\n"
        "    def __iter__(self): return iter(self.d)\n    def __str__(self): return 'box'\n"
        "    def __enter__(self): return self\n    def __exit__(self, *e): self.d.clear()",
        "b = f()\nb['x'] = 1\nassert b['x'] == 1 and len(b) == 1 and 'x' in b and 'y' not in b\n"
        "assert list(b) == ['x'] and str(b) == 'box' and bool(b)\ndel b['x']\nassert not b\n"
        "with b as c:\n    c[1] = 2\nassert len(b) == 0\ntry: b[3]\nexcept KeyError: pass\n"
        "else: assert False",
    ),
    "an ordered class": (
        "import functools\n@functools.total_ordering\nclass f:\n"
        "    def __init__(self, v): self.v = v\n    def __eq__(self, o): return self.v == o.v\n"
        "    def __lt__(self, o): return self.v < o.v\n"
        "    def __neg__(self): return f(-self.v)\n    def __radd__(self, o): return o + self.v",
        "assert f(1) < f(2) <= f(2) and max(f(1), f(3)).v == 3 and (-f(2)).v == -2\n"
        "assert sorted([f(2), f(1)])[0].v == 1 and 1 + f(2) == 3",
    ),
    "inheritance": (
        "class A: pass\nclass B(A): pass\ndef f(): return B()",
        "assert isinstance(f(), A) and isinstance(f(), B) and issubclass(B, A)\n"
        "assert not isinstance(3, A) and type(f()) is not A",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def grade() -> Iterator[Any]:
    """Tries one task; the failures by test, or `OK`."""
    made: list[PythonEnv] = []

    def try_one(
        task: Task, *actions: str, submit: str = "submit", hasty: str = "", **options: Any
    ) -> Any:
        env = PythonEnv(Dataset([task]), **options)
        made.append(env)
        env.reset()
        for action in (*actions, submit):
            with haste(env) if action == hasty else nullcontext():
                reward = env.step(action)[1]
        assert env.episode.score is not None
        env.close()
        failed = env.episode.score.detail.get("failed", {})
        count = len(task.tests) + len(task.metadata.get("cases", ()))
        assert reward == pytest.approx(1 - len(failed) / count)
        return failed or OK

    yield try_one
    for env in made:
        env.close()


def task(tests: Any, gold: str = "", **metadata: Any) -> Task:
    given = (tests,) if isinstance(tests, str) else tuple(tests)
    return Task("t", "?", gold=(gold,) if gold else (), tests=given, metadata=metadata)


@pytest.mark.parametrize("what", TRIED)
def test_a_right_submission_passes(grade: Any, what: str) -> None:
    source, test = TRIED[what]
    assert grade(task(test, source), source) == OK


def test_the_session_is_what_counts(grade: Any) -> None:
    one = task("assert double(3) == 6", "def double(x): return 2 * x")
    assert grade(one, "factor = 2", "def double(x):\n    return factor * x") == OK
    assert grade(one, "def double(x): return 0", "def double(x): return 2 * x") == OK
    assert grade(one, "def double(x): return 2 * x\ndouble(1) / 0") == OK
    assert grade(one, "def double(x): return 2 * x", "import os; os._exit(0)") == {
        "0": "NameError: name 'double' is not defined"
    }


def test_of_an_interrupted_action_the_definitions_count(grade: Any) -> None:
    one = task("assert double(3) == 6", "def double(x): return 2 * x")
    endless = "def double(x): return 2 * x\nwhile True: pass"
    # The first action is there when the interpreter is: its start is not to be in haste.
    assert grade(one, "0", endless, hasty=endless) == OK


def test_a_name_may_be_given(grade: Any) -> None:
    one = task(["assert double(3) == 6", "assert double(0) == 0"], "def double(x): return 2 * x")
    assert grade(one, "def twice(x): return 2 * x") != OK
    assert grade(one, "def twice(x): return 2 * x", submit="submit twice") == OK


def test_each_test_counts_for_itself(grade: Any) -> None:
    one = task([f"assert half({n}) == {n / 2}" for n in range(4)], "def half(n): return n / 2")
    failed = grade(one, "import os\ndef half(n):\n    if n == 2: os._exit(0)\n    return n / 2")
    assert failed == {"2": "the submission ended the process that it runs in"}


def test_after_three_late_tests_the_rest_is_not_run(grade: Any) -> None:
    one = task(["assert f() == 1"] * 5, "def f(): return 1")
    failed = grade(one, "def f():\n    while True: pass", hasty="submit")
    assert [why.partition(" ")[0] for why in failed.values()] == ["not"] * 5
    assert failed["2"].startswith("not done within")
    assert failed["3"].startswith("not run")


def test_cases(grade: Any) -> None:
    cases = [
        {"input": [1, 2], "expected": [1, [2]]},
        {"input": {"a": 0.1, "b": 0.2}, "expected": [0.1, [0.2]], "tolerance": 1e-9},
        {"input": [3, 4], "checker": "def check(input, output):\n    return output[0] == input[0]"},
    ]
    one = task((), cases=cases, entry_point="pair")
    assert grade(one, "def pair(a, b): return (a, (b,))") == OK
    assert set(grade(one, "def pair(a, b): return (a, b)")) == {"0", "1"}
    assert set(grade(one, "def pair(a, b): return 0")) == {"0", "1", "2"}
    lies = "class Y:\n    __getitem__ = lambda *a: Y()\n    __eq__ = __bool__ = lambda *a: True\n"
    assert set(grade(one, lies + "def pair(a, b): return Y()")) == {"0", "1", "2"}
    assert grade(one, "def mine(a, b): return [a, [b]]", submit="submit mine") == OK


def test_a_checker_is_told_of_the_input_as_it_was(grade: Any) -> None:
    check = "def check(given, output):\n    return output == sorted(given[0])"
    one = task((), cases=[{"input": [[3, 1]], "checker": check}], entry_point="order")
    assert set(grade(one, "def order(xs):\n    xs.clear()\n    return xs")) == {"0"}
    assert grade(one, "def order(xs):\n    xs.sort()\n    return xs") == OK


def test_no_exception_ends_the_tests_own_loops(grade: Any) -> None:
    loops = (
        "for got, want in zip(map(f, [1]), [2]): assert got == want",
        "assert all(map(lambda x: f(x) == 2, [1]))",
        "assert [*map(f, [1])] == [2]",
    )
    assert set(grade(task(loops), "def f(x): raise StopIteration")) == {"0", "1", "2"}
    ends = "it = f(1)\nassert next(it) == 1\ntry: next(it); assert 0\nexcept StopIteration: pass"
    assert grade(task(ends), "def f(x): yield x") == OK


def test_who_reads_his_messages_slowly_has_no_more_time(
    grade: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def noted(process: PythonWorkerProcess, *message: Any) -> bool:
        given.extend(message[3:])
        return send(process, *message)

    send = PythonWorkerProcess.send
    monkeypatch.setattr(PythonWorkerProcess, "send", noted)
    one = task("for n in range(9): assert f(n) == n", "def f(x): return x")
    assert grade(one, "def f(x): return x") == OK
    assert len(given) > 9 and given[-9:] == sorted(set(given[-9:]), reverse=True)


@pytest.mark.parametrize("unread", ["source", "test"])
def test_a_message_that_is_not_read(monkeypatch: pytest.MonkeyPatch, unread: str) -> None:
    """A submission that reads nothing is late; a grader that reads nothing is no submission's."""

    def send(process: PythonWorkerProcess, kind: int, *message: Any) -> bool:
        return kind != {"source": LOAD, "test": TEST}[unread] and sent(process, kind, *message)

    sent = PythonWorkerProcess.send
    monkeypatch.setattr(PythonWorkerProcess, "send", send)
    one = task("assert f(1) == 1")
    plan = make_plan(one)
    bench = GradingSandbox(provider().start())
    with closing(provider().start()) as subject, closing(bench):
        seconds = {"source": 1e-9, "test": PATIENCE}[unread]
        sources = ["def f(x): return x"]
        run = SubmissionTestRun(subject, None, sources, plan.message(None), seconds)
        with closing(run):
            if unread == "test":
                with pytest.raises(SandboxError, match="did not read its request"):
                    run.run(bench, plan.tests)
            else:
                (result,) = run.run(bench, plan.tests)
                assert result.reason == "not done within 1e-09 s" and result.late


def test_setup_code_is_there_for_both_sides(grade: Any) -> None:
    setup = "class Node:\n    def __init__(self, v): self.v = v"
    one = task("assert value(Node(3)) == 3", "def value(n): return n.v", setup_code=setup)
    assert grade(one, "Node(2).v", "def value(n): return n.v") == OK
    later = task("assert value(node) == 3", "def value(n): return n", test_setup_code="node = 3")
    assert grade(later, "def value(n): return n") == OK


def test_files_and_a_setup_of_the_tests_own(grade: Any) -> None:
    one = Task(
        "t", "?", files={"data.txt": "7\n"}, setup="echo 8 > more.txt",
        tests=("assert total() == int(open('data.txt').read()) + int(open('more.txt').read())",),
    )  # fmt: skip
    right = "def total():\n    return sum(int(open(n).read()) for n in ('data.txt', 'more.txt'))"
    assert grade(one, right) == OK
    assert grade(one, "open('data.txt', 'w').write('0')\ndef total(): return 8") != OK


def test_a_module_of_the_task_s_files(grade: Any) -> None:
    one = Task(
        "t", "?", files={"shop/__init__.py": "", "shop/cart.py": "def total(x): return 0"},
        tests=("from shop.cart import total\nassert total([1, 2]) == 3",
               "import shop.cart\nassert shop.cart.total([]) == 0"),
    )  # fmt: skip
    assert set(grade(one)) == {"0"}
    assert grade(one, "open('shop/cart.py', 'w').write('total = sum')") == OK


def test_the_tests_see_only_their_own_files(grade: Any) -> None:
    one = task("import tempfile, os\nassert not os.path.exists('/root/mine')\nassert f() is True")
    assert (
        grade(one, "open('/root/mine', 'w')\nimport os\ndef f(): return os.path.exists('mine')")
        == OK
    )


def test_a_test_leaves_nothing_for_the_next_task() -> None:
    tests = (
        "import os\nassert not os.path.exists('/tmp/left') and one() == 1\nopen('/tmp/left', 'w')",
    )
    tasks = Dataset([Task(str(n), "?", tests=tests) for n in range(3)])
    env = PythonEnv(tasks)
    try:
        for n in range(3):
            env.reset(options={"task_id": str(n)})
            env.step("def one(): return 1")
            assert env.step("submit")[1] == 1.0
    finally:
        env.close()


ALIKE = "assert abs(f(-2)) == 2"
FLOOD = """
import json, os, struct
def f(x):
    for left in (x, 9, 9, 9):
        answer = json.dumps([left, None, "", []]).encode()
        for fd in range(960, 980):
            try: os.write(fd, struct.pack("=IBI", len(answer), 2, 0) + answer)
            except OSError: pass
    return x
"""


def test_harmless_tests_share_a_process_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(sandbox: Any, worker: str, python: str | None = None) -> PythonWorkerProcess:
        if worker == python_run.GRADER:
            started.append(worker)
        return start(sandbox, worker, python)

    started: list[str] = []
    start = python_run.start
    monkeypatch.setattr(python_run, "start", noted)
    harm = "import builtins\nbuiltins.abs = lambda x: 2\nassert f(1) == 1"
    env = PythonEnv(Dataset([Task(str(n), "?", tests=(t,)) for n, t in enumerate((ALIKE, harm))]))

    def play(test: int, source: str) -> tuple[float, int]:
        env.reset(options={"task_id": str(test)})
        env.step(source)
        return env.step("submit")[1], len(started)

    right = "def f(x): return x"
    with closing(env):
        assert play(0, right) == (1.0, 1)
        assert play(0, "def f(x): return 9") == (0.0, 1)  # an honest failure ends nothing
        assert play(0, right) == (1.0, 1)
        assert play(0, FLOOD) == (1.0, 1)
        assert play(0, right) == (1.0, 1)  # what was sent too much is not taken for an answer
        assert play(0, "import os\ndef f(x): os._exit(0)") == (0.0, 1)
        assert play(0, right) == (1.0, 2)
        assert play(1, right) == (1.0, 2)
        assert play(0, "def f(x): return 3") == (0.0, 3)  # with an `abs` of Python's own


def test_the_image_s_python(grade: Any) -> None:
    sandbox = provider().start()
    has = sandbox.exec(["python3", "-V"]).ok
    sandbox.close()
    if not has:
        pytest.skip("this machine's /usr has no python3")
    one = task(
        ["assert double(3) == 6", "assert double([1]) == [1, 1]"], "def double(x): return x * 2"
    )
    assert grade(one, "def double(x): return x * 2", python="python3") == OK
    assert grade(one, "import os\ndef double(x): os._exit(0)", python="python3") != OK
