"""What the agent of a task can read before it has done anything, and where gold shows in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from intercode.episode import encode
from intercode.errors import OutputLimitError
from intercode.evaluate.leaks import Leak, Text, traces
from intercode.sandbox.base import MIB, Sandbox
from intercode.sandbox.images import Image

if TYPE_CHECKING:
    from intercode.task import Task

FILE_LIMIT = 16 * MIB
"""Larger files are not searched."""
TASK_LIMIT = 512 * MIB
"""Of a task's files, no more is searched."""
# Not `env` and `ps`: an image may have neither. What another user's process has is not to be read.
_PROCESSES = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"


def leaks(task: Task, place: object, *, flags: bool) -> list[Leak]:
    """Where the task's gold can be read, except where ``metadata.flag_in`` says that it is.

    What an image's own base holds is not searched, nor what `place` is if it is no sandbox.

    Args:
        task: The task.
        place: Where an episode of it has begun.
        flags: Its golds are flags.

    Raises:
        SandboxError: The sandbox died.
    """
    allowed = task.metadata.get("flag_in") or ()
    names = [allowed] if isinstance(allowed, str) else [str(name) for name in allowed]
    in_query = traces(task.gold, flags=flags, short=True)
    in_files = traces(task.gold, flags=flags, short=False)
    found = []
    for name, data in _readable(task, place):
        wanted = in_query if name == "query" else in_files
        text = Text(data)
        how = next((trace.how for trace in wanted if trace.is_in(text)), "")
        if how and not any(name == one or PurePosixPath(name).match(one) for one in names):
            where = f"the {name}" if name in ("query", "environment", "processes") else name
            found.append(Leak(task.task_id, name, f"gold stands {how} in {where}"))
    return found


def _readable(task: Task, place: object) -> Iterator[tuple[str, bytes]]:
    yield "query", encode(task.query)
    if not isinstance(place, Sandbox):
        return
    yield "environment", encode("\n".join(place.env.values()))
    yield "processes", place.exec(["/bin/sh", "-c", _PROCESSES], cwd="/").stdout
    left = TASK_LIMIT
    for path in dict.fromkeys((*_changed(place), *_laid_over(place))):
        data = _read(place, path)
        left -= len(data)
        if left < 0:
            return
        yield path, data


def _changed(sandbox: Sandbox) -> Iterator[str]:
    """The files that were written for the task, and by its setup."""
    for change in sandbox.changes():
        if change.type == "file" and change.kind != "deleted":
            yield change.path


def _laid_over(sandbox: Sandbox) -> Iterator[str]:
    """The files of an image's layers, but for the lowest one, which is not the task's."""
    image = getattr(sandbox, "image", None)
    for layer in image.layers[1:] if isinstance(image, Image) else ():
        for folder, _, names in os.walk(layer):
            inside = "/" / Path(folder).relative_to(layer)
            for name in names:
                if (file := Path(folder, name)).is_file() and not file.is_symlink():
                    yield str(inside / name)


def _read(sandbox: Sandbox, path: str) -> bytes:
    """A file as the agent can read it: nothing if it may not, or if it is a large one."""
    try:
        return sandbox.read_file(path, limit=FILE_LIMIT)
    except (OSError, OutputLimitError):
        return b""
