"""A Dockerfile's text as instructions, read by BuildKit's own parser: the package ``dockerfile``.

It is a Go library, whose threads do not survive a fork of ours, so that it runs in a process of
its own.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.errors import ImageError

_SECONDS = 60.0
_DIRECTIVE = re.compile(r"#[ \t]*([a-zA-Z][a-zA-Z0-9]*)[ \t]*=[ \t]*(.+?)[ \t]*")
_FRONTEND = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?([:@].*)?")
# Of an error the library does not tell the line: it is the one after the longest beginning of the
# text that it accepts.
_PROGRAM = """
import json, sys
sys.path[:] = sys.argv[1:]
import dockerfile
text = sys.stdin.buffer.read().decode()
def problem(text):
    try:
        dockerfile.parse_string(text)
    except dockerfile.GoParseError as error:
        return str(error)
    return ""
if error := problem(text):
    lines = text.splitlines(keepends=True)
    good = 0
    for number in range(1, len(lines)):
        if problem("".join(lines[:number])) in ("", "file with no instructions"):
            good = number
    print(json.dumps({"error": error, "line": good + 1}))
else:
    names = ("cmd", "start_line", "flags", "value", "json", "original")
    found = [
        {**{name: getattr(command, name) for name in names},
         "heredocs": [[one.name, one.content] for one in command.heredocs]}
        for command in dockerfile.parse_string(text)
    ]
    print(json.dumps({"found": found}))
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, as it is written."""

    line: int
    name: str
    """In capitals."""
    flags: tuple[tuple[str, str], ...]
    """``--NAME=VALUE``; without a value it is empty."""
    values: tuple[str, ...]
    is_json: bool
    """Whether the values are those of a JSON array."""
    text: str
    """All of it, continuation lines joined."""
    heredocs: tuple[tuple[str, str], ...]
    """Name and content."""

    def flag(self, name: str) -> str:
        """A flag's value, or nothing."""
        return dict(self.flags).get(name, "")


@dataclass(frozen=True, slots=True)
class Source:
    """A Dockerfile that was read."""

    name: str
    """For people."""
    path: Path
    escape: str
    instructions: tuple[Instruction, ...]

    def error(self, line: int, reason: str) -> ImageError:
        """What is wrong with a line."""
        return ImageError(f"{self.name}:{line}: {reason}")

    def located(self, line: int, error: Exception) -> ImageError:
        """An error with the line that led to it, unless it names one itself."""
        if isinstance(error, ImageError) and str(error).startswith(f"{self.name}:"):
            return error
        return self.error(line, str(error))


def read(path: Path) -> Source:
    """Read a Dockerfile.

    Raises:
        ImageError: It cannot be read or is none.
    """
    name = f"{path.parent.name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ImageError(f"cannot read the Dockerfile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ImageError(f"the Dockerfile {path} is no UTF-8 text") from None
    escape = _directives(name, text).get("escape", "\\")
    answer = _ask(text)
    if "error" in answer:
        raise ImageError(f"{name}:{answer['line']}: {answer['error']}")
    found = tuple(_instruction(entry) for entry in answer["found"])
    return Source(name, path, escape, found)


def _directives(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _DIRECTIVE.fullmatch(line.rstrip())
        if match is None:
            break
        found[match[1].lower()] = match[2]
        if match[1].lower() == "syntax" and not _FRONTEND.fullmatch(match[2]):
            raise ImageError(f"{name}:{number}: the syntax {match[2]!r} is not Docker's own")
    return found


def _ask(text: str) -> dict[str, Any]:
    if importlib.util.find_spec("dockerfile") is None:
        raise ImageError(
            "reading a Dockerfile needs the package dockerfile: pip install 'intercode-gym[images]'"
        )
    paths = [path for path in sys.path if path]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *paths],
            input=text.encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        detail = said.decode(errors="replace")[-500:]
        raise ImageError(f"the Dockerfile's parser failed: {error}\n{detail}") from error
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _instruction(entry: dict[str, Any]) -> Instruction:
    flags = [flag.removeprefix("--").partition("=") for flag in entry["flags"]]
    return Instruction(
        line=entry["start_line"],
        name=entry["cmd"].upper(),
        flags=tuple((name, value) for name, _, value in flags),
        values=tuple(entry["value"]),
        is_json=entry["json"],
        text=entry["original"].strip(),
        heredocs=tuple((name, content) for name, content in entry["heredocs"]),
    )
