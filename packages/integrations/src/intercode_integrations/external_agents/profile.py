"""Profiles of command-line agents: small TOML files with the instructions to run them.

The package's profiles are in ``profiles/``. A user's profile is named by its path; a plain command
needs none::

    intercode run bash --agent aider --model openai/gpt-5
    intercode run bash --agent ./mine.toml --model openai/gpt-5
    intercode run bash --agent 'cli:python3 /opt/mine.py {query}' --model openai/gpt-5

Placeholders may occur any number of times in the words of a command, in the values of its
environment variables and in its files. ``{query}`` is the task, with the offer of skills for an
agent that does not find them itself. ``{model}`` is the model's name, and ``{token}`` the key of
its gateway session. ``{url}`` is the model's address for Anthropic's clients, ``{url_v1}`` for
OpenAI's.
"""

from __future__ import annotations

import logging
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from intercode.agents.registry import COMMAND, PROFILE
from intercode.errors import UsageError
from intercode_sandbox.base import Limits
from intercode_sandbox.spelling_suggestions import hint_text, nearest_word

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "profiles"
NO_MODEL = "none"
"""Replaces a model's name: the agent's program uses no model."""
PORT = 8080
"""Port of the sandbox's loopback at which an agent reaches its model."""
URL = f"http://127.0.0.1:{PORT}"
SYSTEM = "system"
"""The image's Python."""
_ENV_WITHOUT_MODEL = {"INTERCODE_QUERY": "{query}"}
"""Environment variables of a plain command, in a run without a model."""
_ENV = {
    "OPENAI_BASE_URL": "{url_v1}",
    "OPENAI_API_BASE": "{url_v1}",
    "OPENAI_API_KEY": "{token}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{token}",
    "INTERCODE_MODEL": "{model}",
    **_ENV_WITHOUT_MODEL,
}
"""Environment variables of a plain command."""
ALL_SKILLS = "whole"
"""Replaces a folder of skills: the agent receives their whole texts."""
MEMBER = "$."
"""Prefix that selects a member of a JSON object, in place of a pattern."""
_PLACEHOLDER = re.compile(r"\{(query|model|url_v1|url|token)\}")
_PLACEHOLDERS = ("query", "model", "url_v1", "url", "token")
_BRACED_NAME = re.compile(r"(?<![$\\{])\{([A-Za-z_]\w*)\}(?!\})")
"""A name in braces, other than a shell variable."""
_MODEL_PLACEHOLDER = re.compile(r"\{(model|url_v1|url|token)\}")


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a profile."""


class Install(_Table, frozen=True, kw_only=True):
    """The contents of the layer that ``intercode agents install`` builds."""

    source: Literal["npm", "pypi"] = msgspec.field(name="from")
    packages: tuple[str, ...]
    """Package names; the first is installed in the profile's version, others include theirs
    (``x==1``)."""
    python: Annotated[str, Meta(pattern=r"^(system|3\.\d+)$")] = SYSTEM
    """Python of the agent: the image's own, or a release (``3.12``) that the layer includes."""
    scripts: bool = False
    """Whether the packages' own install scripts run."""
    built: tuple[str, ...] = ()
    """Packages of PyPI that have no wheel, and are built from source."""


class Run(_Table, frozen=True, kw_only=True):
    """The start of the agent in the sandbox, in the working directory of a task's actions."""

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    env: dict[str, str] = {}
    before: str | None = None
    """Shell command that runs before the agent."""
    files: dict[str, str] = {}
    """Path → content of files that are written before the start."""
    skills: Annotated[str, Meta(pattern=f"^(/.+|{ALL_SKILLS})$")] | None = None
    """Folder in which the agent finds skills by itself. None: its task offers them. `ALL_SKILLS`:
    its task contains their whole texts, because the agent cannot read their files."""


class Score(_Table, frozen=True, kw_only=True):
    """The paths that are left out of the score."""

    ignore: tuple[str, ...] = ()
    """Paths that the agent itself writes, with everything below them. A path that the task itself
    uses still counts."""


class ProfileLimits(_Table, frozen=True, kw_only=True):
    """The sandbox limits that the agent needs, unless a run sets others."""

    memory: str | None = None
    """Bytes, such as ``4G``."""
    processes: int | None = None
    disk: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set, by name."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class Record(_Table, frozen=True, kw_only=True):
    """The conversion of an agent's tool calls and results into actions and observations."""

    action: tuple[str, ...] = ("command", "cmd", "script", "code")
    """Tool arguments that hold the action; the first present one counts. A call without any of them
    is the action itself, as JSON."""
    reply: str | None = None
    """Pattern for an agent whose model calls no tools: its first group is the action in a reply, as
    text or as a JSON string; several matches form one action. None: the code in the reply."""
    output: str | None = None
    """Pattern whose first group is a command's output within a tool's result; or ``$.NAME``: a
    member of the JSON object that the result is."""
    exit_code: str | None = None
    """Pattern or member that finds the exit code in the same way."""


