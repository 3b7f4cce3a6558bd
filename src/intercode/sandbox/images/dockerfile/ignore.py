"""``.dockerignore``: which files of a folder are no part of the build's context."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from intercode.errors import ImageError

Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    exception: bool


class Ignore:
    """The rules of a file; of several that match, the last decides.

    Args:
        text: The file's content.
    """

    def __init__(self, text: str = "") -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _rule(line))]
        self.has_exceptions = any(rule.exception for rule in self._rules)
        """Whether something below an ignored folder may be no ignored file."""

    def __call__(self, path: str) -> bool:
        """Whether a path, relative to the context, is ignored: itself, or by a folder above."""
        parts = path.split("/")
        prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for rule in reversed(self._rules):
            if any(rule.pattern.fullmatch(prefix) for prefix in prefixes):
                return not rule.exception
        return False


def find(dockerfile: Path, context: Path) -> tuple[Ignore, Path | None]:
    """The rules for a Dockerfile, and the file that has them: its own, or else its context's.

    Raises:
        ImageError: It cannot be read, or a line of it not be understood.
    """
    own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    path = next((p for p in (own, context / ".dockerignore") if p.is_file()), None)
    if path is None:
        return Ignore(), None
    try:
        return Ignore(path.read_text(encoding="utf-8-sig")), path
    except (OSError, ValueError, re.error) as error:
        raise ImageError(f"cannot read {path}: {error}") from error


def glob(pattern: str) -> re.Pattern[str]:
    """A pattern of Go's ``filepath.Match`` with ``**``, for paths without a leading slash.

    Raises:
        ValueError: A bracket is not closed.
    """
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
                out.append("(?:.*/)?")
            else:
                out.append(".*")
        elif char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = pattern.find("]", at + (2 if pattern[at : at + 1] == "^" else 1))
            if end < 0:
                raise ValueError(f"a bracket is not closed: {pattern}")
            out.append(_class(pattern[at:end]))
            at = end + 1
        elif char == "\\" and at < len(pattern):
            out.append(re.escape(pattern[at]))
            at += 1
        else:
            out.append(re.escape(char))
    return re.compile("".join(out), re.DOTALL)


def _class(text: str) -> str:
    negated, text = text.startswith("^"), text.removeprefix("^")
    inner = re.sub(r"([\\\[&~|^])", r"\\\1", text.replace("\\", ""))
    return f"(?!/)[{'^' if negated else ''}{inner}]"


def _rule(line: str) -> _Rule | None:
    if line.startswith("#"):
        return None
    line = line.strip()
    exception, line = line.startswith("!"), line.removeprefix("!").strip()
    if not line:
        return None
    cleaned = posixpath.normpath(line).lstrip("/")
    if cleaned == ".":
        return None
    return _Rule(glob(cleaned), exception)
