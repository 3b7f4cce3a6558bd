"""Process that runs the submission, and performs operations on its objects for the tests.

The code in this process is not trusted. Of the tests, the process has only the arguments of calls.
Only data and references to objects leave the process (`object_proxy`).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import importlib
import io
import itertools
import json
import operator
import os
from typing import TYPE_CHECKING, Any

from intercode.interpreters.inside.object_proxy import ASK, ProxyEndpoint
from intercode.interpreters.inside.session import PythonSession
from intercode.interpreters.inside.wire import STARTED

if TYPE_CHECKING:
    from intercode.interpreters.inside.wire import HostChannel

LOAD = 3
"""The kind of the host's request to run source; the response has the same kind, and a status."""
_TYPES = {id(kind): name for name, kind in vars(builtins).items() if isinstance(kind, type)}
"""Python's own types: id → name.

Functions are excluded. Otherwise a submission could make the grader's process run a function.
"""
_MUTABLE_TYPES = (list, dict, set, bytearray)
_MAX_OUTPUT = 1 << 20
_BINARY = """
eq ne lt le gt ge add sub mul matmul truediv floordiv mod pow lshift rshift and_ or_ xor contains
getitem setitem delitem
"""
_UNARY = """
abs bool bytes complex float getattr hash int isinstance issubclass iter len next repr reversed
round setattr delattr str
"""


class TestObjectStub:
    """A stand-in for an object of the tests. A stand-in can only be called."""

    def __init__(self, subject: SubmissionEndpoint, number: int) -> None:
        self._subject = subject
        self._number = number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the tests' process to call the object."""
        return self._subject.call(self._number, args, kwargs)


class SubmissionEndpoint(ProxyEndpoint):
    """The peer that runs the submission, and performs operations that the grader requests."""

    names_by_id = _TYPES

    def __init__(self, channel: HostChannel, session: PythonSession) -> None:
        super().__init__(channel)
        self._session = session
        self._pending_errors: dict[int, BaseException] = {}
        self._operations: dict[str, Any] = {
            **{name: getattr(operator, name) for name in _BINARY.split()},
            **{name: getattr(builtins, name) for name in _UNARY.split()},
            "neg": operator.neg,
            "pos": operator.pos,
            "invert": operator.invert,
            "index": operator.index,
            "enter": lambda manager: type(manager).__enter__(manager),
            "exit": lambda manager, *error: type(manager).__exit__(manager, *error),
            "await": lambda awaitable: asyncio.run(_await(awaitable)),
            "call": lambda function, *args, **kwargs: function(*args, **kwargs),
            "import": importlib.import_module,
            "name": self._name,
            "take": self._take,
        }

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> TestObjectStub:
        """Return a stand-in for an object of the tests."""
        return TestObjectStub(self, number)

    def object_number(self, value: object) -> int | None:
        """Return the number of the tests' object if a value is its stand-in; None otherwise."""
        return value._number if type(value) is TestObjectStub else None

    def call(self, reference_number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an object of the tests in their process.

        Raises:
            RuntimeError: The call failed; the message has the reason.
        """
        is_done, value = self.ask(reference_number, self.encode(args), self.encode(kwargs))
        if not is_done:
            raise RuntimeError(value)
        return self.decode(value)

    def serve(self, payload: bytes) -> bytes:
        """Perform an operation that the grader requests.

        Args:
            payload: The operation's name and arguments, in JSON.

        Returns:
            ``[value or null, error or null, output, changed arguments]``, in JSON.
        """
        name, *arguments = json.loads(payload)
        output = io.StringIO()
        value = error = None
        changed_arguments: list[Any] = []
        try:
            args, kwargs = (self.decode(argument) for argument in arguments)
            operation = self._operations[name]
            with contextlib.redirect_stdout(output):
                try:
                    value = self.encode(operation(*args, **kwargs))
                finally:
                    changed_arguments = self._list_changes(arguments, args, kwargs)
        except BaseException as exception:  # noqa: BLE001 - it is the answer
            error = self._error(exception)
        text = output.getvalue()[:_MAX_OUTPUT]
        return json.dumps([value, error, text, changed_arguments]).encode()

    def _list_changes(
        self, encoded_arguments: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """List the arguments that an operation has changed in place, by position or name."""
        sent_trees = [*enumerate(encoded_arguments[0][1])] + [
            (key, tree) for key, tree in encoded_arguments[1][1]
        ]
        current_values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        changes = []
        for key, tree in sent_trees:
            if (
                isinstance(current_values[key], _MUTABLE_TYPES)
                and (new_tree := self.encode(current_values[key])) != tree
            ):
                changes.append([key, new_tree])
        return changes

    def _error(self, error: BaseException) -> Any:
        try:
            args = [self.encode(arg) for arg in error.args]
            facts = {key: self.encode(value) for key, value in vars(error).items()}
            return [self.encode(type(error)), args, facts, str(error)]
        except BaseException:  # noqa: BLE001 - its text, too, was submitted
            return [["builtin", "Exception"], [], {}, type(error).__name__]

    def _name(self, name: str) -> Any:
        if name not in self._session.names:
            raise NameError(f"name {name!r} is not defined")
        return self._session.names[name]

    def _take(self, iterator: Any, limit: int) -> tuple[list[Any], bool]:
        """Return up to `limit` next items, and whether more may follow."""
        if (pending_error := self._pending_errors.pop(id(iterator), None)) is not None:
            raise pending_error
        values: list[Any] = []
        try:
            values.extend(itertools.islice(iterator, limit))
        except BaseException as error:
            if not values:
                raise
            # The exception is raised when the grader requests the next items.
            self._pending_errors[id(iterator)] = error
            return values, True
        return values, len(values) == limit


async def _await(awaitable: Any) -> Any:
    return await awaitable


def serve(channel: HostChannel, output_fd: int, limit: int) -> None:
    """Answer requests until the host closes the channel."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    session = PythonSession(null, limit)
    subject = SubmissionEndpoint(channel, session)
    channel.send(STARTED)
    while True:
        try:
            kind, request_number, payload = channel.receive()
        except EOFError:
            return
        if kind == LOAD:
            status, _ = session.run(request_number, payload.decode("utf-8", "surrogatepass"))
            channel.send(LOAD, request_number, b"%d" % status)
        elif kind == ASK:
            subject.answer(payload)
