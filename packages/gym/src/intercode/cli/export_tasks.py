"""Execution of ``intercode datasets export``: tasks as folders of another framework."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import ProgressLine, one_line, print_json, safe
from intercode.cli.validate import make_spec
from intercode.envs.base import InterCodeEnv
from intercode.errors import TaskError, UsageError
from intercode.evaluate.run_setup import plan, resolve_setting
from intercode.registry import TASK_EXPORTERS
from intercode_sandbox.units import format_count


def execute(args: argparse.Namespace) -> int:
    """Write a folder for each task, and print the tasks that cannot be exported, with reasons.

    Returns:
        The exit code: 0 if all tasks were exported, 1 if not.

    Raises:
        UsageError: The tasks belong to an environment of another framework.
    """
    task_exporter = TASK_EXPORTERS.get(args.to)
    line, watcher = ProgressLine(args.quiet), ProgressPrinter(quiet=args.quiet)
    export_plan = plan(make_spec(args), watcher)
    exported_folders: list[Path] = []
    skip_reasons: dict[str, str] = {}
    with closing(resolve_setting(export_plan, watcher).make()) as env:
        if not isinstance(env, InterCodeEnv):
            raise UsageError(
                f"the tasks of {args.data!r} run in another framework: export them there"
            )
        exporter = task_exporter(env, args.out, args.base)
        for task in export_plan.tasks:
            line.show(f"{len(exported_folders) + len(skip_reasons)} of {len(export_plan.tasks)}")
            try:
                exported_folders.append(exporter.export(task))
            except TaskError as error:
                skip_reasons[task.task_id] = str(error)
    line.clear()
    if args.json:
        folders = [str(folder) for folder in exported_folders]
        print_json({"to": args.to, "exported": folders, "left_out": skip_reasons})
    else:
        for reason in skip_reasons.values():
            print(f"left out: {one_line(reason, 400)}")
        print(f"{format_count(len(exported_folders), 'task')} in {safe(str(args.out))}")
    return 1 if skip_reasons else 0
