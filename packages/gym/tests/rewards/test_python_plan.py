"""Which names of a test are the submission's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.errors import TaskError
from intercode.rewards.python_plan import PythonGradingPlan, definitions, make_plan
from intercode.rewards.python_run import is_same_output
from intercode.task import Task


def plan(*tests: str, gold: str = "", files: Any = None, **metadata: Any) -> PythonGradingPlan:
    given = (gold,) if gold else ()
    return make_plan(Task("t", "?", gold=given, tests=tests, files=files or {}, metadata=metadata))


def test_names_of_the_submission() -> None:
    found = plan("x = f(1)\nassert g(x) == [y for y in x]", "assert h(lambda z: z) == f(2)")
    assert found.names == ("f", "g", "h")
    assert found.imports == ()


@pytest.mark.parametrize(
    ("test", "gold", "names", "imports"),
    [
        ("assert sum(1) == 2", "def sum(x): return 2", ("sum",), ()),
        ("assert sum(f(1)) == 2", "def f(sum): return [2]", ("f",), ()),
        ("assert f(1) == sys.maxsize", "import sys\ndef f(x): pass", ("f",), ("import sys",)),
        ("assert f(1) == sqrt(4)", "from math import sqrt\ndef f(x): pass", ("f",), (
            "from math import sqrt",)),
        ("assert math.isclose(f(1), 2)", "", ("f",), ("import math",)),
        ("assert m.isclose(f(1), 2)", "import math as m\ndef f(x): pass", ("f",), (
            "import math as m",)),
        ("import math\nassert math.isclose(f(1), 2)", "", ("f",), ()),
        ("assert calendar(1) == 2", "def calendar(x): return 2", ("calendar",), ()),
        ("assert N == 3", "N = 3", ("N",), ()),
    ],
)  # fmt: skip
def test_names_of_others(
    test: str, gold: str, names: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    found = plan(test, gold=gold)
    assert (found.names, found.imports) == (names, imports)


def test_names_bound_by_another_test_are_not_bound() -> None:
    assert plan("f = 1\nassert f == 1", "assert f(1) == 2").names == ("f",)
    assert plan("assert f(x) == 2", test_setup_code="x = Node(1)").names == ("Node", "f")


def test_what_gold_tells() -> None:
    gold = "import a\nclass P:\n    def __add__(self, o): pass\n    def m(self): pass\n"
    gold += "    __radd__ = __add__\nT = make('T')\ndef f(): pass"
    found = plan("assert f(P()) == T()", gold=gold)
    assert (found.classes, found.functions) == (("P", "T"), ("f",))
    assert found.operators == ("__add__", "__radd__")
    assert plan("assert f() == 1", classes=["Q"]).classes == ("Q",)


@pytest.mark.parametrize(
    ("tests", "gold", "entry"),
    [
        (["assert f(1) == 1", "assert f(2) == f(3)"], "", "f"),
        (["assert f(1) == 1", "assert g(2) == 2"], "", None),
        (["assert f(P(1)) == 1", "assert f(P(2)) == 2"], "class P: pass\ndef f(x): pass", "f"),
        (["assert f(g(1)) == 1"], "def f(x): pass\ndef g(x): pass", None),
        (["assert int(f(1)) == 1"], "", "f"),
    ],
)
def test_the_function_that_all_tests_call(tests: list[str], gold: str, entry: str | None) -> None:
    assert plan(*tests, gold=gold).entry == entry


def test_an_answer_takes_the_entry_s_place() -> None:
    found = plan("assert f(1) == g(1)", "assert f(2) == 1", gold="def f(x): pass\ng = f")
    assert found.message("mine")["names"] == {"f": "mine", "g": "g"}
    assert found.message(None)["names"] == {"f": "f", "g": "g"}


def test_modules_of_the_task() -> None:
    files = {"shop/__init__.py": "", "shop/cart.py": "", "a.py": "", "/b.py": "", "c.txt": ""}
    found = plan("import shop.cart, json, a as x\nfrom b import c", "import a", files=files)
    assert found.modules == ("shop", "shop.cart", "a")


HARMLESS = [
    "assert f(1) == [1] and sorted(f({2: 3}).items()) == ()",
    "import math\nassert math.isclose(f(1), 2.0)",
    "from math import isclose\nassert isclose(f(1), 2.0)",
    "def check(candidate):\n    for x in range(3): assert candidate(x) == x\ncheck(f)",
    "try: f(-1)\nexcept ValueError: pass\nelse: assert False",
    "math.sqrt(f(1))",
    "assert f'{f(1)!r:>4}' == ' 1' and [*map(lambda x: -x, f(2))][0] is None",
]
HARMFUL = [
    "open('x', 'w')",
    "import os\nassert f(1)",
    "from os import system as math\nassert f(1)",
    "import math as __builtins__\nassert f(1)",
    "__builtins__ = f(1)",
    "def __name__(): pass",
    "(lambda __builtins__: f(1))(2)",
    "assert f.__globals__",
    "(f(x) for x in ()).gi_frame.f_builtins.update(len=f)",
    "f(1)\nmath.pi = 3",
    "del f",
    "eval('f(1)')",
    "class A: pass\nf(A())",
    "global x\nx = f(1)",
    "with f(1): pass",
    "random.seed(f(1))",
    "assert f(1).name == 2",
    "def g():\n    try: yield\n    finally: f(1)",
]


@pytest.mark.parametrize("test", [*HARMLESS, *HARMFUL])
def test_harmless_tests(test: str) -> None:
    right = "def f(x): pass"
    assert plan(test, gold=right).harmless == (test in HARMLESS)
    assert plan("f(1)", gold=right, test_setup_code=test).harmless == (test in HARMLESS)
    cases = [
        {"input": [1], "checker": f"def check(given, result):\n    {test.partition(chr(10))[0]}"}
    ]
    if ":" not in test and "\n" not in test:
        assert plan(gold=right, cases=cases, entry_point="f").harmless == (test in HARMLESS)


def test_a_module_of_the_task_s_own_may_do_harm() -> None:
    assert not plan("import math\nassert f(math.pi)", files={"math.py": ""}).harmless


@pytest.mark.parametrize(
    ("tests", "metadata", "message"),
    [
        ((), {}, "neither 'tests' nor 'cases'"),
        (("assert f(",), {}, "not valid Python"),
        ((), {"cases": [{"input": 3, "expected": 1}], "entry_point": "f"}, "case 0"),
        ((), {"cases": [{"input": [3]}], "entry_point": "f"}, "either an 'expected'"),
        ((), {"cases": [{"input": [3], "expected": 1}]}, "entry_point"),
        ((), {"cases": [7], "entry_point": "f"}, "case 0"),
    ],
)
def test_a_malformed_task(tests: tuple[str, ...], metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        plan(*tests, **metadata)


def test_definitions() -> None:
    source = "import a\nx = 1\n@a.b\ndef f():\n    return 1\nwhile True: pass\nclass C: pass"
    assert definitions(source) == "import a\n\n@a.b\ndef f():\n    return 1\n\nclass C:\n    pass"
    assert definitions("def f(") == ""


SAME = [
    ("6\n", "6"),
    (" 6 \r\n\n", "6"),
    ("1  2\n\n3", "1 2\n3\n"),
    ("0.3333333333", "0.33333333"),
    ("3", "3.0"),
    ("1e3", "1000.0"),
    ("", "\n"),
]
DIFFERENT = [
    ("1 2 3", "1\n2\n3"),
    ("2 1", "1 2"),
    ("100000001", "100000000"),
    ("YES", "Yes"),
    ("0.34", "0.33"),
    ("6 6", "6"),
    ("", "6"),
    ("nan", "nan.0"),
    ("1e999", "2e999"),
    ("٣.0", "3"),
]


@pytest.mark.parametrize(("printed", "expected"), SAME)
def test_the_same(printed: str, expected: str) -> None:
    assert is_same_output(printed, expected)


@pytest.mark.parametrize(("printed", "expected"), DIFFERENT)
def test_different(printed: str, expected: str) -> None:
    assert not is_same_output(printed, expected)


@given(st.text(), st.text())
def test_any_text_is_itself_and_comparison_never_fails(one: str, other: str) -> None:
    assert is_same_output(one, one)
    assert is_same_output(f" {one}\n", one)
    assert is_same_output(one, other) in (True, False)


@given(st.integers(), st.integers())
def test_whole_numbers_are_exact(one: int, other: int) -> None:
    assert is_same_output(str(one), str(other)) == (one == other)
