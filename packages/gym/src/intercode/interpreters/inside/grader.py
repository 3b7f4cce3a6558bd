"""Process that runs the tests. No code of the submission ever runs in this process.

A name of the submission stands for an object of another process, the subject (`submission`). The
values that the subject sends are plain data, or references: a reference becomes a
`SubmissionObjectProxy`.

A test may use a `SubmissionObjectProxy` in any way that reveals facts about the object. For
example, the test may call the object, measure it, take its items, or read it as a number. But a
test must not send the subject the very value that the object should equal, because the object could
claim to equal any value. A `SubmissionObjectProxy` equals a value only if the object *is* that
data, whatever its ``__eq__`` returns. For arithmetic, ``in`` and method calls, the task must know
the object's class, and gold's class must have the operator.
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

from intercode.interpreters.inside.object_proxy import NO_DATA, ProxyEndpoint
from intercode.interpreters.inside.wire import STARTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intercode.interpreters.inside.wire import HostChannel

OPEN, TEST = 4, 5
"""The kinds of the host's requests: `OPEN` sends the plan of the tests, `TEST` one test.

The response has the same kind. Its payload describes a failure, or is empty.
"""
_MAX_MESSAGE_LENGTH = 500
_READABLE_ATTRIBUTES = {
    "__name__",
    "__qualname__",
    "__doc__",
    "__module__",
    "__dict__",
    "__annotations__",
}
_MAX_BATCH = 1024
_UNARY = "abs bool complex float index int invert len neg next pos repr reversed round str"
_BINARY = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor"
_ORDER = "lt le gt ge"
_FUNCTIONS = {"and": "and_", "or": "or_"}


class GraderEndpoint(ProxyEndpoint):
    """The peer that runs the tests. All tests share the names that the constructor creates.

    Args:
        channel: The channel to the host, which relays messages to and from the subject.
        plan: The message of `intercode.rewards.python_plan.PythonGradingPlan.message`.
    """

    def __init__(self, channel: HostChannel, plan: dict[str, Any]) -> None:
        super().__init__(channel)
        self._plan = plan
        self._classes = frozenset(plan["classes"])
        self._operators = frozenset(plan["operators"])
        self._requested_function = ""
        self.names: dict[str, Any] = {"__builtins__": builtins, "__name__": "__tests__"}
        self._open()

    def _open(self) -> None:
        for statement in self._plan["imports"]:
            exec(statement, self.names)
        for module in self._plan["modules"]:
            sys.modules[module] = self.perform("import", module)
        for name, subject_name in self._plan["names"].items():
            self._requested_function = name if name in self._plan["functions"] else ""
            try:
                self.names[name] = self.perform("name", subject_name)
            except NameError:  # the test that needs the name then reports the error
                continue
            finally:
                self._requested_function = ""
        exec(compile(self._plan["setup"], "<setup of the tests>", "exec"), self.names)

    def run(self, test: dict[str, Any]) -> None:
        """Run a test. The test passes if no exception is raised.

        Args:
            test: An element of `PythonGradingPlan.tests`: a source, or a case.
        """
        if "source" in test:
            exec(compile(test["source"], "<test>", "exec"), dict(self.names))
            return
        inputs = test["input"]
        original = json.loads(json.dumps(inputs))  # a call may change its arguments
        entry = self.names[test["entry"]]
        result = entry(**inputs) if isinstance(inputs, dict) else entry(*inputs)
        if "checker" in test:
            names = dict(self.names)
            exec(compile(test["checker"], "<checker>", "exec"), names)
            assert names["check"](original, result) is True
        else:
            assert alike(result, test["expected"], test["tolerance"]), repr(result)[
                :_MAX_MESSAGE_LENGTH
            ]

    # -- the subject -----------------------------------------------------------------------------

    def perform(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Request an operation from the subject; return its result, or raise its exception.

        Args:
            operation: The operation's name, a key of the subject's table of operations.
            *args: The operation's arguments.
            **kwargs: Keyword arguments of a call.
        """
        value, error, output, changed_arguments = self.ask(
            operation, self.encode(args), self.encode(kwargs)
        )
        if output:
            sys.stdout.write(output)
        for key, tree in changed_arguments:
            refresh(kwargs[key] if isinstance(key, str) else args[key], self.decode(tree))
        if error is not None:
            exception = self._exception(*error)
            # A StopIteration would end a loop of the tests without an error.
            if isinstance(exception, StopIteration) and operation != "next":
                raise RuntimeError("the submission raised StopIteration") from exception
            raise exception
        return self.decode(value)

    def permits(self, known: bool, operator: str) -> bool:
        """Return whether an operator may send a test's values to an object.

        Args:
            known: Whether the task knows the object's class.
            operator: The special method's name.
        """
        return known and operator in self._operators

    def find_builtin(self, name: str) -> Any:
        """Return one of Python's own types by the name that the subject sent.

        Raises:
            TypeError: The name belongs to no type. Functions are refused.
        """
        value = getattr(builtins, name)
        if not isinstance(value, type):
            raise TypeError(f"{name} is not a type")
        return value

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> Any:
        """Return a `SubmissionObjectProxy` of a subject's object, or an exception class."""
        if kind == "exception":
            return self._exception_class(name, *data)
        is_known = (
            name in self._classes if kind in ("object", "class") else bool(self._requested_function)
        )
        value = self.decode(data[0]) if kind == "object" and data else NO_DATA
        return SubmissionObjectProxy(self, number, is_known or kind == "module", value)

    def object_number(self, value: object) -> int | None:
        """Return the number of the object of a `SubmissionObjectProxy`; None for other values."""
        return object_number(value)

    def _exception_class(self, name: str, module: str, bases: list[Any]) -> Any:
        # If this process has imported the exception's module, that module's class is used. A test's
        # ``except json.JSONDecodeError`` then catches the exception.
        existing_class = getattr(sys.modules.get(module), name, None)
        if isinstance(existing_class, type) and issubclass(existing_class, BaseException):
            return existing_class
        exception_bases = tuple(
            base for base in map(self.decode, bases) if issubclass(base, BaseException)
        )
        return type(name, exception_bases or (Exception,), {})

    def _exception(self, kind: Any, args: list[Any], facts: dict[str, Any], text: str) -> Any:
        exception_class = self.decode(kind)
        try:
            error = exception_class(*map(self.decode, args))
            vars(error).update({key: self.decode(value) for key, value in facts.items()})
        except Exception:  # noqa: BLE001 - an unusual constructor
            error = exception_class.__new__(exception_class)
            error.args = (text,)
        return error

    def serve(self, payload: bytes) -> bytes:
        """Call a function of the tests for the subject.

        Args:
            payload: The function's number and arguments, in JSON.

        Returns:
            ``[whether the call succeeded, result or reason]``, in JSON.
        """
        try:
            function_number, args, kwargs = json.loads(payload)
            function = self._objects[function_number]
            if not callable(function):
                raise TypeError(f"{type(function).__name__} cannot be called")
            result = function(*self.decode(args), **self.decode(kwargs))
            return json.dumps([True, self.encode(result)]).encode()
        except Exception as error:  # noqa: BLE001 - the caller gets it
            return json.dumps([False, f"{type(error).__name__}: {error}"]).encode()


