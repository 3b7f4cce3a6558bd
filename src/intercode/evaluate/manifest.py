"""What a run's ``run.json`` says, and whether a run can be gone on with."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any, TypedDict

from intercode.errors import RecordError
from intercode.evaluate.provenance import own_versions

FORMAT = 1
_IDENTITY = ("dataset.name", "dataset.digest", "env", "agent", "seed", "excluded", "rescored")


class DatasetFacts(TypedDict):
    """Which tasks were run."""

    name: str
    source: str | None
    digest: str
    tasks: int


class _Agent(TypedDict):
    name: str
    options: dict[str, str]
    digest: str


class AgentFacts(_Agent, total=False):
    """Who acted."""

    language_model: dict[str, Any]


class _Session(TypedDict):
    started: str
    finished: str | None
    settings: dict[str, Any]
    versions: dict[str, str]
    host: dict[str, Any]


class Session(_Session, total=False):
    """One call that worked on a run: when, where and with what."""

    options: dict[str, Any]
    locked: dict[str, Any]
    differs: dict[str, Any]
    sandbox: dict[str, Any]
    tools: dict[str, dict[str, str]]
    episodes: int
    seconds: float
    interrupted: bool


class _Manifest(TypedDict):
    format: int
    dataset: DatasetFacts
    env: dict[str, Any]
    agent: AgentFacts
    seed: int
    excluded: dict[str, str]
    sessions: list[Session]


class Manifest(_Manifest, total=False):
    """What ``run.json`` has: the facts that identify a run, and its sessions."""

    needs_gold: bool
    rescored: dict[str, Any]


def describe(
    *,
    dataset: Mapping[str, Any],
    env: Mapping[str, Any],
    agent: Mapping[str, Any],
    needs_gold: bool,
    seed: int,
    excluded: Mapping[str, str],
) -> dict[str, Any]:
    """The first ``run.json`` of a run: what identifies it. Its sessions are appended."""
    return {
        "format": FORMAT,
        "dataset": dict(dataset),
        "env": dict(env),
        "agent": dict(agent),
        "needs_gold": needs_gold,
        "seed": seed,
        "excluded": dict(excluded),
        "sessions": [],
    }


def session(context: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """One call that worked on the run: when, where and with what.

    Args:
        context: What else there is to say of it: its sandboxes, its images' tools.
        settings: What it was asked for and does not identify the run.
    """
    return {
        **(context or {}),
        "started": _now(),
        "finished": None,
        "settings": settings,
        "versions": _versions(),
        "host": {
            "system": os.uname().sysname,
            "release": os.uname().release,
            "machine": os.uname().machine,
            "cpus": os.cpu_count(),
            "root": os.geteuid() == 0,
        },
    }


def finish(session: dict[str, Any], *, episodes: int, seconds: float, interrupted: bool) -> None:
    """Say in a session how it ended."""
    session.update(
        finished=_now(), episodes=episodes, seconds=round(seconds, 3), interrupted=interrupted
    )


def check_format(recorded: Mapping[str, Any], folder: object) -> None:
    """Refuse a run that we might not understand.

    Raises:
        RecordError: It was written in another format.
    """
    if recorded.get("format") != FORMAT:
        raise RecordError(
            f"{folder} was written by another version of intercode "
            f"(format {recorded.get('format')!r}, not {FORMAT})"
        )


def check_same(recorded: Mapping[str, Any], wanted: Mapping[str, Any], folder: object) -> None:
    """Refuse to mix two different runs in one folder.

    Raises:
        RecordError: It names each setting that differs, with both values.
    """
    before, now = flat(recorded), flat(wanted)
    differences = [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
        and any(key == name or key.startswith(f"{name}.") for name in _IDENTITY)
    ]
    if differences:
        raise RecordError(
            f"{folder} holds another run: {'; '.join(differences)}. "
            "Choose another folder, or the settings that it was made with"
        )


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = list(value) if isinstance(value, tuple) else value
    return found


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), **own_versions()}
    return versions | {name: version(name) for name in ("gymnasium", "numpy")}


def version(name: str) -> str:
    """The version of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
