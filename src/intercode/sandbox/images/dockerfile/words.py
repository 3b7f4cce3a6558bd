"""Words of a Dockerfile: quotes, escapes and variables, as a shell would read them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#]")


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    r"""The word without its quotes and escapes, with variables replaced.

    ``$X``, ``${X}``, ``${X:-word}``, ``${X-word}``, ``${X:+word}``, ``${X+word}``, ``${X:?word}``.

    Args:
        text: As it is written.
        variables: Those that are set.
        escape: The escape character: ``\`` or the Dockerfile's own choice.

    Raises:
        ValueError: It is not well formed, or asks for an unknown operation.
    """
    reader = _Reader(text, variables, escape)
    return reader.read("")


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self.text = text
        self.variables = variables
        self.escape = escape
        self.at = 0

    def read(self, stop: str) -> str:
        """Up to an unquoted character of `stop`, or the end."""
        out: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in (stop or "\0"):
            out.append(self._next())
        return "".join(out)

    def _next(self) -> str:
        char = self.text[self.at]
        if char == "$":
            return self._variable()
        self.at += 1
        if char == "'":
            return self._single_quoted()
        if char == '"':
            return self._double_quoted()
        if char == self.escape:
            char = self.text[self.at : self.at + 1]
            self.at += 1
        return char

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise ValueError(f"a single quote is not closed: {self.text}")
        quoted = self.text[self.at : end]
        self.at = end + 1
        return quoted

    def _double_quoted(self) -> str:
        out: list[str] = []
        while (char := self.text[self.at : self.at + 1]) != '"':
            if not char:
                raise ValueError(f"a double quote is not closed: {self.text}")
            if char == "$":
                out.append(self._variable())
                continue
            following = self.text[self.at + 1 : self.at + 2]
            if char == self.escape and following and following in f'"${self.escape}':
                char = following
                self.at += 1
            out.append(char)
            self.at += 1
        self.at += 1
        return "".join(out)

    def _variable(self) -> str:
        self.at += 1
        if self.text[self.at : self.at + 1] == "{":
            self.at += 1
            return self._braced()
        match = _NAME.match(self.text, self.at)
        if match is None:
            return "$"
        self.at = match.end()
        return self.variables.get(match[0], "")

    def _braced(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise ValueError(f"a variable's name is missing after '${{': {self.text}")
        self.at = match.end()
        operation = re.compile(r":?[-+?]|\}|").match(self.text, self.at)
        assert operation is not None  # it matches nothing, too
        self.at = operation.end()
        value = self.variables.get(match[0])
        if operation[0] == "}":
            return value or ""
        if not operation[0]:
            raise ValueError(f"'${{{match[0]}' is followed by what is not supported: {self.text}")
        word = self.read("}")
        if self.at >= len(self.text):
            raise ValueError(f"'${{{match[0]}' is not closed: {self.text}")
        self.at += 1
        is_set = bool(value) if operation[0].startswith(":") else value is not None
        if operation[0].endswith("+"):
            return word if is_set else ""
        if operation[0].endswith("?") and not is_set:
            raise ValueError(f"{match[0]}: {word or 'is not set'}")
        return value or "" if is_set else word
