"""The process in which the tests run. No code of the submission ever runs here.

Names of the submission stand for objects of another process, the subject (`subject`), and values
from there are data, or a `Remote`.

A test may do with a `Remote` whatever tells it about the object: call it, measure it, take its
items, read it as a number. But it may not hand the object the very value that it should equal: an
object is equal to a value only if it *is* that data, whatever its ``__eq__`` says, and to take part
in arithmetic or in `in`, or to have its methods called, it must be of a class that the task knows,
with an operator that gold's class has.
"""

from __future__ import annotations

import builtins
import json
import math
import operator
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from intercode.interpreters.inside.peer import NO_DATA, Peer
from intercode.interpreters.inside.wire import STARTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intercode.interpreters.inside.wire import Channel

OPEN, TEST = 4, 5
"""Requests of the runner's: the plan of the tests; one test. The answer has the same kind; its
payload describes a failure, or is empty."""
_MOST_SAID = 500
_READABLE = {"__name__", "__qualname__", "__doc__", "__module__", "__dict__", "__annotations__"}
_MOST_AT_ONCE = 1024
_UNARY = "abs bool complex float index int invert len neg next pos repr reversed round str"
_BINARY = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor"
_ORDER = "lt le gt ge"
_FUNCTIONS = {"and": "and_", "or": "or_"}


class Grader(Peer):
    """Runs tests, in names that are made once for all of them.

    Args:
        channel: The channel to the runner, and through it to the subject.
        plan: The message of `intercode.rewards.python_plan.PythonPlan`.
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
        """Ask the subject for an operation; return its result."""
        value, error, printed, changed = self.ask(operation, self.encode(args), self.encode(kwargs))
        if printed:
            sys.stdout.write(printed)
        for key, tree in changed:
            refresh(kwargs[key] if isinstance(key, str) else args[key], self.decode(tree))
        if error is not None:
            raised = self._exception(*error)
            # A StopIteration would end a loop of the tests' own.
            if isinstance(raised, StopIteration) and operation != "next":
                raise RuntimeError("the submission raised StopIteration") from raised
            raise raised
        return self.decode(value)

    def permits(self, known: bool, operator: str) -> bool:
        """Return whether an object may be given a test's values to compute with."""
        return known and operator in self._operators

    def builtin(self, name: str) -> Any:
        """Return a type of Python's own that the subject names; functions are refused."""
        value = getattr(builtins, name)
        if not isinstance(value, type):
            raise TypeError(f"{name} is not a type")
        return value

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> Any:
        """Make a `Remote`, or for an exception's class one to be caught."""
        if kind == "exception":
            return self._exception_class(name, *data)
        known = name in self._classes if kind in ("object", "class") else bool(self._asked)
        value = self.decode(data[0]) if kind == "object" and data else NO_DATA
        return Remote(self, number, known or kind == "module", value)

    def number_of(self, value: object) -> int | None:
        """Return the number of the subject's object that a value stands for."""
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
        except Exception as error:  # noqa: BLE001 - the caller gets it
            return json.dumps([False, f"{type(error).__name__}: {error}"]).encode()


def _said(error: BaseException) -> str:
    lines = traceback.format_exception_only(type(error), error)
    return "".join(lines).strip()[:_MOST_SAID] or type(error).__name__


def _answer(channel: Channel, kind: int, number: int, grader: Grader | None, data: Any) -> Any:
    """Answer one request of the runner's."""
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
    channel.send(STARTED)
    while True:
        try:
            kind, number, payload = channel.receive()
        except EOFError:
            return
        if kind in (OPEN, TEST):
            grader = _answer(channel, kind, number, grader, json.loads(payload))


# -- objects of the submission ---------------------------------------------------------------------


