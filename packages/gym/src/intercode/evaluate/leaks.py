"""Search for gold in all that the agent of a task can read before it has done anything."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from intercode.episode import encode
from intercode.errors import ImageError, OutputLimitError
from intercode.evaluate.fix_leaks import fix_leaks, is_of_repository
from intercode_sandbox.base import SandboxBackend
from intercode_sandbox.images import Image
from intercode_sandbox.images.base import parse
from intercode_sandbox.units import MIB

if TYPE_CHECKING:
    from intercode.task import Task

FILE_LIMIT = 16 * MIB
"""Larger files are not searched."""
LIMIT = 512 * MIB
"""The most bytes that are searched for one task."""
_SHORTEST_FLAG = 5
_SHORTEST = 8
_SHORTEST_LINE = 12
_PATCH = re.compile(r"^(?:diff --git |--- \S)", re.MULTILINE)
_BLANKS = b" \t\r\n\v\f"
_WRITE_UP = re.compile(
    r"(?<![a-z])(?:write[-_ ]?ups?|walk[-_ ]?throughs?|solutions?|answers?)(?![a-z])", re.IGNORECASE
)
_WITH_LAYERS = ("oci", "docker", "docker-daemon")
"""Bases that have many layers."""
# Not `env` and `ps`: an image may have neither. Another user's processes cannot be read.
_PROCESSES = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"


@dataclass(frozen=True, slots=True)
class Leak:
    """A place where a task's agent can read its gold."""

    task_id: str
    place: str
    """``query``, ``environment``, ``processes``, or a path in the sandbox."""
    text: str
    """A description for people."""
    is_problem: bool = False
    """Whether the task is not as it should be; else it may be intended."""


def leaks(task: Task, place: object, image: str, *, flags: bool) -> list[Leak]:
    """Return the places where a task's gold can be read, except those of ``metadata.flag_in``.

    The code of a repository's fix is searched by `fix_leaks`, everywhere.

    A file that is named like a write-up counts, whatever it contains. Files of an image's own base
    are not searched, nor is a `place` that is not a sandbox.

    Args:
        task: The task.
        place: The place of an episode that has just begun.
        image: The name of its image.
        flags: Whether its golds are flags.

    Raises:
        SandboxError: The sandbox died.
    """
    allowed = _names(task.metadata.get("flag_in"))
    found = []
    left = LIMIT
    for name, data in _readable(task, place, image):
        left -= len(data)
        if left < 0:
            said = f"more than {LIMIT // MIB} MiB can be read: not all was searched"
            found.append(Leak(task.task_id, name, said))
            break
        how = how_shown(task.gold, data, flags=flags, short=name == "query")
        is_file = name not in ("query", "environment", "processes")
        named = is_file and len(data) > 0 and _is_write_up(name, flags=flags)
        if (how or named) and not any(PurePosixPath(name).match(one) for one in allowed):
            where = name if is_file else f"the {name}"
            said = f"gold stands {how} in {where}" if how else f"{where} is named like a write-up"
            found.append(Leak(task.task_id, name, said))
    fixes = [
        Leak(task.task_id, name, said, is_problem=True)
        for name, said in fix_leaks(task, place)
        if not any(PurePosixPath(name).match(one) for one in allowed)
    ]
    searched = {leak.place for leak in fixes}
    return [leak for leak in found if leak.place not in searched] + fixes


def how_shown(golds: Sequence[str], data: bytes, *, flags: bool, short: bool) -> str:
    """Return how a text shows a gold: ``as it is``, ``in base64``…; empty if it does not.

    Args:
        golds: Accepted solutions.
        data: The text.
        flags: Whether they are flags, which may be written backwards, in base64 or in hexadecimal.
        short: Whether short lines count, too. A task's query may hold all of gold but the short
            line that is missing; a file that holds all of its long lines says enough.
    """
    if not flags:
        told = [lines for gold in golds if (lines := telling(gold, short=short))]
        spaced = _spaced(data) if told else b""
        return "as it is" if any(all(one in spaced for one in lines) for lines in told) else ""
    spaced, packed = _spaced(data), data.translate(None, _BLANKS)
    for gold in map(str.strip, golds):
        flag = encode(gold)
        if len(flag) < _SHORTEST_FLAG:
            continue
        if _spaced(flag) in spaced:
            return "as it is"
        if _spaced(encode(gold[::-1])) in spaced:
            return "backwards"
        if any(part in packed for offset in range(3) for part in _base64(flag, offset)):
            return "in base64"
        if flag.hex().encode() in packed.lower():
            return "in hexadecimal"
    return ""


