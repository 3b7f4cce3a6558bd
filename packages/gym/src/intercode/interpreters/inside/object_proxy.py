"""Objects shared by two processes: plain data is copied, and references replace other objects.

This module runs in both workers of a grading: the *subject*, which runs the submission, and the
*grader*, which runs the tests. The sender encodes a value. The receiver rebuilds the value only if
its type is one of Python's own types that hold nothing but data. For any other object the receiver
gets a reference, and each side decides which operations its references permit. So no message of the
subject can carry code.
"""

from __future__ import annotations

import builtins
import datetime
import json
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from intercode.interpreters.inside.wire import HostChannel

    Coder = Callable[[Any], Any]

ASK, ANSWER = 1, 2
"""The kinds of the messages between the two processes: request and response."""
NO_DATA = object()
_LARGE_INTEGER = 1 << 63
_CALLABLE_TYPES = (FunctionType, BuiltinFunctionType, MethodType)
_BUILTIN_NAMES = {id(value): name for name, value in vars(builtins).items() if callable(value)}


def _items(encode: Coder, value: Any) -> list[Any]:
    return [[encode(item) for item in value]]


def _pairs(encode: Coder, value: Any) -> list[Any]:
    return [[[encode(key), encode(item)] for key, item in dict.items(value)]]


def _bounds(encode: Coder, value: Any) -> list[Any]:
    return [*map(encode, (value.start, value.stop, value.step))]


def _hex(encode: Coder, value: Any) -> list[Any]:
    return [value.hex()]


def _iso(encode: Coder, value: Any) -> list[Any]:
    return [value.isoformat()]


_CONSTRUCTOR_ARGUMENTS: dict[type, Callable[[Coder, Any], list[Any]]] = {
    **dict.fromkeys((list, tuple, set, frozenset, deque), _items),
    **dict.fromkeys((dict, OrderedDict, Counter, defaultdict), _pairs),
    **dict.fromkeys((bytes, bytearray), _hex),
    **dict.fromkeys((datetime.date, datetime.datetime, datetime.time), _iso),
    complex: lambda _, value: [value.real, value.imag],
    **dict.fromkeys((range, slice), _bounds),
    Decimal: lambda _, value: [str(value)],
    Fraction: lambda encode, value: [encode(value.numerator), encode(value.denominator)],
    datetime.timedelta: lambda _, value: [value.days, value.seconds, value.microseconds],
    type(...): lambda _, value: [],
}
"""Type → function that returns the parts of a value; values of exactly these types are copied."""


def _decode_dict(decode: Coder, pairs: Any) -> dict[Any, Any]:
    return {decode(key): decode(item) for key, item in pairs}


_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "int": lambda _, text: int(text, 16),
    "list": lambda decode, items: [decode(item) for item in items],
    "tuple": lambda decode, items: tuple(decode(item) for item in items),
    "set": lambda decode, items: {decode(item) for item in items},
    "frozenset": lambda decode, items: frozenset(decode(item) for item in items),
    "deque": lambda decode, items: deque(decode(item) for item in items),
    "dict": _decode_dict,
    "OrderedDict": lambda decode, pairs: OrderedDict(_decode_dict(decode, pairs)),
    "Counter": lambda decode, pairs: Counter(_decode_dict(decode, pairs)),
    "defaultdict": lambda decode, pairs: defaultdict(None, _decode_dict(decode, pairs)),
    "bytes": lambda _, text: bytes.fromhex(text),
    "bytearray": lambda _, text: bytearray.fromhex(text),
    "date": lambda _, text: datetime.date.fromisoformat(text),
    "datetime": lambda _, text: datetime.datetime.fromisoformat(text),
    "time": lambda _, text: datetime.time.fromisoformat(text),
    "timedelta": lambda _, *parts: datetime.timedelta(*parts),
    "complex": lambda _, unwrap, imag: complex(unwrap, imag),
    "range": lambda decode, *parts: range(*map(decode, parts)),
    "slice": lambda decode, *parts: slice(*map(decode, parts)),
    "Decimal": lambda _, text: Decimal(text),
    "Fraction": lambda decode, *parts: Fraction(*map(decode, parts)),
    "ellipsis": lambda _: ...,
}
_EXACT_COPIES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, str: str.__str__, tuple: tuple, list: list,
    dict: dict, set: set, frozenset: frozenset, bytes: bytes,
}  # fmt: skip


