"""Check the tests against the rules for waiting: ``python tests/rules.py [PATH…]``.

docs/development/tests.md says what the rules are for. An exception is allowed on its own line, with
a reason: ``sandbox.exec(endless, timeout=0.3)  # allow limit: the loop has no end``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

SAYS = {
    "sleep": "a test waits for an event, not for the clock: use `waiting`",
    "limit": "a slow machine reaches it: use PATIENCE, or allow it where it is meant to strike",
    "ps": "an image may have no such program, and then nothing seems to run: use `running`",
    "shared": "others change it meanwhile: count your own, as `held` of `open_resources` does",
    "port": "another process may have it: take port 0, and ask which it became",
    "kill": "it ends later: wait with `eventually` until what was killed is gone",
    "clock": "a duration depends on the machine: assert what the code does",
    "mark": "this mark allows nothing: remove it, or write `# allow RULE: REASON`",
}
"""Rule → what to do."""
PACKAGES = sorted(Path(__file__).parents[1].glob("packages/*/tests"))
LEAST = 10.0
"""Seconds that a limit which is not to strike has at least."""
LIMITS = re.compile(r"(^|[_.])(timeout|seconds|patience)$", re.IGNORECASE)
"""Names of limits: keywords, parameters, constants, patched attributes."""
NO_LIMITS = {"Turn", "timedelta"}
"""Calls with a field of such a name that is no limit."""
POSITIONS = {
    **dict.fromkeys(("wait", "join", "result", "exception", "settimeout", "timeout"), 0),
    **dict.fromkeys(("execute", "haste"), 1),
}
"""The position of the limit among the arguments of functions that wait."""
SHARED = re.compile(r"mountinfo|/proc/(self/)?mounts|/sys/fs/cgroup")
"""What a machine has of all who use it, in a text."""
COUNTERS = {"len", "count", "sorted", "set", "listdir", "iterdir"}
"""Functions that take in all of it."""
LISTENERS = {"bind", "create_server", "HTTPServer", "ThreadingHTTPServer"}
KILLERS = {("ray", "kill")}
"""Modules and functions that kill something, and return before it is dead."""
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
LISTERS = "ps", "pgrep", "pidof"
LISTS = re.compile(rf"(^|[;&|(`!]|\b(until|while|if|do|then)\b)\s*({'|'.join(LISTERS)})\s+\S")
"""A shell's command that lists processes."""
MARK = re.compile(r"#\s*allow\b\s*(\w*)\s*:?\s*(.*)")


class Finding(NamedTuple):
    """A place where a rule is broken."""

    line: int
    rule: str
    ends: tuple[int | None, int | None]
    """The last line of the place and of its statement, where a mark may be, too."""


def number(node: ast.AST | None) -> float | None:
    """A literal number."""
    value = getattr(node, "value", None)
    return float(value) if isinstance(value, (int, float)) else None