def telling(gold: str, *, short: bool) -> list[bytes]:
    """Return the lines of gold that say what to do, normalised; none if it is too short.

    Of a patch these are the lines that it adds.
    """
    rows = gold.splitlines()
    if _PATCH.search(gold):
        rows = [row[1:] for row in rows if row.startswith("+") and not row.startswith("+++")]
    lines = [line for row in rows if (line := _spaced(encode(row)))]
    if len(lines) > 1 and not short:
        lines = [line for line in lines if len(line) >= _SHORTEST_LINE and line[:1] != b"#"]
    return lines if sum(map(len, lines)) >= _SHORTEST else []


def _spaced(data: bytes) -> bytes:
    """Return a text in lower case, any blanks as one space."""
    return b" ".join(data.lower().split())


def _base64(flag: bytes, offset: int) -> Iterator[bytes]:
    """Yield the part of a flag's base64 that is the same whatever `offset` bytes precede it."""
    whole = base64.b64encode(bytes(offset) + flag)
    begin = -(-offset * 4 // 3)
    end = (offset + len(flag)) * 8 // 6
    yield whole[begin:end]
    yield whole[begin:end].translate(bytes.maketrans(b"+/", b"-_"))


def _is_write_up(path: str, *, flags: bool) -> bool:
    """Whether a file is named like one that tells the answer, or the way to it.

    Where golds are flags this includes a ``README``: of a puzzle's files it often is the author's.
    """
    readme = flags and PurePosixPath(path).stem.lower() == "readme"
    return readme or _WRITE_UP.search(path) is not None


def _names(value: object) -> list[str]:
    every = value if isinstance(value, (list, tuple)) else [value]
    return [name for name in every if isinstance(name, str) and PurePosixPath(name).parts]


def _readable(task: Task, place: object, image: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of all that an agent can read."""
    yield "query", encode(task.query)
    if not isinstance(place, SandboxBackend):
        return
    yield "environment", encode("\n".join(place.env.values()))
    yield "processes", place.exec(["/bin/sh", "-c", _PROCESSES], cwd="/").stdout
    written = [c.path for c in place.changes() if c.type == "file" and c.kind != "deleted"]
    laid = () if is_of_repository(task) else _laid_over(place, image)  # which `fix_leaks` reads
    for path in dict.fromkeys((*written, *laid)):
        yield path, _read(place, path)


def _read(sandbox: SandboxBackend, path: str) -> bytes:
    """Read a file as the agent can; empty if the agent may not, or if it is large."""
    try:
        return sandbox.read_file(path, limit=FILE_LIMIT)
    except (OSError, OutputLimitError):
        return b""


def _laid_over(sandbox: SandboxBackend, name: str) -> Iterator[str]:
    """Yield the files of an image's layers, except those of its base, which are not the task's."""
    for layer in _own_layers(getattr(sandbox, "image", None), name):
        for folder, _, names in os.walk(layer):
            inside = "/" / Path(folder).relative_to(layer)
            for file in names:
                if (path := Path(folder, file)).is_file() and not path.is_symlink():
                    yield str(inside / file)


def _own_layers(image: object, name: str) -> Sequence[Path]:
    if not isinstance(image, Image):
        return ()
    try:
        spec = parse(name)
    except ImageError:  # a name of another provider's
        return ()
    base = len(image.layers) - len(spec.additions) if spec.scheme in _WITH_LAYERS else 1
    return image.layers[base:]
