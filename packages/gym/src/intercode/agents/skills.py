"""Agent skills: folders of instructions, which an agent reads when a task calls for them.

A skill is a folder in the Agent Skills format. Its ``SKILL.md`` has front matter in YAML (``name``,
``description``, and optionally ``license``, ``compatibility``, ``allowed-tools``, ``metadata``).
Further files, such as ``scripts/``, ``references/`` and ``assets/``, are beside ``SKILL.md``.
`read` validates a skill before any work starts. `Skill.layer` makes an image layer with the skill,
in the folder that agents search. `offer` makes the text about skills for a model's prompt::

    skill = read("examples/skills/invoice-numbers")
    env = intercode.make("bash", layers=[str(skill.layer())])

A command-line agent may search another folder for skills, which its profile names
(``run.skills``). A second layer serves such an agent: ``skill.layer("/root/.claude/skills")``.
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
from intercode.json_checks import read_yaml
from intercode_sandbox.host_files import joint_digest, open_regular
from intercode_sandbox.images.tarballs import pack
from intercode_sandbox.units import MIB

HOME = "/skills"
"""The folder in a sandbox where InterCode's agents find their skills."""
FILE = "SKILL.md"
NAME, DESCRIPTION, COMPATIBILITY = 64, 1024, 500
"""The maximum lengths of the fields ``name``, ``description`` and ``compatibility`` in characters,
as the format specifies."""
TEXT = 64 * 1024
"""The maximum size of ``SKILL.md`` in bytes. A model reads the whole file, which then has about
16,000 tokens."""
FILES, SIZE = 2000, 64 * MIB
"""The maximum number of a skill's files and folders, and the files' total size in bytes."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(\s*<?([^\s()<>]+)")
_NON_FILE_LINK = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|#|//")
"""The pattern of the beginning of a link whose target is no file: a URL, or an anchor in the
text."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A validated skill."""

    name: str
    description: str
    """The skill's purpose and use cases. If the agent can read files, its prompt has only the name,
    this text and the path."""
    body: str
    """The instructions, without the front matter."""
    folder: Path
    digest: str
    """A digest over the names, contents and executable bits of all files."""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The other fields of the front matter: ``license``, ``allowed-tools``, …"""

    def layer(self, home: str = HOME) -> Path:
        """Return an image layer that holds the skill, for image names such as ``IMAGE+LAYER``.

        The layer's files and folders have no write permission. The files are a part of the image. A
        reward therefore does not count the files as changes by the agent.

        Args:
            home: The absolute path of the parent folder of the skill's folder.

        Raises:
            ImageError: The cache cannot be written.
        """
        return pack(self.folder, f"{home}/{self.name}", read_only=True)


def read(folder: str | Path) -> Skill:
    """Read and validate a skill.

    Raises:
        UsageError: The folder is not a skill, or breaks a rule of the format; the message names
            file and rule.
    """
    home = Path(folder).expanduser().absolute()
    if not home.is_dir():
        raise UsageError(f"skill {folder}: there is no such folder")
    text = _read_text(home / FILE)
    try:
        front_matter = _front_matter(text)
        name, description = _read_name(front_matter, home), _read_description(front_matter)
        body = _FRONT.sub("", text, count=1).strip()
        if not body:
            raise ValueError("there are no instructions below the front matter")
        _check_links(body, home)
    except ValueError as error:
        raise UsageError(f"skill {home / FILE}: {error}") from None
    try:
        digest = joint_digest("skill", *_digest_chunks(home))
    except (OSError, ValueError) as error:
        raise UsageError(f"skill {home}: {error}") from None
    other_fields = {
        key: value for key, value in front_matter.items() if key not in ("name", "description")
    }
    return Skill(name, description, body, home, digest, other_fields)


def read_all(folders: Sequence[str]) -> tuple[Skill, ...]:
    """Read and validate several skills.

    Raises:
        UsageError: A skill is invalid (see `read`), or two skills have the same name.
    """
    skills = tuple(map(read, folders))
    names = [skill.name for skill in skills]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two skills are called {duplicate!r}")
    return skills


def offer(skills: Sequence[Skill], *, readable: bool = True) -> str:
    """Return the text about skills for a model's prompt; empty without skills.

    Args:
        skills: The skills.
        readable: Whether the agent can read files in further turns. If True, the text has the
            names, descriptions and paths of the skills; otherwise the bodies of all skills.
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


# The following functions validate the format of skills.


def _read_text(path: Path) -> str:
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


def _front_matter(text: str) -> dict[str, Any]:
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


def _read_name(front_matter: Mapping[str, Any], folder: Path) -> str:
    name = front_matter.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or len(name) > NAME:
        raise ValueError(
            f"field 'name' must be 1 to {NAME} small letters a-z and digits, with single hyphens "
            f"between them, not {name!r}"
        )
    if name != folder.name:
        raise ValueError(f"field 'name' is {name!r}, and the folder's name is {folder.name!r}")
    return name


def _read_description(front_matter: Mapping[str, Any]) -> str:
    description = front_matter.get("description")
    if not isinstance(description, str) or not description.strip():
        raise ValueError(f"field 'description' must be a text, not {description!r}")
    if len(description) > DESCRIPTION:
        raise ValueError(f"field 'description' has more than {DESCRIPTION} characters")
    return description.strip()


def _check_links(body: str, home: Path) -> None:
    """Refuse links to files that are missing or outside the skill's folder.

    Links within code blocks are ignored.

    Raises:
        ValueError: A link leaves the skill's folder, or its file does not exist.
    """
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


def _digest_chunks(home: Path) -> Iterator[bytes]:
    """Yield the parts of a skill's digest: for each path, the path's facts and the file's content.

    Raises:
        ValueError: The skill is too large, or contains a device, a socket, a FIFO, or a link to a
            path outside the skill's folder.
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
