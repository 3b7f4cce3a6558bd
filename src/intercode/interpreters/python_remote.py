"""What stands, in the tests' process, for an object of what was submitted.

A test may do with it whatever tells it about the object: call it, measure it, take its items, read
it as a number. But what hands the object the very value that it should equal, it may not: an
object is equal to a value only if it *is* that data, whatever its ``__eq__`` says, and to take
part in arithmetic or in `in`, or to have its methods called, it must be of a class that the task
knows, with an operator that gold's class has.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from intercode.interpreters.python_peer import NO_DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intercode.interpreters.python_grader import Grader

_READABLE = {"__name__", "__qualname__", "__doc__", "__module__", "__dict__", "__annotations__"}
_MOST_AT_ONCE = 1024
_UNARY = "abs bool complex float index int invert len neg next pos repr reversed round str"
_BINARY = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor"
_ORDER = "lt le gt ge"
_FUNCTIONS = {"and": "and_", "or": "or_"}


class Remote:
    """An object of what was submitted.

    Args:
        grader: Who asks for what is done with it.
        number: Which one it is.
        known: Whether the task knows what it is.
        value: The data that it is also.
    """

    # Private, as all names here: every other one is the object's.
    __slots__ = ("__grader", "__known", "__number", "__value")

    def __init__(self, grader: Grader, number: int, known: bool, value: object = NO_DATA) -> None:
        for name, given in zip(Remote.__slots__, (grader, known, number, value)):
            object.__setattr__(self, "_Remote" + name, given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, or make one of it."""
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
        """An operator with something else: see the module's docstring for when there is one."""
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
    """A special method that is a private one of `Remote` with its first arguments given."""

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
    """Which object it stands for, if it does."""
    return value._Remote__number if type(value) is Remote else None
