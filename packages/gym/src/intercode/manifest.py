"""The schema of a run's ``run.json``: its types, and the validation of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from intercode.errors import RecordError

FORMAT = 1


class DatasetFacts(TypedDict):
    """The dataset of the run."""

    name: str
    source: str | None
    digest: str
    tasks: int
    version: NotRequired[int]
    """The version of a bundled dataset, or of InterCode's review of a dataset."""


class JudgeFacts(TypedDict, total=False):
    """The judge: the language model that scores outputs."""

    model: str


class EnvFacts(TypedDict, total=False):
    """The environment of the run. An environment may record further facts."""

    env: str
    protocol: str
    images: dict[str, str]
    judge: JudgeFacts
    max_turns: int | None
    limits: dict[str, Any]
    reward: str
    rules: dict[str, int]
    """Name of a grading rule → version of the rule. Older records lack this field."""


class _RequiredAgentFacts(TypedDict):
    name: str
    options: dict[str, str]
    digest: str


class ModelFacts(TypedDict, total=False):
    """The language model, and the options of its strategy."""

    model: str
    settings: dict[str, Any]
    limits: dict[str, Any]


class AgentFacts(_RequiredAgentFacts, total=False):
    """The agent of the run."""

    language_model: ModelFacts
    skills: dict[str, str]
    """Name of a skill of the agent → digest of the skill's files."""


class RunSessionSettings(TypedDict, total=False):
    """The settings of a session that may differ between the sessions of a run."""

    workers: int
    max_connections: int | None
    max_sandboxes: int | None
    model_timeout: float
    limit: int | None
    tasks: list[str] | None
    epochs: int
    max_retries: int


class RecordedSessionOptions(TypedDict, total=False):
    """The recorded options of a session.

    This type lists the two options that `check_manifest` validates; `intercode.spec` validates the
    others.
    """

    env: str
    agent: str


class _RequiredSessionFields(TypedDict):
    started: str
    finished: str | None
    settings: RunSessionSettings
    versions: dict[str, str]
    host: dict[str, Any]


class RunSession(_RequiredSessionFields, total=False):
    """One session of a run: its time, host, versions and options."""

    options: RecordedSessionOptions
    locked: dict[str, Any]
    differs: dict[str, Any]
    sandbox: dict[str, Any]
    tools: dict[str, dict[str, str]]
    episodes: int
    seconds: float
    interrupted: bool


class _RequiredManifestFields(TypedDict):
    format: Literal[1]
    dataset: DatasetFacts
    env: EnvFacts
    agent: AgentFacts
    seed: int
    excluded: dict[str, str]
    sessions: list[RunSession]


class RunManifest(_RequiredManifestFields, total=False):
    """The contents of ``run.json``: the facts that identify a run, and its sessions."""

    needs_gold: bool
    rescored: dict[str, Any]


def check_manifest(document: object, path: Path) -> dict[str, Any]:
    """Validate the content of a ``run.json``, and return it.

    Args:
        document: The parsed content.
        path: The path of the file, for messages.

    Raises:
        RecordError: The file is damaged, or of another version; the message names the field.
    """
    import msgspec

    if not isinstance(document, dict):
        raise RecordError(f"{path} is not a JSON object")
    if isinstance(version := document.get("format"), int) and version != FORMAT:
        raise RecordError(
            f"{path} was written by another version of intercode (format {version}, not {FORMAT})"
        )
    try:
        msgspec.convert(document, RunManifest)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        problem, _, field = str(error).replace("`", "").partition(" - at $.")
        location = f"field {field}: " if field else ""
        raise RecordError(f"{path} is damaged: {location}{problem}") from None
    return document
