"""Profiles of command-line agents: small TOML files with the instructions to run them.

The package's profiles are in ``profiles/``. The option ``--agent`` names one of these, or the path
of a user's profile, or a plain command, which needs no profile::

    intercode run bash --agent aider --model openai/gpt-5
    intercode run bash --agent ./mine.toml --model openai/gpt-5
    intercode run bash --agent 'cli:python3 /opt/mine.py {query}' --model openai/gpt-5

The words of a command, the values of its environment variables and its files may contain
placeholders, any number of times. ``{query}`` is the task's query. For an agent that does not find
skills by itself, the query ends with an offer of skills. ``{model}`` is the model's name, and
``{token}`` the token of the gateway session. ``{url}`` is the address of the model for clients of
Anthropic's API, ``{url_v1}`` for clients of OpenAI's.
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
"""Value in place of a model's name for an agent whose program uses no model."""
PORT = 8080
"""Port of the sandbox's loopback interface at which an agent reaches its model."""
URL = f"http://127.0.0.1:{PORT}"
SYSTEM = "system"
"""Value of ``install.python`` for the Python of the image."""
_ENV_WITHOUT_MODEL = {"INTERCODE_QUERY": "{query}"}
"""Environment variables of a plain command in a run without a model."""
_ENV = {
    "OPENAI_BASE_URL": "{url_v1}",
    "OPENAI_API_BASE": "{url_v1}",
    "OPENAI_API_KEY": "{token}",
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "{token}",
    "INTERCODE_MODEL": "{model}",
    **_ENV_WITHOUT_MODEL,
}
"""Environment variables of a plain command in a run with a model."""
ALL_SKILLS = "whole"
"""Value in place of a folder of skills: the query contains the whole texts of the skills."""
MEMBER = "$."
"""Prefix of a selector that names a member of a JSON object, in place of a regular expression."""
_PLACEHOLDER = re.compile(r"\{(query|model|url_v1|url|token)\}")
_PLACEHOLDERS = ("query", "model", "url_v1", "url", "token")
_BRACED_NAME = re.compile(r"(?<![$\\{])\{([A-Za-z_]\w*)\}(?!\})")
"""Pattern of a name in braces that is not a shell variable: perhaps a misspelt placeholder."""
_MODEL_PLACEHOLDER = re.compile(r"\{(model|url_v1|url|token)\}")


class _ProfileTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of a profile's tables, which refuse unknown fields."""


class AgentInstallSteps(_ProfileTable, frozen=True, kw_only=True):
    """The contents of the image layer that ``intercode agents install`` builds for the agent."""

    source: Literal["npm", "pypi"] = msgspec.field(name="from")
    packages: tuple[str, ...]
    """Package names. The first package is installed in the profile's version. The other names
    include their version (``x==1``)."""
    python: Annotated[str, Meta(pattern=r"^(system|3\.\d+)$")] = SYSTEM
    """Python that runs the agent: the image's own, or a release (``3.12``) in the layer."""
    scripts: bool = False
    """Whether the packages' own install scripts may run."""
    built: tuple[str, ...] = ()
    """Packages that PyPI has no wheel of, and that pip may build from source."""


class AgentStartCommand(_ProfileTable, frozen=True, kw_only=True):
    """The start of the agent's program, in the working directory of the task."""

    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    env: dict[str, str] = {}
    before: str | None = None
    """Shell command to run before the agent's program."""
    files: dict[str, str] = {}
    """Path → content of files that are written into the sandbox before the start."""
    skills: Annotated[str, Meta(pattern=f"^(/.+|{ALL_SKILLS})$")] | None = None
    """Folder in which the agent finds skills by itself. None: the query offers the skills.
    `ALL_SKILLS`: the query contains their whole texts, because the agent cannot read files."""


class ScoreExclusions(_ProfileTable, frozen=True, kw_only=True):
    """The paths that do not count for the score."""

    ignore: tuple[str, ...] = ()
    """Paths that the agent's program writes for itself, with everything below them. A path that the
    task itself uses counts nevertheless."""


class ProfileLimits(_ProfileTable, frozen=True, kw_only=True):
    """The sandbox limits that the agent's program needs, unless the run sets other values."""

    memory: str | None = None
    """Memory in bytes, such as ``4G``."""
    processes: int | None = None
    disk: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that the profile sets, by name."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class TurnExtractionRules(_ProfileTable, frozen=True, kw_only=True):
    """The rules that convert an agent's tool calls and results into actions and observations."""

    action: tuple[str, ...] = ("command", "cmd", "script", "code")
    """Tool arguments that contain the action; the first argument of the list that is present
    counts. For a call without any of them, the call itself is the action, as JSON."""
    reply: str | None = None
    """Pattern for an agent whose model calls no tools. The action consists of the first groups of
    all matches, each a text or a JSON string. None: the action is the block of code in the
    reply."""
    output: str | None = None
    """Pattern whose first group is the command's output within a tool's result. Alternatively
    ``$.NAME``: the name of a member, if the result is a JSON object."""
    exit_code: str | None = None
    """Pattern or member that selects the exit code, in the same form as `output`."""


