"""Write tasks as folders of another framework."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from intercode.cli.results import Watcher
from intercode.cli.terminal import LiveLine, one_line, print_json, safe
from intercode.cli.validate import spec_of
from intercode.envs.base import InterCodeEnv
from intercode.errors import TaskError, UsageError
from intercode.evaluate.prepare import plan, setting
from intercode.registry import TASK_EXPORTERS
from intercode_sandbox.units import format_count


def execute(args: argparse.Namespace) -> int:
    """Write the folders; say which tasks were left out, and why."""
    form = TASK_EXPORTERS.get(args.to)
    line, watcher = LiveLine(args.quiet), Watcher(quiet=args.quiet)
    asked = plan(spec_of(args), watcher)
    exported: list[Path] = []
    left_out: dict[str, str] = {}
    with closing(setting(asked, watcher).make()) as env:
        if not isinstance(env, InterCodeEnv):
            raise UsageError(f"the tasks of {args.data!r} are tried elsewhere: export them there")
        exporter = form(env, args.out, args.base)
        for task in asked.tasks:
            line.show(f"{len(exported) + len(left_out)} of {len(asked.tasks)}")
            try:
                exported.append(exporter.export(task))
            except TaskError as error:
                left_out[task.task_id] = str(error)
    line.clear()
    if args.json:
        folders = [str(folder) for folder in exported]
        print_json({"to": args.to, "exported": folders, "left_out": left_out})
    else:
        for why in left_out.values():
            print(f"left out: {one_line(why, 400)}")
        print(f"{format_count(len(exported), 'task')} in {safe(str(args.out))}")
    return 1 if left_out else 0
