"""The profile of a command-line agent: a small TOML file that says how it is run.

Those of the package are in ``profiles/``; a reader's own is named by its path, and a command alone
needs none::

    intercode run bash --agent aider --model openai/gpt-5
    intercode run bash --agent ./mine.toml --model openai/gpt-5
    intercode run bash --agent 'cli:python3 /opt/mine.py {query}' --model openai/gpt-5

In the words of a command, in the values of its environment and in its files stand, as often as they
are needed: ``{query}`` the task, and the offer of skills to an agent that does not look for them;
``{model}`` the model's name, ``{url}`` the model's address as Anthropic's clients have it,
``{url_v1}`` as OpenAI's have it, ``{token}`` the key that it takes.
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
from intercode_sandbox.suggestions import hint_text, nearest_word

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "profiles"
NO_MODEL = "none"
"""In place of a model's name: the agent's program asks no model."""
PORT = 8080
"""The port of the sandbox's loopback at which an agent finds its model."""
URL = f"http://127.0.0.1:{PORT}"
SYSTEM = "system"
"""The Python of the image."""
_ENV_WITHOUT_MODEL = {"INTERCODE_QUERY": "{query}"}
"""The environment of an agent that is only a command, in a run without a model."""
_ENV = {
    "OPENAI_BASE_URL": "{url_v1}",
    "OPENAI_API_BASE": "{url_v1}",
    "OPENAI_API_KEY": "{token}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{token}",
    "INTERCODE_MODEL": "{model}",
    **_ENV_WITHOUT_MODEL,
}
"""The environment of an agent that is only a command."""
ALL_SKILLS = "whole"
"""In place of a folder of skills: the agent is told all of them."""
MEMBER = "$."
"""The beginning of the name of a JSON object's member, in place of a pattern."""
_PLACEHOLDER = re.compile(r"\{(query|model|url_v1|url|token)\}")
_PLACEHOLDERS = ("query", "model", "url_v1", "url", "token")
_BRACED_NAME = re.compile(r"(?<![$\\{])\{([A-Za-z_]\w*)\}(?!\})")
"""A name in braces, other than a variable of a shell."""
_MODEL_PLACEHOLDER = re.compile(r"\{(model|url_v1|url|token)\}")


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a profile."""


class Install(_Table, frozen=True, kw_only=True):
    """The contents of the layer that ``intercode agents install`` builds."""

    source: Literal["npm", "pypi"] = msgspec.field(name="from")
    packages: tuple[str, ...]
    """Names; the first is installed in the profile's version, others name theirs (``x==1``)."""
    python: Annotated[str, Meta(pattern=r"^(system|3\.\d+)$")] = SYSTEM
    """The Python that it runs with: the image's own, or a release (``3.12``) that the layer
    carries."""
    scripts: bool = False
    """Whether the packages' own install scripts run."""
    built: tuple[str, ...] = ()
    """Packages of PyPI that have no wheel, and are built from source."""


class Run(_Table, frozen=True, kw_only=True):
    """How the agent is started in the sandbox, in the directory where a task's actions begin."""

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    env: dict[str, str] = {}
    before: str | None = None
    """A command for the shell, before."""
    files: dict[str, str] = {}
    """The content of files that are written before, by path."""
    skills: Annotated[str, Meta(pattern=f"^(/.+|{ALL_SKILLS})$")] | None = None
    """The folder where the agent looks for skills by itself. None: its task tells of them, and
    `ALL_SKILLS`: tells all of them, as the agent cannot read what it is not given."""


class Score(_Table, frozen=True, kw_only=True):
    """The paths that are left out of the score."""

    ignore: tuple[str, ...] = ()
    """Paths that the agent itself writes; all below them, too. A path that the task itself works
    with counts all the same."""


class ProfileLimits(_Table, frozen=True, kw_only=True):
    """The limits of a sandbox in which it can work, where a run names no others."""

    memory: str | None = None
    """Bytes, as ``4G``."""
    processes: int | None = None
    disk: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return those that are given, by name."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class Record(_Table, frozen=True, kw_only=True):
    """How its tool calls and their results become actions and observations."""

    action: tuple[str, ...] = ("command", "cmd", "script", "code")
    """The argument of a tool that is the action, the first that it has; a call without any of them
    is the action itself, as JSON."""
    reply: str | None = None
    """Of an agent whose model calls no tools: a pattern whose first group is the action in a reply,
    as a text or as a string of JSON; several of them are one action. None: the code in it."""
    output: str | None = None
    """A pattern whose first group is the output of a command within a tool's result; or
    ``$.NAME``: a member of the JSON object that the result is."""
    exit_code: str | None = None
    """A pattern, or a member, that finds the exit code in the same way."""


class Profile(_Table, frozen=True, kw_only=True):
    """All that InterCode knows of an agent."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    licence: str = ""
    version: str = ""
    """The version that is installed, pinned; empty: whatever there is."""
    protocol: Literal["chat", "responses", "messages"] = "chat"
    """How it speaks to its model."""
    install: Install | None = None
    run: Run
    limits: ProfileLimits = ProfileLimits()
    score: Score = Score()
    record: Record = Record()

    @property
    def home_of_skills(self) -> str | None:
        """The folder where it looks for skills by itself; None: it has none."""
        return None if self.run.skills == ALL_SKILLS else self.run.skills

    @property
    def needs_model(self) -> bool:
        """Whether its texts have a place for its model's name, address or key."""
        texts = (*self.run.command, *self.run.env.values(), *self.run.files.values())
        return any(map(_MODEL_PLACEHOLDER.search, texts))

    def fill(self, text: str, **values: str) -> str:
        """Return a text of the profile with the values in their places."""
        values = {"url": URL, "url_v1": f"{URL}/v1", **values}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    def facts(self) -> dict[str, Any]:
        """Return all that it says, as plain JSON types, for a run's record."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def names() -> list[str]:
    """List the agents of which the package has a profile."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_profile(agent: str, *, has_model: bool = True) -> Profile:
    """Return the profile that an agent's name means.

    Args:
        agent: A name of `names`, the path of a profile, or ``cli:COMMAND``.
        has_model: Whether the run has a model, whose address and name a command then receives.

    Raises:
        UsageError: There is no such profile, or it is malformed; the message says where.
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
    """Read a profile.

    Raises:
        UsageError: It cannot be read, or is malformed.
    """
    import tomllib

    try:
        profile = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Profile)
        Limits.of(profile.limits.to_dict())
    except (OSError, ValueError) as error:  # all others here are values' errors
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
    """Refuse a misspelt place; of a program's text that has one, warn: braces may be its own.

    Raises:
        UsageError: A word of the command, or a value of its environment, has one.
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
    """Warn once: a profile is read by each part of a run."""
    log.warning(text)


def _command_profile(command: str, env: dict[str, str]) -> Profile:
    """Make the profile of an agent that is only a command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"agent {COMMAND}{command}: {error}") from None
    if not words:
        raise UsageError(f"agent {COMMAND} needs a command: cli:'my-agent {{query}}'")
    run = Run(command=tuple(words), env=env)
    _check_placeholders(f"{COMMAND}{command}", run)
    return Profile(name="cli", run=run)