def name(node: ast.AST) -> str:
    """The last part of a dotted name, or nothing."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def limits(node: ast.AST) -> Iterator[ast.AST | None]:
    """Yield the values of limits at one node."""
    if isinstance(node, ast.Call):
        called, given = name(node.func), node.args
        if called in POSITIONS:
            yield from given[POSITIONS[called] :][:1]
        if called == "setattr" and len(given) > 1:
            what = given[-2]
            if isinstance(what, ast.Constant) and LIMITS.search(str(what.value)):
                yield given[-1]
        if called not in NO_LIMITS:
            yield from (word.value for word in node.keywords if LIMITS.search(word.arg or ""))
    elif isinstance(node, ast.arguments):
        named = [*node.posonlyargs, *node.args]
        defaults = [None] * (len(named) - len(node.defaults)) + node.defaults
        pairs = zip([*named, *node.kwonlyargs], [*defaults, *node.kw_defaults], strict=True)
        yield from (value for parameter, value in pairs if LIMITS.search(parameter.arg))
    elif isinstance(node, ast.Assign) and any(LIMITS.search(name(t)) for t in node.targets):
        yield node.value


def broken(node: ast.AST, sleep: Set[str]) -> Iterator[tuple[str, ast.AST]]:
    """Yield rule and place for one node; `sleep` holds the names under which it was imported."""
    for value in limits(node):
        if value is not None and 0 < (number(value) or 0) < LEAST:
            yield "limit", value
    if isinstance(node, ast.Call):
        yield from shares(node)
    if isinstance(node, ast.Call) and (sleeps(node.func) or name(node.func) in sleep):
        yield "sleep", node
    elif isinstance(node, ast.Assert):
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare) and any(map(tells_time, ast.walk(part))):
                yield "clock", part
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if LISTS.search(node.value):
            yield "ps", node
        if "sleep(" in node.value and sleeps_once(node.value):
            yield "sleep", node
    elif isinstance(node, ast.List) and any(
        getattr(n, "value", 0) in LISTERS for n in node.elts[:1]
    ):
        yield "ps", node.elts[0]


def shares(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Yield rule and place where a call counts on being alone on the machine."""
    called, owner = name(node.func), name(getattr(node.func, "value", node))
    parts = [node.func, *node.args] if called == "count" else node.args
    texts = [part for one in parts for part in ast.walk(one) if is_shared(part)]
    if called in COUNTERS and texts:
        yield "shared", node
    if called in LISTENERS and any(isinstance(one, ast.Tuple) for one in node.args[:1]):
        port = getattr(node.args[0], "elts", [None])[-1]
        if (number(port) or 0) > 0:
            yield "port", node
    if (owner, called) in KILLERS:
        yield "kill", node


def is_shared(node: ast.AST) -> bool:
    """Whether a node names what all users of a machine share."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(SHARED.search(node.value))
    return False


def findings(tree: ast.AST) -> Iterator[Finding]:
    """Yield all breaches in one file."""
    nodes, sleep = list(ast.walk(tree)), set()
    ends: dict[ast.AST, int | None] = {}
    for node in nodes:
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            ends.update(dict.fromkeys(ast.walk(node), node.end_lineno))
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            sleep |= {one.asname or one.name for one in node.names if one.name == "sleep"}
    does_nothing = {node.value for node in nodes if isinstance(node, ast.Expr)}  # a docstring
    for node in nodes:
        for rule, place in broken(node, sleep):
            if not (isinstance(place, ast.Constant) and place in does_nothing):
                last = getattr(place, "end_lineno", None), ends.get(place)
                yield Finding(getattr(place, "lineno", 0), rule, last)


def sleeps(called: ast.AST) -> bool:
    """Whether a function is a module's `sleep`."""
    if not isinstance(called, ast.Attribute) or called.attr != "sleep":
        return False
    return name(called.value) in ("time", "asyncio")


def sleeps_once(text: str) -> bool:
    """Whether a text is Python that sleeps for some seconds, neither for ever nor in a loop."""
    try:
        parts = list(ast.walk(ast.parse(textwrap.dedent(text))))
    except (SyntaxError, ValueError):
        return False
    polls = {n for part in parts if isinstance(part, (ast.While, ast.For)) for n in ast.walk(part)}
    return any(
        isinstance(part, ast.Call)
        and part not in polls
        and sleeps(part.func)
        and 0 < (number(part.args[0]) or 0) < LEAST
        for part in parts
    )


def tells_time(node: ast.AST) -> bool:
    """Whether a node reads a clock."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and name(node.func.value) == "time"
        and node.func.attr in CLOCKS
    )


def marks(text: str) -> dict[int, str]:
    """Line → rule, of each mark; one without a reason is for none."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (mark := MARK.search(token.string)):
            found[token.start[0]] = mark[1] if mark[2] else ""
    return found


def check(text: str) -> list[tuple[int, str]]:
    """List line and rule of all that is wrong in a file, with its marks."""
    allowed = marks(text)
    used, wrong = set(), set()
    for line, rule, ends in findings(ast.parse(text)):
        here = {at for at in (line, *ends) if at in allowed and allowed[at] == rule}
        used |= here
        if not here:
            wrong.add((line, rule))
    return sorted(wrong | {(line, "mark") for line in allowed if line not in used})


def main(arguments: list[str]) -> int:
    places = [Path(given) for given in arguments] or [Path(__file__).parent, *PACKAGES]
    found = 0
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for line, rule in check(path.read_text()):
                print(f"{path}:{line}: {rule}: {SAYS[rule]}")
                found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
