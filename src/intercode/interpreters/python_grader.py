"""The process in which the tests run. Nothing that was submitted ever runs here.

Names of what was submitted stand for objects of another process, the subject (`python_subject`),
and what comes from there is data, or a `Remote`.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from intercode.interpreters.python_peer import NO_DATA, Peer
from intercode.interpreters.python_remote import Remote, number_of

if TYPE_CHECKING:
    import socket

    from intercode.interpreters.python_wire import Channel

OPEN, TEST = 4, 5
"""Requests of the runner's: what the tests are about; one test. The answer has the same kind, and
as its payload what went wrong, or nothing."""
_MOST_SAID = 500


class Grader(Peer):
    """Runs tests, in names that are made once for all of them.

    Args:
        channel: To the runner, and through it to the subject.
        plan: See `intercode.rewards.python_plan.Plan`.
    """

    def __init__(self, channel: Channel, plan: dict[str, Any]) -> None:
        super().__init__(channel)
        self._plan = plan
        self._classes = frozenset(plan["classes"])
        self._operators = frozenset(plan["operators"])
        self._asked = ""
        self.names: dict[str, Any] = {"__builtins__": builtins, "__name__": "__tests__"}
        self._open()

    def _open(self) -> None:
        for statement in self._plan["imports"]:
            exec(statement, self.names)
        for module in self._plan["modules"]:
            sys.modules[module] = self.do("import", module)
        for name, theirs in self._plan["names"].items():
            self._asked = name if name in self._plan["functions"] else ""
            try:
                self.names[name] = self.do("name", theirs)
            except NameError:  # for the test that needs it to say
                continue
            finally:
                self._asked = ""
        exec(compile(self._plan["setup"], "<setup of the tests>", "exec"), self.names)

    def run(self, test: dict[str, Any]) -> None:
        """Run a test; it passes if nothing is raised."""
        if "source" in test:
            exec(compile(test["source"], "<test>", "exec"), dict(self.names))
            return
        given = test["input"]
        original = json.loads(json.dumps(given))  # a call may alter what it is given
        entry = self.names[test["entry"]]
        result = entry(**given) if isinstance(given, dict) else entry(*given)
        if "checker" in test:
            names = dict(self.names)
            exec(compile(test["checker"], "<checker>", "exec"), names)
            assert names["check"](original, result) is True
        else:
            assert alike(result, test["expected"], test["tolerance"]), repr(result)[:_MOST_SAID]

    # -- the subject -----------------------------------------------------------------------------

    def do(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Have the subject do something; the result."""
        value, error, printed, changed = self.ask(operation, self.encode(args), self.encode(kwargs))
        if printed:
            sys.stdout.write(printed)
        for key, tree in changed:
            refresh(kwargs[key] if isinstance(key, str) else args[key], self.decode(tree))
        if error is not None:
            raised = self._exception(*error)
            # It would end a loop of the tests' own.
            if isinstance(raised, StopIteration) and operation != "next":
                raise RuntimeError("the submission raised StopIteration") from raised
            raise raised
        return self.decode(value)

    def permits(self, known: bool, operator: str) -> bool:
        """Whether an object may be given a test's values to compute with."""
        return known and operator in self._operators

    def builtin(self, name: str) -> Any:
        """A type of Python's own, for the subject to name; no function."""
        value = getattr(builtins, name)
        if not isinstance(value, type):
            raise TypeError(f"{name} is no type")
        return value

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> Any:
        """A `Remote`, or for an exception's class one to be caught."""
        if kind == "exception":
            return self._exception_class(name, *data)
        known = name in self._classes if kind in ("object", "class") else bool(self._asked)
        value = self.decode(data[0]) if kind == "object" and data else NO_DATA
        return Remote(self, number, known or kind == "module", value)

    def number_of(self, value: object) -> int | None:
        """Of an object of the subject's."""
        return number_of(value)

    def _exception_class(self, name: str, module: str, bases: list[Any]) -> Any:
        # Of a module that is here too, it is that one: `except json.JSONDecodeError` catches it.
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        made = tuple(base for base in map(self.decode, bases) if issubclass(base, BaseException))
        return type(name, made or (Exception,), {})

    def _exception(self, kind: Any, args: list[Any], facts: dict[str, Any], text: str) -> Any:
        made = self.decode(kind)
        try:
            error = made(*map(self.decode, args))
            vars(error).update({key: self.decode(value) for key, value in facts.items()})
        except Exception:  # noqa: BLE001 - an unusual constructor
            error = made.__new__(made)
            error.args = (text,)
        return error

    def serve(self, payload: bytes) -> bytes:
        """Call a function of the tests' for the subject: ``[done, result or why not]``."""
        try:
            number, args, kwargs = json.loads(payload)
            function = self._objects[number]
            if not callable(function):
                raise TypeError(f"{type(function).__name__} cannot be called")
            result = function(*self.decode(args), **self.decode(kwargs))
            return json.dumps([True, self.encode(result)]).encode()
        except Exception as error:  # noqa: BLE001 - for who called it
            return json.dumps([False, f"{type(error).__name__}: {error}"]).encode()


def refresh(old: Any, new: Any) -> None:
    """Make a container what a call has made of it, and so with those in it that have stayed."""
    if type(old) is not type(new):
        return
    if isinstance(old, list):
        for index, (before, after) in enumerate(zip(old, new)):
            new[index] = _refreshed(before, after)
        old[:] = new
    elif isinstance(old, dict):
        values = {key: _refreshed(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(values)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new


def _refreshed(old: Any, new: Any) -> Any:
    if type(old) is type(new) and isinstance(old, (list, dict, set, bytearray)):
        refresh(old, new)
        return old
    return new


def alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether a result is what a data file's JSON says: a tuple is as good as a list."""
    if isinstance(one, (list, tuple)) and isinstance(other, list):
        return len(one) == len(other) and all(
            alike(mine, theirs, tolerance) for mine, theirs in zip(one, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            alike(one[key], other[key], tolerance) for key in one
        )
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if tolerance and isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def _said(error: BaseException) -> str:
    lines = traceback.format_exception_only(type(error), error)
    return "".join(lines).strip()[:_MOST_SAID] or type(error).__name__


def _answer(channel: Channel, kind: int, number: int, grader: Grader | None, data: Any) -> Any:
    """Do one request of the runner's."""
    said = ""
    try:
        if kind == OPEN:
            grader = Grader(channel, data)
        elif grader is not None:
            grader.run(data)
        else:
            said = "the tests could not be set up"
    except BaseException as error:  # noqa: BLE001 - a test that fails
        said = _said(error)
    channel.send(kind, number, said.encode("utf-8", "backslashreplace"))
    return grader


def serve(channel: Channel, out: int, limit: int) -> None:
    """Run tests until the runner goes away."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    grader = None
    while True:
        try:
            kind, number, payload = channel.receive()
        except EOFError:
            return
        if kind in (OPEN, TEST):
            grader = _answer(channel, kind, number, grader, json.loads(payload))


def main(sock: socket.socket) -> None:
    """As a fork of a sandbox's process 1."""
    from intercode.interpreters.python_forked import enter

    serve(*enter(sock))
