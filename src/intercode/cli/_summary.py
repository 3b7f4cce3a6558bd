"""A run's summary: as a table for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from intercode.cli._text import number, percent, safe, table
from intercode.evaluate.report import Outcome, Statistics, by_tag, errors_by_type, summarize

_HEADER = ("", "episodes", "success", "95 % interval", "reward", "turns", "seconds", "errors")
SHOWN_ERRORS = 5


def facts(manifest: Mapping[str, Any]) -> str:
    """One line that says what was run."""
    env, dataset = manifest.get("env", {}), manifest.get("dataset", {})
    parts = [
        str(env.get("env", "")),
        f"agent {manifest.get('agent', {}).get('name')}",
        f"{dataset.get('name')} ({dataset.get('tasks')} tasks, {str(dataset.get('digest'))[:8]})",
        _images(list(env.get("images", {}))),
        f"protocol {env.get('protocol')}",
        f"seed {manifest.get('seed')}",
        _excluded(manifest),
    ]
    return safe(" · ".join(part for part in parts if part))


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The statistics as plain data."""
    return {
        "statistics": asdict(summarize(outcomes)),
        "tags": {tag: asdict(stats) for tag, stats in by_tag(outcomes).items()},
        "errors": [
            {
                "task_id": outcome.task_id,
                "epoch": outcome.epoch,
                "type": outcome.error_type,
                "error": outcome.error,
            }
            for outcome in outcomes
            if outcome.failed
        ],
    }


def as_text(outcomes: Sequence[Outcome], tags: int | None = None) -> str:
    """The statistics as a table, by tag where there are tags, and the errors by kind.

    Args:
        outcomes: What is summarized.
        tags: Only the most frequent ones, so many; None: all.
    """
    groups = list(by_tag(outcomes).items())
    rows = [_row("all", summarize(outcomes))]
    rows += [_row(f"  {safe(tag)}", stats) for tag, stats in groups[:tags]]
    text = table(_HEADER, rows)
    if tags is not None and len(groups) > tags:
        text += f"\n  ... {len(groups) - tags} more tags: see 'intercode report'"
    if kinds := errors_by_type(outcomes):
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        text += f"\n\nEpisodes without a result: {counts}. They count in no rate or mean.\n"
        failed = [outcome for outcome in outcomes if outcome.failed]
        text += "\n".join(
            f"  {safe(o.task_id)}: {safe(o.error or '')}" for o in failed[:SHOWN_ERRORS]
        )
        if len(failed) > SHOWN_ERRORS:
            text += f"\n  … and {len(failed) - SHOWN_ERRORS} more"
    return text


def _excluded(manifest: Mapping[str, Any]) -> str:
    """How many tasks the run has left out; empty if none."""
    count = len(manifest.get("excluded", {}))
    return f"{count} task{'s' * (count != 1)} excluded" if count else ""


def _images(names: Sequence[str]) -> str:
    return f"image {names[0]}" if len(names) == 1 else f"{len(names)} images"


def _row(name: str, stats: Statistics) -> list[str]:
    interval = "-"
    if stats.success_low is not None and stats.success_high is not None:
        interval = f"{100 * stats.success_low:.1f} - {100 * stats.success_high:.1f} %"
    return [
        name,
        str(stats.episodes),
        percent(stats.success_rate),
        interval,
        number(stats.mean_reward, 3),
        number(stats.mean_turns, 1),
        number(stats.mean_seconds, 3),
        str(stats.errors),
    ]