def _describe_error(error: BaseException) -> str:
    lines = traceback.format_exception_only(type(error), error)
    return "".join(lines).strip()[:_MAX_MESSAGE_LENGTH] or type(error).__name__


def _answer(
    channel: HostChannel,
    kind: int,
    request_number: int,
    grader: GraderEndpoint | None,
    request: Any,
) -> Any:
    """Answer one request of the host; return the grader, which an `OPEN` request creates."""
    message = ""
    try:
        if kind == OPEN:
            grader = GraderEndpoint(channel, request)
        elif grader is not None:
            grader.run(request)
        else:
            message = "the tests could not be set up"
    except BaseException as error:  # noqa: BLE001 - a test that fails
        message = _describe_error(error)
    channel.send(kind, request_number, message.encode("utf-8", "backslashreplace"))
    return grader


def serve(channel: HostChannel, output_fd: int, limit: int) -> None:
    """Run tests until the host closes the channel."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    grader = None
    channel.send(STARTED)
    while True:
        try:
            kind, request_number, payload = channel.receive()
        except EOFError:
            return
        if kind in (OPEN, TEST):
            grader = _answer(channel, kind, request_number, grader, json.loads(payload))


# -- objects of the submission ---------------------------------------------------------------------


class SubmissionObjectProxy:
    """A stand-in for an object of the submission.

    Args:
        grader: The grader that sends requests to the subject.
        number: The number of the object in the subject.
        known: Whether the task knows the object's class.
        value: The data of an object that is also plain data, such as the number of an ``IntEnum``.
    """

    # All names in this class are private, because every other name belongs to the object.
    __slots__ = ("__grader", "__known", "__number", "__value")

    def __init__(
        self, grader: GraderEndpoint, number: int, known: bool, value: object = NO_DATA
    ) -> None:
        for name, attribute in zip(SubmissionObjectProxy.__slots__, (grader, known, number, value)):
            object.__setattr__(self, "_SubmissionObjectProxy" + name, attribute)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object, or create an instance of the class."""
        return self.__grader.perform("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _READABLE_ATTRIBUTES:
            raise AttributeError(name)
        value = self.__grader.perform("getattr", self, name)
        if isinstance(value, SubmissionObjectProxy) and not self.__known:
            raise AttributeError(f"{name}: the task does not know such objects")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self.__grader.perform("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__grader.perform("delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return self.__grader.perform("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__grader.perform("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self.__grader.perform("delitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        iterator, size, has_more = self.__grader.perform("iter", self), 1, True
        if not isinstance(iterator, SubmissionObjectProxy):
            raise TypeError("an iterator that is none")
        while has_more:
            batch, has_more = self.__grader.perform("take", iterator, size)
            yield from batch
            size = min(2 * size, _MAX_BATCH)

    def __contains__(self, item: Any) -> bool:
        if not self.__grader.permits(self.__known, "__contains__"):
            return item in list(self)
        return self.__grader.perform("contains", self, item) is True

    def __eq__(self, other: object) -> Any:
        if isinstance(other, SubmissionObjectProxy):
            if self.__known and other.__known:
                return self.__grader.perform("eq", self, other) is True
            if NO_DATA in (self.__value, other.__value):
                return self is other
            return self.__value == other.__value
        return self.__value is not NO_DATA and self.__value == other

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.__grader.perform("hash", self))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, SubmissionObjectProxy) and self.__grader.perform(
            "isinstance", instance, self
        )

    def __subclasscheck__(self, other: type) -> bool:
        return isinstance(other, SubmissionObjectProxy) and self.__grader.perform(
            "issubclass", other, self
        )

    def __enter__(self) -> Any:
        return self.__grader.perform("enter", self)

    def __exit__(self, *error: object) -> None:
        self.__grader.perform("exit", self, None, None, None)

    def __await__(self) -> Any:
        return self.__grader.perform("await", self)
        yield

    def __compute(self, name: str, other: Any, swapped: bool) -> Any:
        """Apply an operator to the object and another value, if the module's rules permit it."""
        left_value, right_value = (other, self) if swapped else (self, other)
        function = _FUNCTIONS.get(name, name)
        if self.__grader.permits(self.__known, f"__{'r' * swapped}{name}__"):
            return self.__grader.perform(function, left_value, right_value)
        return self.__as_data(function, left_value, right_value)

    def __order(self, name: str, other: Any) -> Any:
        if isinstance(other, SubmissionObjectProxy) and self.__known and other.__known:
            return self.__grader.perform(name, self, other) is True
        return self.__as_data(name, self, other)

    @staticmethod
    def __as_data(function: str, left_value: Any, right_value: Any) -> Any:
        values = [
            operand.__value if isinstance(operand, SubmissionObjectProxy) else operand
            for operand in (left_value, right_value)
        ]
        if any(value is NO_DATA for value in values):
            return NotImplemented
        return getattr(operator, function)(*values)

    def __measure(self, name: str, *args: Any) -> Any:
        return self.__grader.perform(name, self, *args)


def _method(helper_name: str, *bound_values: Any) -> Any:
    """Return a special method that calls a helper of `SubmissionObjectProxy` with these values.

    Args:
        helper_name: The helper's name without its prefix ``__``.
        *bound_values: The helper's first argument, and arguments that follow the method's own.
    """

    def method(self: SubmissionObjectProxy, *args: Any) -> Any:
        name, *bound_arguments = bound_values
        return getattr(self, "_SubmissionObjectProxy__" + helper_name)(
            name, *args, *bound_arguments
        )

    return method


for _name in _UNARY.split():
    setattr(SubmissionObjectProxy, f"__{_name}__", _method("measure", _name))
for _name in _ORDER.split():
    setattr(SubmissionObjectProxy, f"__{_name}__", _method("order", _name))
for _name in _BINARY.split():
    setattr(SubmissionObjectProxy, f"__{_name}__", _method("compute", _name, False))
    setattr(SubmissionObjectProxy, f"__r{_name}__", _method("compute", _name, True))


def object_number(value: object) -> int | None:
    """Return the number of the object of a `SubmissionObjectProxy`; None for other values."""
    return value._SubmissionObjectProxy__number if type(value) is SubmissionObjectProxy else None


# -- values ----------------------------------------------------------------------------------------


def refresh(container: Any, content: Any) -> None:
    """Replace a container's content in place by its content after a call.

    Nested containers are replaced in place, too.
    """
    if type(container) is not type(content):
        return
    if isinstance(container, list):
        for index, (old_item, new_item) in enumerate(zip(container, content)):
            content[index] = _refresh_item(old_item, new_item)
        container[:] = content
    elif isinstance(container, dict):
        values = {key: _refresh_item(container.get(key), value) for key, value in content.items()}
        container.clear()
        container.update(values)
    elif isinstance(container, set):
        container.clear()
        container.update(content)
    elif isinstance(container, bytearray):
        container[:] = content


def _refresh_item(original: Any, replacement: Any) -> Any:
    if type(original) is type(replacement) and isinstance(original, (list, dict, set, bytearray)):
        refresh(original, replacement)
        return original
    return replacement


def alike(result: Any, expected_data: Any, tolerance: float) -> bool:
    """Return whether a result equals an expected value from JSON; a tuple may equal a list.

    Args:
        result: The result of a call.
        expected_data: The expected value.
        tolerance: The relative and absolute tolerance of floats; 0: exact.
    """
    if isinstance(result, (list, tuple)) and isinstance(expected_data, list):
        return len(result) == len(expected_data) and all(
            alike(result_item, expected_item, tolerance)
            for result_item, expected_item in zip(result, expected_data)
        )
    if isinstance(result, dict) and isinstance(expected_data, dict):
        return result.keys() == expected_data.keys() and all(
            alike(result[key], expected_data[key], tolerance) for key in result
        )
    if isinstance(result, bool) or isinstance(expected_data, bool):
        return result is expected_data
    if tolerance and isinstance(result, float) and isinstance(expected_data, (int, float)):
        return math.isclose(result, expected_data, rel_tol=tolerance, abs_tol=tolerance)
    return bool(result == expected_data)