class AgentProfile(_ProfileTable, frozen=True, kw_only=True):
    """The profile of a command-line agent."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    licence: str = ""
    version: str = ""
    """Version of the agent that is installed; empty: any version."""
    protocol: Literal["chat", "responses", "messages"] = "chat"
    """Protocol by which the agent calls its model."""
    install: AgentInstallSteps | None = None
    run: AgentStartCommand
    limits: ProfileLimits = ProfileLimits()
    score: ScoreExclusions = ScoreExclusions()
    record: TurnExtractionRules = TurnExtractionRules()

    @property
    def home_of_skills(self) -> str | None:
        """The folder in which the agent finds skills by itself; None if there is no such folder."""
        return None if self.run.skills == ALL_SKILLS else self.run.skills

    @property
    def needs_model(self) -> bool:
        """Whether a text of the profile has a placeholder for model name, address or token."""
        texts = (*self.run.command, *self.run.env.values(), *self.run.files.values())
        return any(map(_MODEL_PLACEHOLDER.search, texts))

    def fill(self, text: str, **values: str) -> str:
        """Replace the placeholders in a text of the profile.

        Args:
            text: The text.
            **values: The values of ``query``, ``model`` and ``token``.
        """
        values = {"url": URL, "url_v1": f"{URL}/v1", **values}
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    def facts(self) -> dict[str, Any]:
        """Return the whole profile as plain JSON types, for a run's record."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def names() -> list[str]:
    """Return the names of the profiles that the package contains, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_profile(agent: str, *, has_model: bool = True) -> AgentProfile:
    """Return the profile of an agent.

    Args:
        agent: A name of `names`, the path of a profile, or ``cli:COMMAND``.
        has_model: Whether the run has a model. A plain command then receives variables with the
            model's address and name.

    Raises:
        UsageError: The profile does not exist, or is malformed; the message names the position.
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


def read_profile(path: Path) -> AgentProfile:
    """Read a profile from a TOML file, and validate it.

    Raises:
        UsageError: The file cannot be read, or is malformed.
    """
    import tomllib

    try:
        profile = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), AgentProfile)
        Limits.merge(profile.limits.to_dict())
    except (OSError, ValueError) as error:  # the errors of msgspec and tomllib are ValueErrors
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"agent {path}: {reason}") from None
    for field_name in ("reply", "output", "exit_code"):
        pattern = getattr(profile.record, field_name)
        try:
            if pattern is None or (pattern.startswith(MEMBER) and field_name != "reply"):
                continue
            group_count = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(
                f"agent {path}: record.{field_name} is not a pattern: {error}"
            ) from None
        if not group_count:
            raise UsageError(f"agent {path}: record.{field_name} has no group for the matched text")
    _check_placeholders(str(path), profile.run)
    return profile


def _check_placeholders(agent: str, run: AgentStartCommand) -> None:
    """Refuse a misspelt placeholder, or warn of one.

    In a text of several words, the braces may be intended, so the function only logs a warning.

    Raises:
        UsageError: A single word of the command or of a variable has a misspelt placeholder.
    """
    for template in (*run.command, *run.env.values(), *run.files.values(), run.before or ""):
        for placeholder in _BRACED_NAME.findall(template):
            suggestion = nearest_word(placeholder, _PLACEHOLDERS)
            if placeholder in _PLACEHOLDERS or suggestion is None:
                continue
            message = (
                f"agent {agent}: there is no placeholder {{{placeholder}}} (did you mean "
                f"{{{suggestion}}}?)"
            )
            if len(template.split()) == 1 and template not in run.files.values():
                raise UsageError(
                    f"{message}; known: {', '.join(map('{{{}}}'.format, _PLACEHOLDERS))}"
                )
            _warn(f"{message}; it is left as it is")


@cache
def _warn(text: str) -> None:
    """Log a warning only once, although several parts of a run read the profile."""
    log.warning(text)


def _command_profile(command: str, env: dict[str, str]) -> AgentProfile:
    """Return the profile of an agent that is a plain command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"agent {COMMAND}{command}: {error}") from None
    if not words:
        raise UsageError(f"agent {COMMAND} needs a command: cli:'my-agent {{query}}'")
    run = AgentStartCommand(command=tuple(words), env=env)
    _check_placeholders(f"{COMMAND}{command}", run)
    return AgentProfile(name="cli", run=run)
