"""What a run was made of, and what went wrong, for its reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from intercode.evaluate.report import errors_by_type
from intercode.evaluate.report_runs import Run
from intercode.evaluate.table import Kind, Table

_SHOWN = 8


def made_of(run: Run) -> Table:
    """What its record says of it, as far as it matters to a reader: settings, versions, times."""
    rows = tuple((name, text) for name, text in _facts(run) if text)
    return Table("What was run", (("", "text"), ("", "words")), rows)


def errors_of(run: Run) -> list[Table]:
    """Why episodes have no result; empty if all have one."""
    first: dict[str, str] = {}
    for outcome in run.outcomes:
        if outcome.failed:
            first.setdefault(outcome.error_type or "unknown", outcome.error or "")
    counts = errors_by_type(run.outcomes)
    rows = tuple((kind, count, " ".join(first[kind].split())) for kind, count in counts.items())
    columns: tuple[tuple[str, Kind], ...] = (
        ("kind", "text"),
        ("episodes", "count"),
        ("the first of them", "words"),
    )
    return [Table("Errors", columns, rows, "They count in no rate or mean.")] if rows else []


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    made = run.manifest
    env, dataset, agent = (made.get(name, {}) for name in ("env", "dataset", "agent"))
    yield "folder", str(run.folder)
    yield "environment", f"{env.get('env')}, protocol {env.get('protocol')}"
    yield "reward", str(env.get("reward", ""))
    yield "judge", _listed(env.get("judge", {}))
    yield "turns at most", str(env.get("max_turns") or "the environment's default")
    yield "limits", _listed(env.get("limits", {}))
    yield "dataset", f"{dataset.get('name')}, {dataset.get('tasks')} tasks"
    yield "its digest", str(dataset.get("digest", ""))
    yield "images", _few(list(env.get("images", {})))
    yield "excluded", _listed(made.get("excluded", {}))
    yield "agent", str(agent.get("name"))
    yield "its options", _listed(agent.get("options", {}))
    for name, value in agent.get("language_model", {}).items():
        yield name, _listed(value) if isinstance(value, Mapping) else _said(value)
    yield "seed", str(made.get("seed"))
    sessions = made.get("sessions", [])
    for session in sessions[-1:]:
        yield "attempts at each task", str(session.get("settings", {}).get("epochs", ""))
        yield "workers", str(session.get("settings", {}).get("workers", ""))
        yield "sandbox", str(env.get("sandbox", ""))
        yield "versions", _listed(session.get("versions", {}))
        yield "machine", _listed(session.get("host", {}))
    yield "started", str(sessions[0].get("started", "")) if sessions else ""
    yield "finished", str(sessions[-1].get("finished") or "not yet") if sessions else ""
    yield "sessions", str(len(sessions)) if len(sessions) > 1 else ""


def _listed(found: Mapping[str, Any]) -> str:
    """What is said, without what is not."""
    return _few([f"{name} {text}" for name, value in found.items() if (text := _said(value))])


def _few(texts: list[str]) -> str:
    more = [f"{len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return ", ".join(texts[:_SHOWN] + more)


def _said(value: object) -> str:
    """A value; nothing for what is not set."""
    return "" if value is None or value == [] or value == "" else str(value)
