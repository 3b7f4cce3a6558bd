"""Of how much of a dataset a run tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intercode.records import Outcome


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of how much of a dataset the numbers tell."""

    tasks: int
    """That the dataset has."""
    epochs: int
    planned: int
    """Episodes that were asked for."""
    scored: int
    errored: int
    missing: int
    """Episodes that were asked for and did not take place (yet)."""
    excluded: int
    """Tasks that were left out by name."""
    coverage: float | None
    """Scored episodes, of those that the whole dataset makes."""


def covered(manifest: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Coverage:
    """Of how much of its dataset a run's numbers tell, by its ``run.json``."""
    tasks = int(manifest.get("dataset", {}).get("tasks", 0))
    excluded = manifest.get("excluded", {})
    settings = [session.get("settings", {}) for session in manifest.get("sessions", [])]
    epochs = max([int(s.get("epochs", 1)) for s in settings], default=1)
    asked = [
        _asked(setting, tasks, excluded) * int(setting.get("epochs", 1)) for setting in settings
    ]
    errored = sum(outcome.failed for outcome in outcomes)
    planned = max([*asked, len(outcomes)])
    return Coverage(
        tasks=tasks,
        epochs=epochs,
        planned=planned,
        scored=len(outcomes) - errored,
        errored=errored,
        missing=planned - len(outcomes),
        excluded=len(excluded),
        coverage=(len(outcomes) - errored) / (tasks * epochs) if tasks else None,
    )


def _asked(settings: Mapping[str, Any], tasks: int, excluded: Mapping[str, str]) -> int:
    """How many tasks a session was to run."""
    chosen = settings.get("tasks")
    count = len(set(chosen) - set(excluded)) if chosen else tasks - len(excluded)
    return min(count, settings.get("limit") or count)
