"""The command ``intercode replay``: it replays recorded runs of 2023, and prints the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode import datasets
from intercode.cli.terminal import (
    ProgressLine,
    duration,
    percent,
    print_json,
    print_message,
    safe,
    table,
)
from intercode.errors import TaskNotFoundError, UsageError
from intercode.evaluate.run_setup import find_provider
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.task import Dataset
    from intercode_paper.ctf_env import CtfReplayReport
    from intercode_paper.python_env import PythonReplayReport
    from intercode_paper.replay_report import Progress, RegradedReplayReport, ReplayReport
    from intercode_paper.results_files import RecordedRun
    from intercode_paper.sql_replay import DifficultyCounts, SqlReplayReport

_SUITES = {
    "sql": ("SQL", "spider", "spider"),
    "python": ("Python", "mbpp", "mbpp"),
    "ctf": ("CTF", "ic-ctf", "ic-ctf"),
}
"""Environment → display name, the only suite with a recorded run, and the name of the dataset."""
_LEVELS = ("easy", "medium", "hard", "extra")
"""The difficulties in the order of the columns in the paper's table."""


def execute(args: argparse.Namespace) -> int:
    """Replay a recorded run, print the report, and return the exit code.

    Raises:
        UsageError: The options are inconsistent.
        TaskNotFoundError: The run lacks an episode that ``--tasks`` names.
        RecordError: The results cannot be read, or belong to other tasks.
        TaskError, RewardError: The tasks are malformed, or lack a field that the reward needs.
        SandboxError, ImageError, DatabaseError: The infrastructure failed.
    """
    from intercode_paper.results_files import load_results, update_queries

    args.env = args.env or "bash"
    _check(args)
    recorded_run = load_results(args.results)
    tasks = _tasks(args)
    recorded_run, reworded_ids = update_queries(tasks, recorded_run)
    if reworded_ids:
        print_message(
            f"intercode: {_format_ids(reworded_ids)} of the data: matched by id, because their "
            "text has changed since the run"
        )
    selected_run = _select_episodes(recorded_run, args)
    progress = None if args.quiet else _progress()
    replay = {"bash": _bash, "sql": _sql, "python": _python, "ctf": _ctf}[args.env]
    report, extra_fields, extra_text = replay(args, tasks, selected_run, progress)
    if args.json:
        header_fields = {"results": str(args.results), "reworded": list(reworded_ids)}
        print_json({**header_fields, **extra_fields, **report.to_dict()})
    else:
        print("\n\n".join(filter(None, (_comparison_text(report), extra_text))))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.results is None:
        raise UsageError("name the recorded file: --results FILE")
    if args.rows or args.page:
        raise UsageError("--rows and --page are for --rescore")
    if (args.data is None) == (args.upstream is None):
        raise UsageError("name the tasks of the run: --data FILE, or --upstream DIR")
    if args.env == "bash" and (args.upstream is None) != (args.suite is None):
        raise UsageError("--upstream DIR and --suite NAME belong together")
    if args.env == "sql" and args.image is not None:
        raise UsageError("--image is for bash: an SQL run has an --engine")
    if args.env != "sql" and (args.engine or args.databases):
        raise UsageError("--engine and --databases are for sql: another run has an --image")
    if args.env in _SUITES and args.upstream is not None:
        display_name, suite, _ = _SUITES[args.env]
        if args.suite not in (None, suite):
            raise UsageError(
                f"no {display_name} run of suite {args.suite!r} is supported, only of {suite!r}"
            )


def _tasks(args: argparse.Namespace) -> Dataset:
    if args.data is not None:
        return datasets.load(args.data)
    if args.env == "bash":
        return datasets.load("nl2bash", root=args.upstream, suite=args.suite)
    return datasets.load(_SUITES[args.env][2], root=args.upstream)


ReplayOutput = tuple["ReplayReport", "dict[str, Any]", str]
"""A report, further fields for the JSON object, and a text to print after the comparison."""


def _bash(
    args: argparse.Namespace, tasks: Dataset, recorded_run: RecordedRun, progress: Progress | None
) -> ReplayOutput:
    from intercode.datasets.nl2bash import image_for
    from intercode_paper.bash_env import replay_bash, suites_by_episode

    image = args.image or tasks[0].image or "nl2bash"
    task_images: dict[str, str] = {}
    if args.upstream is not None and args.image is None:
        task_images = {
            task_id: image_for(args.upstream.resolve(), suite)
            for task_id, suite in suites_by_episode(recorded_run).items()
        }
    provider = find_provider("bash", report_line=print_message)
    for image_name in dict.fromkeys([image, *task_images.values()]):
        # Images are built before the workers start, so the build does not count as replay time.
        provider.digest(image_name)
    report = replay_bash(tasks, recorded_run, provider, image, args.workers, progress, task_images)
    lines = [
        f"{_format_ids([task_id for task_id, name in task_images.items() if name == other_image])}"
        f" in {safe(other_image)}, where they were recorded"
        for other_image in dict.fromkeys(task_images.values())
    ]
    return report, {"image": image, "elsewhere": task_images}, "\n".join(lines)


def _sql(
    args: argparse.Namespace, tasks: Dataset, recorded_run: RecordedRun, progress: Progress | None
) -> ReplayOutput:
    from intercode_paper.sql_replay import replay_sql
    from intercode_paper.sql_server import default_engine, open_databases

    databases_path = args.databases or tasks.databases
    if databases_path is None:
        raise UsageError(f"{args.data}: name the folder of its databases: --databases PATH")
    dialect = str(tasks[0].metadata.get("dialect", "mysql"))
    engine, on_message = args.engine or default_engine(), None if args.quiet else print_message
    with closing(open_databases(engine, Path(databases_path), dialect, on_message)) as databases:
        report = replay_sql(tasks, recorded_run, databases, progress)
    return report, {}, _rates_text(report)


