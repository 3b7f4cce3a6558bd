"""What came of scoring a run again, for people and for programs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.cli import _summary
from intercode.cli._text import duration, number, percent, print_json, safe, table
from intercode.evaluate import judged
from intercode.evaluate.judged import as_data, judge_of, judging, with_judge
from intercode.evaluate.report import summarize
from intercode.evaluate.report_runs import Paired, compare
from intercode.evaluate.report_tables import groups
from intercode.evaluate.rescore import Rescored, Result
from intercode.records import read_manifest

SHOWN = 20
"""Changes that are listed; --json has all."""
_WAYS = {
    "record": "from the record alone",
    "again": "by doing the recorded actions again",
    "not reproducible": "not reproducible",
    "failed": "failed",
    "no result": "without a result, as recorded",
}


def show(as_json: bool, run: Path, out: Path, result: Rescored) -> None:
    """Print it."""
    if as_json:
        print_json(_as_json(run, out, result))
        return
    before, now = read_manifest(run), read_manifest(out)
    rewards = [str(manifest["env"].get("reward", "default")) for manifest in (before, now)]
    print(_summary.facts(now), end="\n\n")
    judges = judge_of(before, result.before), judge_of(now, result.outcomes)
    names = [with_judge(*pair) for pair in zip(("recorded", "rescored"), judges, strict=True)]
    rows = dict(zip(names, (summarize(result.before), result.statistics), strict=True))
    judge = judged.tables({names[1]: judging(judges[1], result.outcomes)})
    print("\n".join(map(_summary.written, (groups("", rows), *judge))))
    print(f"reward: recorded {safe(rewards[0])}, now {safe(rewards[1])}")
    print(_ways(result), _compared(compare(result.before, result.outcomes)), sep="\n")
    for text in (_changes(result.changes), _summary.errors(result.outcomes)):
        if text:
            print(f"\n{text}", end="")
    if before["env"].get("reward_every_turn"):
        print(
            "\nnote: the agent was told the recorded reward of every turn; with this one it might "
            "have acted otherwise"
        )
    print(f"\n{result.ran} episodes in {duration(result.seconds)}")
    print(f"run: {out}")
    if missing := result.planned - len(result.outcomes):
        print(f"interrupted: {missing} episodes are missing; the same command goes on with it")
    else:
        print(f"compare: intercode report {shlex.quote(str(run))} {shlex.quote(str(out))}")


def _ways(result: Rescored) -> str:
    ways = result.ways
    found = [f"{ways[way]} {text}" for way, text in _WAYS.items() if way in ways]
    return "scored: " + ", ".join(found) if found else "scored: none"


def _compared(paired: Paired | None) -> str:
    """How the success rate has changed, on the tasks that have both."""
    if paired is None:
        return "no task has both a recorded reward and a new one"
    seen = paired.difference
    text = (
        f"on {paired.tasks} tasks: success {percent(paired.first)} → {percent(paired.second)}, "
        f"{100 * seen.value:+.1f} points"
    )
    if seen.low is not None and seen.high is not None:
        text += f" [{100 * seen.low:.1f}, {100 * seen.high:.1f}]"
    if paired.test is not None:
        lost, gained = paired.test.only_first, paired.test.only_second
        text += f"; {lost} solved before only, {gained} now only, p {paired.test.p:.3f}"
    return text


def _changes(changes: list[Result]) -> str:
    """Which episodes have another reward, and what that does to them."""
    if not changes:
        return "no reward has changed\n"
    rows = [
        [
            safe(change.after.task_id),
            str(change.after.epoch),
            number(change.before.reward),
            number(change.after.reward),
            _verdict(change),
        ]
        for change in changes[:SHOWN]
    ]
    text = table(["changed", "epoch", "recorded", "rescored", ""], rows) + "\n"
    more = len(changes) - SHOWN
    return text + (f"… and {more} more (--json has them all)\n" if more > 0 else "")


def _verdict(change: Result) -> str:
    """What a change does to success."""
    if change.before.success == change.after.success:
        return ""
    return "solved now" if change.after.success else "no longer solved"


def _as_json(run: Path, out: Path, result: Rescored) -> dict[str, Any]:
    paired = compare(result.before, result.outcomes)
    manifest = read_manifest(out)
    return {
        "run": str(out),
        "rescored": str(run),
        "reward": manifest["env"]["reward"],
        "ways": result.ways,
        "planned": result.planned,
        "finished": len(result.outcomes),
        "ran": result.ran,
        "seconds": result.seconds,
        "interrupted": result.cut_short,
        "before": as_data(summarize(result.before), judge_of(read_manifest(run), result.before)),
        "paired": None if paired is None else asdict(paired),
        "changes": [
            {
                "task_id": change.after.task_id,
                "epoch": change.after.epoch,
                "before": change.before.reward,
                "after": change.after.reward,
            }
            for change in result.changes
        ],
        **_summary.as_json(result.outcomes, judge_of(manifest, result.outcomes)),
    }
