"""The container's server, within this process: what it answers."""

import json

import pytest
from hypothesis import given, strategies as st

from intercode_paper.python_server import PythonServer, wrap_in_print


@pytest.mark.parametrize(
    ("action", "as_run"),
    [
        ("1 + 1", "print(1 + 1)"),
        ("  len([])", "print(  len([]))"),
        ("x = 1", "x = 1"),
        ("if True:\n    x = 1", "if True:\n    x = 1"),
        ("import math", "import math"),
        ("from math import pi", "print(from math import pi)"),
        ("x += 1", "print(x += 1)"),
        ("[print(i) for i in 'ab']", "[print(i) for i in 'ab']"),
        ("sys.stdout.print()", "print(sys.stdout.print())"),
        ("assert 1", "assert 1"),
    ],
)
def test_what_is_printed(action, as_run):
    assert wrap_in_print(action) == as_run


@given(st.text())
def test_any_text_is_left_or_wrapped_or_refused(text):
    try:
        made = wrap_in_print(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    assert made in (text, f"print({text})")


def test_names_live_until_a_reset():
    server = PythonServer()
    assert server.step("x = 3") == {"output": "", "error": ""}
    assert server.step("x") == {"output": "3", "error": ""}
    server.reset()
    assert server.step("x") == {"error": "Error: name 'x' is not defined"}
    assert server.step("__name__") == {"output": "__main__", "error": ""}
    assert server.step("sys.byteorder and StringIO('a').read()")["output"] == "a"


def test_output_is_stripped_and_lost_with_an_error():
    server = PythonServer()
    assert server.step("print(); print(' a b '); x = 1")["output"] == "a b"
    assert server.step("import sys; print('e', file=sys.stderr)") == {"output": "", "error": "e"}
    assert server.step("print('lost'); 1 / 0") == {"error": "Error: division by zero"}
    assert "<string>" in server.step("raise SystemExit(3)")["error"]  # print(raise SystemExit(3))
    assert server.step("x = 1; raise SystemExit(3)") == {"error": "Error: 3"}


def test_of_what_is_no_python_only_a_function_reaches_the_server():
    server = PythonServer()
    assert server.step("a b") == "Error executing action: invalid syntax (<unknown>, line 1)"
    assert server.step("def f() b") != server.step("a b")
    assert "<string>" in server.step("def f() b")["error"]


def test_source_does_not_get_the_future_of_this_module():
    assert "error" in PythonServer().execute("def f(a: Missing): pass")
    assert "output" not in PythonServer().execute("def f(a: Missing): pass")


def test_an_answer_is_the_last_line_and_json(capsys):
    server = PythonServer()
    server.answer("step", "x = '\\n'; print(x + 'é' + x)")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"output": "é", "error": ""}
    server.answer("reset", "")
    assert capsys.readouterr().out == "\nnull\n"
