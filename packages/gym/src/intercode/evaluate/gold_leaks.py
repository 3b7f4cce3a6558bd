"""A search for gold in the texts and files that a task's agent can read before its first action.

`leaks` searches the query, environment variables, processes, changed files and the layers that a
task's image adds to its base. `leak_fixes` searches for the code of a repository's fix.
"""

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
from intercode.evaluate.leak_fixes import fix_leaks, is_repository_task
from intercode_sandbox.base import SandboxBackend
from intercode_sandbox.images import Image
from intercode_sandbox.images.base import parse
from intercode_sandbox.units import MIB

if TYPE_CHECKING:
    from intercode.task import Task

FILE_LIMIT = 16 * MIB
"""Maximum size of a searched file, in bytes."""
LIMIT = 512 * MIB
"""Maximum number of searched bytes for one task."""
_MIN_FLAG_LENGTH = 5
_MIN_GOLD_LENGTH = 8
_MIN_LINE_LENGTH = 12
_PATCH = re.compile(r"^(?:diff --git |--- \S)", re.MULTILINE)
_BLANKS = b" \t\r\n\v\f"
_WRITE_UP_PATTERN = re.compile(
    r"(?<![a-z])(?:write[-_ ]?ups?|walk[-_ ]?throughs?|solutions?|answers?)(?![a-z])", re.IGNORECASE
)
_LAYERED_SCHEMES = ("oci", "docker", "docker-daemon")
"""Schemes of base images with many layers."""
# The command prints the command lines and environment variables of processes. The programs ``env``
# and ``ps`` are not used, because an image may lack both. The command has the agent's privileges,
# so the kernel hides the same data from the command as from the agent.
_PROCESSES = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null"


@dataclass(frozen=True, slots=True)
class GoldLeak:
    """A location where a task's agent can read gold."""

    task_id: str
    place: str
    """``query``, ``environment``, ``processes``, or a path in the sandbox."""
    text: str
    """A description for people."""
    is_problem: bool = False
    """Whether the leak is a defect of the task; otherwise it may be intended."""


def leaks(task: Task, workspace: object, image: str, *, flags: bool) -> list[GoldLeak]:
    """Return the locations where a task's gold can be read.

    The function searches the query. In a sandbox, the search includes environment variables,
    processes, changed files, and the layers that the image adds to its base image. A file whose
    name is typical of a write-up counts as a leak, unless the file is empty or unreadable. For a
    repository task, `fix_leaks` searches the whole sandbox for the code of the fix instead of the
    layers. If the texts exceed `LIMIT`, an entry reports that only a part was searched.
    Locations that match a pattern in the task's ``metadata.flag_in`` are omitted.

    Args:
        task: The task.
        workspace: The workspace of a new episode.
        image: The name of the workspace's image.
        flags: Whether the task's golds are flags.

    Raises:
        SandboxError: The sandbox died.
    """
    allowed_patterns = _names(task.metadata.get("flag_in"))
    gold_leaks = []
    remaining_bytes = LIMIT
    for name, content in _readable_texts(task, workspace, image):
        remaining_bytes -= len(content)
        if remaining_bytes < 0:
            text = f"more than {LIMIT // MIB} MiB are readable: only a part was searched"
            gold_leaks.append(GoldLeak(task.task_id, name, text))
            break
        gold_form = find_gold_form(
            task.gold, content, flags=flags, accepts_short_lines=name == "query"
        )
        is_file = name not in ("query", "environment", "processes")
        has_telling_name = is_file and len(content) > 0 and _is_write_up(name, flags=flags)
        if (gold_form or has_telling_name) and not any(
            PurePosixPath(name).match(pattern) for pattern in allowed_patterns
        ):
            location = name if is_file else f"the {name}"
            text = (
                f"gold is readable {gold_form} in {location}"
                if gold_form
                else f"{location} is named like a write-up"
            )
            gold_leaks.append(GoldLeak(task.task_id, name, text))
    code_leaks = [
        GoldLeak(task.task_id, name, text, is_problem=True)
        for name, text in fix_leaks(task, workspace)
        if not any(PurePosixPath(name).match(pattern) for pattern in allowed_patterns)
    ]
    reported_locations = {leak.place for leak in code_leaks}
    return [leak for leak in gold_leaks if leak.place not in reported_locations] + code_leaks