class ProxyEndpoint:
    """The endpoint of either process, which encodes values, and sends and answers requests."""

    names_by_id = _BUILTIN_NAMES
    """Objects that both sides have, so their names are sent: id → name."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._objects: list[object] = []
        self._object_numbers: dict[int, int] = {}
        self._stand_ins: dict[int, Any] = {}

    # -- the parts of each side ------------------------------------------------------------------

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> Any:
        """Return the stand-in for an object of the other process.

        Args:
            number: The number of the object in the other process.
            kind: ``class``, ``callable``, ``module``, ``object``, or ``exception`` (a class).
            name: The name of the object; for ``object``, the name of its class.
            data: For an object that is also plain data, such as an ``IntEnum``, this data. For an
                exception, its module and base classes.
        """
        raise NotImplementedError

    def object_number(self, value: object) -> int | None:
        """Return the number of the peer's object if `value` is its stand-in; None otherwise."""
        raise NotImplementedError

    def serve(self, payload: bytes) -> bytes:
        """Perform a request of the other process; return the encoded response."""
        raise NotImplementedError

    # -- values ----------------------------------------------------------------------------------

    def encode(self, value: Any) -> Any:
        """Return the tree of JSON types that represents a value."""
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int:
            return value if -_LARGE_INTEGER < value < _LARGE_INTEGER else ["int", hex(value)]
        if (get_arguments := _CONSTRUCTOR_ARGUMENTS.get(kind)) is not None:
            return [kind.__name__, *get_arguments(self.encode, value)]
        if (reference_number := self.object_number(value)) is not None:
            return ["yours", reference_number]
        name = self.names_by_id.get(id(value))
        return ["builtin", name] if name is not None else self._refer(value)

    def _refer(self, value: Any) -> list[Any]:
        reference_number = self._object_numbers.get(id(value))
        if reference_number is None:
            reference_number = self._object_numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        if isinstance(value, type):
            if issubclass(value, BaseException):
                bases = [self.encode(base) for base in value.__bases__ if base is not object]
                return [
                    "ref",
                    reference_number,
                    "exception",
                    value.__name__,
                    [value.__module__, bases],
                ]
            return ["ref", reference_number, "class", value.__name__]
        if isinstance(value, ModuleType):
            return ["ref", reference_number, "module", value.__name__]
        if isinstance(value, _CALLABLE_TYPES):
            return ["ref", reference_number, "callable", value.__name__]
        reference = ["ref", reference_number, "object", type(value).__name__]
        for kind, copy in _EXACT_COPIES.items():
            if isinstance(value, kind):
                return [*reference, [self.encode(copy(value))]]
        return reference

    def decode(self, tree: Any) -> Any:
        """Return the value that a tree of `encode` represents.

        Raises:
            ValueError, TypeError, LookupError: The tree is not a result of `encode`.
        """
        if not isinstance(tree, list):
            if isinstance(tree, dict):
                raise ValueError("an object is not a value")
            return tree
        type_name, *arguments = tree
        if type_name == "yours":
            return self._objects[arguments[0]]
        if type_name == "builtin":
            return self.find_builtin(arguments[0])
        if type_name == "ref":
            return self._stand_in(*arguments)
        return _CONSTRUCTORS[type_name](self.decode, *arguments)

    def find_builtin(self, name: str) -> Any:
        """Return the Python builtin of a name that the other process sent."""
        return getattr(builtins, name)

    def _stand_in(self, number: int, kind: str, name: str, data: Any = None) -> Any:
        if number not in self._stand_ins:
            self._stand_ins[number] = self.stand_in(number, kind, name, data)
        return self._stand_ins[number]

    # -- requests --------------------------------------------------------------------------------

    def ask(self, *request: Any) -> Any:
        """Send a request and wait for its response; meanwhile answer requests of the peer."""
        self._channel.send(ASK, 0, json.dumps(request).encode())
        while True:
            kind, _, payload = self._channel.receive()
            if kind == ANSWER:
                return json.loads(payload)
            if kind == ASK:
                self.answer(payload)

    def answer(self, payload: bytes) -> None:
        """Perform an incoming request, and send its response."""
        self._channel.send(ANSWER, 0, self.serve(payload))
