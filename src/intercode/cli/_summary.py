"""A run's summary: as a table for people, as JSON for programs."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from intercode.cli._text import one_line, safe, table
from intercode.evaluate import judged
from intercode.evaluate.judged import as_data, judging, rate_name
from intercode.evaluate.report import by_tag, errors_by_type, summarize
from intercode.evaluate.report_tables import Table, groups
from intercode.records import Outcome

SHOWN_ERRORS = 5


def facts(manifest: Mapping[str, Any]) -> str:
    """One line that says what was run."""
    env, dataset = manifest.get("env", {}), manifest.get("dataset", {})
    shown = ", shown gold" if manifest.get("needs_gold") else ""
    parts = [
        str(env.get("env", "")),
        f"agent {manifest.get('agent', {}).get('name')}{shown}",
        f"{dataset.get('name')} ({dataset.get('tasks')} tasks, {str(dataset.get('digest'))[:8]})",
        _images(list(env.get("images", {}))),
        f"protocol {env.get('protocol')}",
        f"judged by {env['judge']['model']}" if "judge" in env else "",
        f"seed {manifest.get('seed')}",
        _excluded(manifest),
    ]
    return safe(" · ".join(part for part in parts if part))


def as_json(outcomes: Sequence[Outcome], judge: str | None = None) -> dict[str, Any]:
    """The statistics as plain data.

    Args:
        outcomes: What is summarized.
        judge: The model whose word some of the successes may be.
    """
    found = judging(judge, outcomes)
    return {
        **({} if found is None else {"judge": asdict(found)}),
        "statistics": as_data(summarize(outcomes), judge),
        "tags": {tag: as_data(stats, judge) for tag, stats in by_tag(outcomes).items()},
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


def as_text(outcomes: Sequence[Outcome], tags: int, judge: str | None = None) -> str:
    """The statistics as a table, by tag where there are tags, and the errors by kind.

    Args:
        outcomes: What is summarized.
        tags: Only the most frequent ones, so many.
        judge: The model whose word some of the successes may be.
    """
    named = list(by_tag(outcomes).items())
    rows = {"all": summarize(outcomes), **{f"  {tag}": found for tag, found in named[:tags]}}
    text = written(groups("", rows, rate=rate_name(judge))).rstrip("\n")
    if len(named) > tags:
        text += f"\n  ... {len(named) - tags} more tags: see 'intercode report'"
    for found in judged.tables({judge or "": judging(judge, outcomes)}):
        text += f"\n\n{written(found)}".rstrip("\n")
    if remarks := _remarks(outcomes):
        text += "\n\n" + "\n".join(remarks)
    if failed := errors(outcomes).rstrip("\n"):
        text += f"\n\n{failed}"
    return text


def written(found: Table) -> str:
    """A table for the terminal, with what it is about above it and its note below."""
    rows = [[safe(cell) for cell in row] for row in found.cells()]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = table([safe(name) for name, _ in found.columns], rows, found.left, width) + "\n"
    title = f"{found.title}\n" if found.title else ""
    note = [textwrap.fill(line, width) if width else line for line in safe(found.note).splitlines()]
    return title + text + "".join(f"{line}\n" for line in note)


def _remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """Successes that a reader may want to count apart, and sandboxes that did not last."""
    found = summarize(outcomes)
    lines = found.remarks()
    if found.ended:
        lines.append(
            f"Ended by the agent, whose code ended its sandbox: {found.ended}. They count."
        )
    if found.restarts:
        lines.append(f"Begun again, as a sandbox was lost otherwise: {found.restarts} times.")
    return lines


def errors(outcomes: Sequence[Outcome]) -> str:
    """The episodes without a result by kind, and the first of them; empty if there are none."""
    kinds = errors_by_type(outcomes)
    if not kinds:
        return ""
    counts = ", ".join(f"{count} {safe(kind)}" for kind, count in kinds.items())
    failed = [outcome for outcome in outcomes if outcome.failed]
    lines = [f"Episodes without a result: {counts}. They count in no rate or mean."]
    lines += [f"  {safe(o.task_id)}: {one_line(o.error or '', 200)}" for o in failed[:SHOWN_ERRORS]]
    if len(failed) > SHOWN_ERRORS:
        lines.append(f"  … and {len(failed) - SHOWN_ERRORS} more")
    return "\n".join(lines) + "\n"


def _excluded(manifest: Mapping[str, Any]) -> str:
    """How many tasks the run has left out; empty if none."""
    count = len(manifest.get("excluded", {}))
    return f"{count} task{'s' * (count != 1)} excluded" if count else ""


def _images(names: Sequence[str]) -> str:
    return f"image {names[0]}" if len(names) == 1 else f"{len(names)} images"