def find_gold_form(
    golds: Sequence[str], content: bytes, *, flags: bool, accepts_short_lines: bool
) -> str:
    """Return the form in which a text contains gold; empty: the text does not contain gold.

    Args:
        golds: Accepted solutions.
        content: The text.
        flags: Whether golds are flags, which also match backwards, in base64 or in hexadecimal.
        accepts_short_lines: Whether the text must also contain gold's short lines. A query may
            rightly contain all long lines of gold, so there the short lines count, too. In a file,
            the long lines alone prove a leak.

    Returns:
        ``as it is``, ``backwards``, ``in base64``, ``in hexadecimal``, or an empty text.
    """
    if not flags:
        gold_lines = [
            lines
            for gold in golds
            if (lines := telling_lines(gold, accepts_short_lines=accepts_short_lines))
        ]
        normalised_data = _normalise_blanks(content) if gold_lines else b""
        return (
            "as it is"
            if any(all(gold_line in normalised_data for gold_line in lines) for lines in gold_lines)
            else ""
        )
    normalised_data, compact_data = _normalise_blanks(content), content.translate(None, _BLANKS)
    for gold in map(str.strip, golds):
        flag = encode(gold)
        if len(flag) < _MIN_FLAG_LENGTH:
            continue
        if _normalise_blanks(flag) in normalised_data:
            return "as it is"
        if _normalise_blanks(encode(gold[::-1])) in normalised_data:
            return "backwards"
        if any(part in compact_data for offset in range(3) for part in _base64(flag, offset)):
            return "in base64"
        if flag.hex().encode() in compact_data.lower():
            return "in hexadecimal"
    return ""


def telling_lines(gold: str, *, accepts_short_lines: bool) -> list[bytes]:
    """Return the lines of a gold that prove a leak, normalised; empty if gold is too short.

    Of a patch, only the added lines count.
    """
    rows = gold.splitlines()
    if _PATCH.search(gold):
        rows = [row[1:] for row in rows if row.startswith("+") and not row.startswith("+++")]
    lines = [line for row in rows if (line := _normalise_blanks(encode(row)))]
    if len(lines) > 1 and not accepts_short_lines:
        lines = [line for line in lines if len(line) >= _MIN_LINE_LENGTH and line[:1] != b"#"]
    return lines if sum(map(len, lines)) >= _MIN_GOLD_LENGTH else []


def _normalise_blanks(content: bytes) -> bytes:
    """Return a text in lower case, with each run of blanks as one space."""
    return b" ".join(content.lower().split())


def _base64(flag: bytes, offset: int) -> Iterator[bytes]:
    """Yield the characters of a flag's base64 form that depend on the flag alone.

    Args:
        flag: The flag.
        offset: The number of bytes that precede the flag in the encoded text, modulo 3. Bytes
            before and after the flag share some characters with the flag, which are omitted.
    """
    encoded_flag = base64.b64encode(bytes(offset) + flag)
    start = -(-offset * 4 // 3)
    end = (offset + len(flag)) * 8 // 6
    yield encoded_flag[start:end]
    yield encoded_flag[start:end].translate(bytes.maketrans(b"+/", b"-_"))


def _is_write_up(path: str, *, flags: bool) -> bool:
    """Return whether a file's name suggests that the file explains the solution.

    If golds are flags, the name ``README`` counts, too: a README among a puzzle's files was often
    written by the puzzle's author, for other authors.
    """
    readme = flags and PurePosixPath(path).stem.lower() == "readme"
    return readme or _WRITE_UP_PATTERN.search(path) is not None


def _names(value: object) -> list[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [name for name in values if isinstance(name, str) and PurePosixPath(name).parts]


def _readable_texts(task: Task, workspace: object, image: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each text that `leaks` searches."""
    yield "query", encode(task.query)
    if not isinstance(workspace, SandboxBackend):
        return
    yield "environment", encode("\n".join(workspace.env.values()))
    yield "processes", workspace.exec(["/bin/sh", "-c", _PROCESSES], cwd="/").stdout
    changed_paths = [
        change.path
        for change in workspace.changes()
        if change.type == "file" and change.kind != "deleted"
    ]
    # The layers of a repository task are searched by `fix_leaks`.
    layer_paths = () if is_repository_task(task) else _layer_files(workspace, image)
    for path in dict.fromkeys((*changed_paths, *layer_paths)):
        yield path, _read(workspace, path)


def _read(sandbox: SandboxBackend, path: str) -> bytes:
    """Read a file with the agent's privileges; empty if the file is unreadable or too large."""
    try:
        return sandbox.read_file(path, limit=FILE_LIMIT)
    except (OSError, OutputLimitError):
        return b""


def _layer_files(sandbox: SandboxBackend, name: str) -> Iterator[str]:
    """Yield the paths of the files in an image's layers.

    Files of the base image are omitted, because the task did not add them.
    """
    for layer in _task_layers(getattr(sandbox, "image", None), name):
        for folder, _, names in os.walk(layer):
            sandbox_folder = "/" / Path(folder).relative_to(layer)
            for file in names:
                if (path := Path(folder, file)).is_file() and not path.is_symlink():
                    yield str(sandbox_folder / file)


def _task_layers(image: object, name: str) -> Sequence[Path]:
    if not isinstance(image, Image):
        return ()
    try:
        spec = parse(name)
    except ImageError:  # the name is valid only for another sandbox provider
        return ()
    base = len(image.layers) - len(spec.additions) if spec.scheme in _LAYERED_SCHEMES else 1
    return image.layers[base:]