class Remote:
    """A stand-in for an object of the submission.

    Args:
        grader: The grader, which asks the subject.
        number: The object's number there.
        known: Whether the task knows the object's class.
        value: The data that the object is also, as an `IntEnum` is a number.
    """

    # Private, as all names here: every other one is the object's.
    __slots__ = ("__grader", "__known", "__number", "__value")

    def __init__(self, grader: Grader, number: int, known: bool, value: object = NO_DATA) -> None:
        for name, given in zip(Remote.__slots__, (grader, known, number, value)):
            object.__setattr__(self, "_Remote" + name, given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object, or make an instance of the class."""
        return self.__grader.do("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _READABLE:
            raise AttributeError(name)
        value = self.__grader.do("getattr", self, name)
        if isinstance(value, Remote) and not self.__known:
            raise AttributeError(f"{name}: the task does not know such objects")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self.__grader.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__grader.do("delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self.__grader.do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__grader.do("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self.__grader.do("delitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        iterator, size, more = self.__grader.do("iter", self), 1, True
        if not isinstance(iterator, Remote):
            raise TypeError("an iterator that is none")
        while more:
            items, more = self.__grader.do("take", iterator, size)
            yield from items
            size = min(2 * size, _MOST_AT_ONCE)

    def __contains__(self, item: Any) -> bool:
        if not self.__grader.permits(self.__known, "__contains__"):
            return item in list(self)
        return self.__grader.do("contains", self, item) is True

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Remote):
            if self.__known and other.__known:
                return self.__grader.do("eq", self, other) is True
            if NO_DATA in (self.__value, other.__value):
                return self is other
            return self.__value == other.__value
        return self.__value is not NO_DATA and self.__value == other

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.__grader.do("hash", self))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and self.__grader.do("isinstance", instance, self)

    def __subclasscheck__(self, other: type) -> bool:
        return isinstance(other, Remote) and self.__grader.do("issubclass", other, self)

    def __enter__(self) -> Any:
        return self.__grader.do("enter", self)

    def __exit__(self, *error: object) -> None:
        self.__grader.do("exit", self, None, None, None)

    def __await__(self) -> Any:
        return self.__grader.do("await", self)
        yield

    def __compute(self, name: str, other: Any, swapped: bool) -> Any:
        """Apply an operator with another value, if the module's docstring allows it."""
        one, two = (other, self) if swapped else (self, other)
        function = _FUNCTIONS.get(name, name)
        if self.__grader.permits(self.__known, f"__{'r' * swapped}{name}__"):
            return self.__grader.do(function, one, two)
        return self.__as_data(function, one, two)

    def __order(self, name: str, other: Any) -> Any:
        if isinstance(other, Remote) and self.__known and other.__known:
            return self.__grader.do(name, self, other) is True
        return self.__as_data(name, self, other)

    @staticmethod
    def __as_data(function: str, one: Any, two: Any) -> Any:
        values = [part.__value if isinstance(part, Remote) else part for part in (one, two)]
        if any(value is NO_DATA for value in values):
            return NotImplemented
        return getattr(operator, function)(*values)

    def __measure(self, name: str, *args: Any) -> Any:
        return self.__grader.do(name, self, *args)


def _method(helper: str, *bound: Any) -> Any:
    """Make a special method of a private one of `Remote` with its first arguments given."""

    def method(self: Remote, *args: Any) -> Any:
        name, *more = bound
        return getattr(self, "_Remote__" + helper)(name, *args, *more)

    return method


for _name in _UNARY.split():
    setattr(Remote, f"__{_name}__", _method("measure", _name))
for _name in _ORDER.split():
    setattr(Remote, f"__{_name}__", _method("order", _name))
for _name in _BINARY.split():
    setattr(Remote, f"__{_name}__", _method("compute", _name, False))
    setattr(Remote, f"__r{_name}__", _method("compute", _name, True))


def number_of(value: object) -> int | None:
    """Return the number of the object that a value stands for, if it does."""
    return value._Remote__number if type(value) is Remote else None


# -- values ----------------------------------------------------------------------------------------


def refresh(old: Any, new: Any) -> None:
    """Give a container the content that a call has given it, and so with those in it."""
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
    """Return whether a result equals a data file's JSON: a tuple is as good as a list."""
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
