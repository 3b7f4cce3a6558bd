"""Agent skills: folders of instructions that an agent is offered, and reads when it needs them.

A skill is a folder as the Agent Skills format has it: ``SKILL.md``, whose front matter is in YAML
(``name``, ``description``, and optionally ``license``, ``compatibility``, ``allowed-tools``,
``metadata``), and beside it ``scripts/``, ``references/``, ``assets/`` or whatever its text names.
`read` checks it before any work starts. `Skill.layer` makes the layer of an image that holds it,
where an agent looks for it; `offer` makes the text that a model is told::

    skill = read("examples/skills/invoice-numbers")
    env = intercode.make("bash", layers=[str(skill.layer())])

A command-line agent may look for skills in a folder of its own, which its profile names
(``run.skills``): there is a second layer for it, as ``skill.layer("/root/.claude/skills")``.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from intercode.errors import UsageError
from intercode.plain_data import read_yaml
from intercode_sandbox.files import joint_digest, open_regular
from intercode_sandbox.images.archive import pack
from intercode_sandbox.units import MIB

HOME = "/skills"
"""The folder in a sandbox where our own agents find their skills."""
FILE = "SKILL.md"
NAME, DESCRIPTION, COMPATIBILITY = 64, 1024, 500
"""The longest values of these fields, in characters, as the format has them."""
TEXT = 64 * 1024
"""Bytes of ``SKILL.md``, at most: all of it goes to a model, which is some 16,000 tokens."""
FILES, SIZE = 2000, 64 * MIB
"""Files of a skill, and the bytes of all of them, at most."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*<?([^\s()<>]+)")
_NON_FILE_LINK = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|#|//")
"""The beginning of a link that is not to a file: a URL's scheme, or a place in the text itself."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A checked skill."""

    name: str
    description: str
    """The purpose, and when it is of use: all that an agent is told unasked."""
    body: str
    """The instructions, without the front matter."""
    folder: Path
    digest: str
    """Of all its files: their names, their content, and whether they can be executed."""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The other fields of the front matter: ``license``, ``allowed-tools``, …"""

    def layer(self, home: str = HOME) -> Path:
        """Return the layer of an image that holds the skill, for ``IMAGE+LAYER``.

        Its files and folders are without the permission to write, and do not count in a score, as
        they do not differ from the image.

        Args:
            home: The absolute path of the folder in which the skill's own is to stand.

        Raises:
            ImageError: The cache cannot be written.
        """
        return pack(self.folder, f"{home}/{self.name}", read_only=True)


def read(folder: str | Path) -> Skill:
    """Read a skill, and check it.

    Raises:
        UsageError: It is none, or breaks a rule of the format; the message names file and rule.
    """
    home = Path(folder).expanduser().absolute()
    if not home.is_dir():
        raise UsageError(f"skill {folder}: there is no such folder")
    text = _text(home / FILE)
    try:
        front = _front(text)
        name, description = _read_name(front, home), _read_description(front)
        body = _FRONT.sub("", text, count=1).strip()
        if not body:
            raise ValueError("there are no instructions below the front matter")
        _check_links(body, home)
    except ValueError as error:
        raise UsageError(f"skill {home / FILE}: {error}") from None
    try:
        digest = joint_digest("skill", *_parts(home))
    except (OSError, ValueError) as error:
        raise UsageError(f"skill {home}: {error}") from None
    other_fields = {
        key: value for key, value in front.items() if key not in ("name", "description")
    }
    return Skill(name, description, body, home, digest, other_fields)


def read_all(folders: Sequence[str]) -> tuple[Skill, ...]:
    """Read several skills.

    Raises:
        UsageError: As `read`; or two have one name.
    """
    skills = tuple(map(read, folders))
    names = [skill.name for skill in skills]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two skills are called {duplicate!r}")
    return skills


def offer(skills: Sequence[Skill], *, readable: bool = True) -> str:
    """Return what a model is told of its skills; empty if there are none.

    Args:
        skills: The skills.
        readable: Whether it can read files in further turns. If so it is told names and
            descriptions, and reads what it wants of the rest; else it is told the whole body.
    """
    if not skills:
        return ""
    if readable:
        entries = [f"- {s.name}: {_line(s.description)} ({HOME}/{s.name}/{FILE})" for s in skills]
        return "\n".join([_READABLE_INTRO, *entries])
    sections = [f"# {s.name}\n\n{_line(s.description)}\n\n{s.body}" for s in skills]
    return "\n\n".join([_INLINE_INTRO, *sections])


_READABLE_INTRO = """\
Skills are instructions for some kinds of task. Where the description of one fits the task, read its
file before you begin, and follow it."""
_INLINE_INTRO = """\
Skills are instructions for some kinds of task: follow one where its description fits the task. You
cannot read other files that they name."""


def _line(text: str) -> str:
    return " ".join(text.split())


# What the format asks for


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > TEXT:
            raise UsageError(
                f"skill {path}: it has {size:,} bytes, and at most {TEXT:,} go to a model: move "
                "optional parts to references/, and link to them"
            )
        with open_regular(path) as file:
            return file.read().decode().replace("\r\n", "\n")
    except FileNotFoundError:
        raise UsageError(f"skill {path.parent}: it has no {FILE}") from None
    except (OSError, UnicodeError) as error:
        raise UsageError(f"skill {path}: it cannot be read: {error}") from None


def _front(text: str) -> dict[str, Any]:
    if (match := _FRONT.match(text)) is None:
        raise ValueError("it does not begin with front matter: YAML between two lines of ---")
    try:
        front = read_yaml(match[1])
    except ImportError:
        raise UsageError("a skill needs PyYAML: pip install 'intercode-gym[yaml]'") from None
    except ValueError as error:
        raise ValueError(f"the front matter: {_line(str(error))}") from None
    if not isinstance(front, dict):
        raise ValueError("the front matter must be fields with values: name: …, description: …")
    for key, kind in (("license", str), ("compatibility", str), ("metadata", dict)):
        if not isinstance(front.get(key, kind()), kind):
            requirement = "a text" if kind is str else "fields with values"
            raise ValueError(f"field {key!r} must be {requirement}, not {front[key]!r}")
    if not isinstance(front.get("allowed-tools", ""), (str, list)):
        raise ValueError(f"field 'allowed-tools' must be a text, not {front['allowed-tools']!r}")
    if len(front.get("compatibility", "")) > COMPATIBILITY:
        raise ValueError(f"field 'compatibility' has more than {COMPATIBILITY} characters")
    return front


def _read_name(front: Mapping[str, Any], folder: Path) -> str:
    name = front.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or len(name) > NAME:
        raise ValueError(
            f"field 'name' must be 1 to {NAME} small letters a-z and digits, with single hyphens "
            f"between them, not {name!r}"
        )
    if name != folder.name:
        raise ValueError(f"field 'name' is {name!r}, and the folder's name is {folder.name!r}")
    return name


def _read_description(front: Mapping[str, Any]) -> str:
    description = front.get("description")
    if not isinstance(description, str) or not description.strip():
        raise ValueError(f"field 'description' must be a text, not {description!r}")
    if len(description) > DESCRIPTION:
        raise ValueError(f"field 'description' has more than {DESCRIPTION} characters")
    return description.strip()


def _check_links(body: str, home: Path) -> None:
    """Refuse links to files that are not in the skill; examples in code are not looked at."""
    for link in _LINK.findall(_CODE.sub("", body)):
        if _NON_FILE_LINK.match(link):
            continue
        path = unquote(link.partition("#")[0].partition("?")[0])
        if PurePosixPath(path).is_absolute() or not _is_within(home / path, home):
            raise ValueError(
                f"the link to {link!r} points out of the folder, where no agent can read"
            )
        if not (home / path).exists():
            raise ValueError(f"the link to {link!r}: there is no such file")


def _is_within(path: Path, home: Path) -> bool:
    return path.resolve().is_relative_to(home.resolve())


def _parts(home: Path) -> Iterator[bytes]:
    """Yield what a skill's digest is made of.

    Raises:
        ValueError: It holds a link that leaves it, a device, a socket or a FIFO, or is too large.
        OSError: A file cannot be read.
    """
    paths = sorted(home.rglob("*"))
    if len(paths) > FILES:
        raise ValueError(f"it has more than {FILES:,} files")
    remaining_bytes = SIZE
    for path in paths:
        name, info = path.relative_to(home).as_posix(), path.lstat()
        kind, content = stat.S_IFMT(info.st_mode), b""
        if kind == stat.S_IFLNK:
            target = path.readlink()
            if target.is_absolute() or not _is_within(path, home):
                raise ValueError(f"the symbolic link {name!r} leads out of it, to {str(target)!r}")
            content = str(target).encode()
        elif kind == stat.S_IFREG:
            remaining_bytes -= info.st_size
            if remaining_bytes < 0:
                raise ValueError(f"its files have more than {SIZE // MIB} MiB")
            content = path.read_bytes()
        elif kind != stat.S_IFDIR:
            raise ValueError(f"{name!r} is neither a file, a folder nor a symbolic link")
        yield f"{name}\0{kind:o}\0{bool(info.st_mode & 0o100):d}".encode()
        yield content
