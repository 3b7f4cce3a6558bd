"""A command of a labeller's own in the state before an episode's first command.

`python benchmarks/graders/look.py RELEASE nl2bash_fs_1 'ls -l /testbed'`, or with a database's name
instead of a suite's, and a query (in SQLite's dialect).
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import intercode
from intercode.datasets import nl2bash, spider
from intercode.interpreters.bash import BashInterpreter
from intercode_sandbox import get_provider


def main() -> None:
    """Run the command, and print its output."""
    release, where, command = sys.argv[1:4]
    if where.startswith("nl2bash"):
        with closing(get_provider().start(next(iter(nl2bash.load(release, where))).image)) as box:
            sys.stdout.buffer.write(BashInterpreter(box).execute(command, 30.0).output)
        return
    tasks = spider.load(f"{release}/data/sql/spider")
    env: Any = intercode.make("sql", data=tasks, engine="sqlite")
    with closing(env):
        task = next(task for task in tasks if env.image(task) == where)
        env.reset(options={"task_id": task.task_id})
        print(env.step(command)[0])


if __name__ == "__main__":
    main()