class Profile(_Table, frozen=True, kw_only=True):
    """The profile of an agent."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    licence: str = ""
    version: str = ""
    """Pinned version of the installation; empty: any version."""
    protocol: Literal["chat", "responses", "messages"] = "chat"
    """Protocol of the agent's calls to its model."""
    install: Install | None = None
    run: Run
    limits: ProfileLimits = ProfileLimits()
    score: Score = Score()
    record: Record = Record()

    @property
    def home_of_skills(self) -> str | None:
        """Folder in which the agent finds skills by itself; None: none."""
        return None if self.run.skills == ALL_SKILLS else self.run.skills

    @property
    def needs_model(self) -> bool:
        """Whether its texts have a placeholder for its model's name, address or key."""
        texts = (*self.run.command, *self.run.env.values(), *self.run.files.values())
        return any(map(_MODEL_PLACEHOLDER.search, texts))

    def fill(self, text: str, **values: str) -> str:
        """Return a text of the profile with the values in place of the placeholders."""
        values = {"url": URL, "url_v1": f"{URL}/v1", **values}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    def facts(self) -> dict[str, Any]:
        """Return the whole profile as plain JSON types, for a run's record."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def names() -> list[str]:
    """Return the names of the package's profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_profile(agent: str, *, has_model: bool = True) -> Profile:
    """Return the profile that an agent's name denotes.

    Args:
        agent: A name of `names`, the path of a profile, or ``cli:COMMAND``.
        has_model: Whether the run has a model, whose address and name a command then receives.

    Raises:
        UsageError: The profile does not exist, or is malformed; the message names the place.
    """
    if agent.startswith(COMMAND):
        return _command_profile(
            agent.removeprefix(COMMAND), _ENV if has_model else _ENV_WITHOUT_MODEL
        )
    if agent.endswith(PROFILE):
        return read_profile(Path(agent))
    if agent not in (agent_names := names()):
        raise UsageError(f"there is no agent {agent!r}{hint_text(agent, agent_names)}")
    return read_profile(FOLDER / f"{agent}.toml")


def read_profile(path: Path) -> Profile:
    """Read and validate a profile.

    Raises:
        UsageError: The file cannot be read, or is malformed.
    """
    import tomllib

    try:
        profile = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Profile)
        Limits.merge(profile.limits.to_dict())
    except (OSError, ValueError) as error:  # all other errors concern values
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"agent {path}: {reason}") from None
    for name in ("reply", "output", "exit_code"):
        pattern = getattr(profile.record, name)
        try:
            if pattern is None or (pattern.startswith(MEMBER) and name != "reply"):
                continue
            groups = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(f"agent {path}: record.{name} is not a pattern: {error}") from None
        if not groups:
            raise UsageError(f"agent {path}: record.{name} has no group for the matched text")
    _check_placeholders(str(path), profile.run)
    return profile


def _check_placeholders(agent: str, run: Run) -> None:
    """Refuse a misspelt placeholder; only warn in a longer text, whose braces may be intended.

    Raises:
        UsageError: A word of the command, or a value of its environment, has a misspelt
            placeholder.
    """
    for text in (*run.command, *run.env.values(), *run.files.values(), run.before or ""):
        for name in _BRACED_NAME.findall(text):
            suggestion = nearest_word(name, _PLACEHOLDERS)
            if name in _PLACEHOLDERS or suggestion is None:
                continue
            message = (
                f"agent {agent}: {{{name}}} is not a place of the command: {{{suggestion}}} is"
            )
            if len(text.split()) == 1 and text not in run.files.values():
                raise UsageError(
                    f"{message}; known: {', '.join(map('{{{}}}'.format, _PLACEHOLDERS))}"
                )
            _warn(f"{message}; it is left as it is")


@cache
def _warn(text: str) -> None:
    """Warn once: each part of a run reads the profile."""
    log.warning(text)


def _command_profile(command: str, env: dict[str, str]) -> Profile:
    """Make the profile of an agent that is a plain command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"agent {COMMAND}{command}: {error}") from None
    if not words:
        raise UsageError(f"agent {COMMAND} needs a command: cli:'my-agent {{query}}'")
    run = Run(command=tuple(words), env=env)
    _check_placeholders(f"{COMMAND}{command}", run)
    return Profile(name="cli", run=run)
