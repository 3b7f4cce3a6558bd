"""What the agent of a task can read before it has done anything, and where gold shows in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from intercode.episode import encode
from intercode.errors import ImageError, OutputLimitError
from intercode.evaluate.leaks import Leak, Text, is_write_up, traces
from intercode.sandbox.base import MIB, Sandbox
from intercode.sandbox.images import Image
from intercode.sandbox.images.base import parse

if TYPE_CHECKING:
    from intercode.task import Task

FILE_LIMIT = 16 * MIB
"""Larger files are not searched."""
LIMIT = 512 * MIB
"""Of what the agent of a task can read, no more is searched."""
_WITH_LAYERS = ("oci", "docker", "docker-daemon")
"""Bases that have many layers."""
# Not `env` and `ps`: an image may have neither. What another user's process has is not to be read.
_PROCESSES = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"


def leaks(task: Task, place: object, image: str, *, flags: bool) -> list[Leak]:
    """Where the task's gold can be read, except where ``metadata.flag_in`` says that it is.

    A file that is named like a write-up counts, whatever is in it. What an image's own base holds
    is not searched, nor what `place` is if it is no sandbox.

    Args:
        task: The task.
        place: Where an episode of it has begun.
        image: The name of its image.
        flags: Its golds are flags.

    Raises:
        SandboxError: The sandbox died.
    """
    allowed = _names(task.metadata.get("flag_in"))
    in_query = traces(task.gold, flags=flags, short=True)
    in_files = traces(task.gold, flags=flags, short=False)
    found = []
    left = LIMIT
    for name, data in _readable(task, place, image):
        left -= len(data)
        if left < 0:
            said = f"more than {LIMIT // MIB} MiB can be read: not all was searched"
            found.append(Leak(task.task_id, name, said))
            break
        wanted = in_query if name == "query" else in_files
        text = Text(data)
        how = next((trace.how for trace in wanted if trace.is_in(text)), "")
        is_file = name not in ("query", "environment", "processes")
        named = is_file and len(data) > 0 and is_write_up(name, flags=flags)
        if (how or named) and not any(PurePosixPath(name).match(one) for one in allowed):
            where = name if is_file else f"the {name}"
            said = f"gold stands {how} in {where}" if how else f"{where} is named like a write-up"
            found.append(Leak(task.task_id, name, said))
    return found


def _names(value: object) -> list[str]:
    every = value if isinstance(value, (list, tuple)) else [value]
    return [name for name in every if isinstance(name, str) and PurePosixPath(name).parts]


def _readable(task: Task, place: object, image: str) -> Iterator[tuple[str, bytes]]:
    yield "query", encode(task.query)
    if not isinstance(place, Sandbox):
        return
    yield "environment", encode("\n".join(place.env.values()))
    yield "processes", place.exec(["/bin/sh", "-c", _PROCESSES], cwd="/").stdout
    for path in dict.fromkeys((*_changed(place), *_laid_over(place, image))):
        yield path, _read(place, path)


def _changed(sandbox: Sandbox) -> Iterator[str]:
    """The files that were written for the task, and by its setup."""
    for change in sandbox.changes():
        if change.type == "file" and change.kind != "deleted":
            yield change.path


def _laid_over(sandbox: Sandbox, name: str) -> Iterator[str]:
    """The files of an image's layers, but for those of its base, which are not the task's."""
    for layer in _own_layers(getattr(sandbox, "image", None), name):
        for folder, _, names in os.walk(layer):
            inside = "/" / Path(folder).relative_to(layer)
            for name in names:
                if (file := Path(folder, name)).is_file() and not file.is_symlink():
                    yield str(inside / name)


def _own_layers(image: object, name: str) -> Sequence[Path]:
    if not isinstance(image, Image):
        return ()
    try:
        spec = parse(name)
    except ImageError:  # a name of another provider's
        return ()
    base = len(image.layers) - len(spec.additions) if spec.scheme in _WITH_LAYERS else 1
    return image.layers[base:]


def _read(sandbox: Sandbox, path: str) -> bytes:
    """A file as the agent can read it: nothing if it may not, or if it is a large one."""
    try:
        return sandbox.read_file(path, limit=FILE_LIMIT)
    except (OSError, OutputLimitError):
        return b""