def _python(
    args: argparse.Namespace, tasks: Dataset, recorded_run: RecordedRun, progress: Progress | None
) -> ReplayOutput:
    from intercode_paper.python_env import replay_python

    provider = find_provider("python", report_line=print_message)
    report: PythonReplayReport = replay_python(
        tasks, recorded_run, provider, args.image, args.workers, progress
    )
    return report, {}, f"{_default_success_text(report)}\non Python {report.python}"


def _ctf(
    args: argparse.Namespace, tasks: Dataset, recorded_run: RecordedRun, progress: Progress | None
) -> ReplayOutput:
    from intercode_paper.ctf_env import replay_ctf

    provider = find_provider("bash", report_line=print_message)
    if args.image is not None:
        # The image is built before the workers start, so the build does not count as replay time.
        provider.digest(args.image)
    report: CtfReplayReport = replay_ctf(
        tasks, recorded_run, provider, args.image, args.workers, progress
    )
    files_line = f"episodes without the task's files: {report.without_files} of {report.episodes}"
    return report, {}, f"{_default_success_text(report)}\n{files_line}"


def _format_ids(ids: Sequence[str]) -> str:
    """Return the ids of tasks as text for messages, with consecutive numbers as a range."""
    id_runs: list[list[str]] = []
    for task_id in ids:
        if id_runs and task_id.isdecimal() and id_runs[-1][-1] == str(int(task_id) - 1):
            id_runs[-1].append(task_id)
        else:
            id_runs.append([task_id])
    ranges = [
        task_id[0] if len(task_id) == 1 else f"{task_id[0]} to {task_id[-1]}" for task_id in id_runs
    ]
    return safe(f"task{'s' * (len(ids) > 1)} {', '.join(ranges)}")


def _select_episodes(recorded_run: RecordedRun, args: argparse.Namespace) -> RecordedRun:
    """Return the run with only the episodes that the options select, in recorded order."""
    episodes = recorded_run.episodes
    if args.tasks:
        task_ids = set(args.tasks)
        if missing_ids := task_ids - {episode.task_id for episode in episodes}:
            raise TaskNotFoundError(
                f"{args.results} has no episode {', '.join(sorted(missing_ids))}"
            )
        episodes = tuple(episode for episode in episodes if episode.task_id in task_ids)
    return replace_fields(recorded_run, episodes=episodes[: args.limit])


def _progress() -> Progress:
    live_line = ProgressLine()

    def show(count: int, total: int) -> None:
        text = f"{count}/{format_count(total, 'episode')}"
        if count == total:
            live_line.announce(text)
        elif live_line.is_due():
            (live_line.show if live_line.live else live_line.announce)(text)

    return show


def _comparison_text(report: ReplayReport) -> str:
    """Return a comparison of record and replay as text: a table, mismatches and duration.

    The table counts equal rewards, equal observations and successes.
    """
    rows = [
        _row("rewards equal (turns)", report.reward_equal, report.turns),
        _row("observations equal (turns)", report.observation_equal, report.turns),
        _row("success agrees (episodes)", report.success_agree, report.episodes),
        _row("success recorded", report.success_recorded, report.episodes),
        _row("success replayed", report.success_replayed, report.episodes),
    ]
    text = table(("", "count", "of", "share"), rows)
    if report.mismatches:
        reward_differences = sum(
            abs(mismatch.reward_recorded - mismatch.reward_replayed) > 1e-9
            for mismatch in report.mismatches
        )
        turns_text = format_count(len(report.mismatches), "turn")
        text += f"\n\nmismatches: {turns_text}, {reward_differences} of them with another reward"
        text += "\n(--json lists each of them)"
    return f"{text}\n\n{format_count(report.episodes, 'episode')} in {duration(report.seconds)}"


def _row(label: str, count: int, total: int) -> tuple[str, str, str, str]:
    return label, str(count), str(total), percent(count / total if total else None)


def _default_success_text(report: RegradedReplayReport) -> str:
    """Return a text about the success of the same episodes under the default protocol."""
    text = f"success under the default protocol: {report.success_default} of {report.episodes}"
    success_changes = (("lost", report.success_lost), ("gained", report.success_gained))
    for label, tasks in success_changes:
        if tasks:
            text += f"\n  {label}: {safe(', '.join(tasks))}"
    return text


def _rates_text(report: SqlReplayReport) -> str:
    """Return success rates by difficulty, as in the paper's table, and the reward's versions."""
    standard_levels = [level for level in _LEVELS if level in report.by_hardness]
    levels = standard_levels + sorted(set(report.by_hardness) - set(standard_levels))
    level_counts = [report.by_hardness[level] for level in levels]
    rows = [
        ("recorded", *(_success_rate(counts.success_recorded, counts) for counts in level_counts)),
        ("replayed", *(_success_rate(counts.success_replayed, counts) for counts in level_counts)),
    ]
    success_counts = (report.success_recorded, report.success_replayed)
    rows = [
        (*row, percent(count / report.episodes if report.episodes else None))
        for row, count in zip(rows, success_counts, strict=True)
    ]
    text = table((f"success on {report.engine}", *levels, "all"), rows)
    reward_versions = sorted({part.version for part in report.parts})
    turn_counts = {
        version: sum(
            report_part.turns for report_part in report.parts if report_part.version == version
        )
        for version in reward_versions
    }
    versions_text = ", ".join(
        f"{version} ({format_count(count, 'turn')})" for version, count in turn_counts.items()
    )
    return f"{text}\n\nversion of the reward, inferred from what agrees: {versions_text}"


def _success_rate(count: int, counts: DifficultyCounts) -> str:
    return percent(count / counts.episodes if counts.episodes else None)
