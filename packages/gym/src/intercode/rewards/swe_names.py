"""Names of pytest tests that end early because a log or a list cut them at a blank.

A cut name stands for the one test whose name begins with it. To find that test, pytest lists the
complete names in a sandbox that holds the tests and gold, and in which no agent has been.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from intercode.errors import TaskError
from intercode.rewards.swe_plan import SweGradingPlan
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend
from intercode_sandbox.units import MIB

_OUTPUT = 64 * MIB
_COLLECT = """\
import json, os, sys
report = os.dup(1)
os.dup2(2, 1)
import pytest

class Names:
    def pytest_collection_finish(self, session):
        with os.fdopen(report, "w") as file:
            json.dump([item.nodeid for item in session.items], file)

sys.path[0] = os.getcwd()
pytest.main(["--collect-only", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider",
             f"--rootdir={os.getcwd()}", *json.load(sys.stdin)], plugins=[Names()])
"""


def is_cut(name: str) -> bool:
    """Return whether the name of a pytest test is cut within its parameters (``test[a``)."""
    return "[" in name and not name.endswith("]")


def collect_names(sandbox: SandboxBackend, plan: SweGradingPlan) -> list[str]:
    """Return the names of all tests in the plan's files; [] if pytest cannot list them."""
    files = dict.fromkeys(name.partition("::")[0] for name in plan.tests)
    seconds = sandbox.limits.seconds(plan.timeout)
    existing_files = [file for file in files if _is_there(sandbox, plan, file)]
    result = sandbox.exec(
        [plan.python, "-c", _COLLECT],
        stdin=json.dumps(existing_files).encode(),
        cwd=plan.directory,
        timeout=seconds,
        output_limit=_OUTPUT,
    )
    try:
        names = json.loads(result.stdout)
    except ValueError:
        return []
    return [str(name) for name in names]


def _is_there(sandbox: SandboxBackend, plan: SweGradingPlan, file: str) -> bool:
    path = Path(plan.directory, file)
    return sandbox.exec(["test", "-e", str(path)], cwd="/").ok


def resolve_names(task: Task, plan: SweGradingPlan, names: Sequence[str]) -> SweGradingPlan:
    """Return the plan with cut names of tests replaced by the complete names.

    Args:
        task: The task.
        plan: The plan.
        names: The complete names of all tests in these files (`collect_names`).

    Raises:
        TaskError: A cut name stands for no test, or for several.
    """
    name_set = frozenset(names)

    def full_name(name: str) -> str:
        if name in name_set or "[" not in name:
            return name
        matches = [candidate for candidate in names if candidate.startswith(name)]
        if len(matches) == 1:
            return matches[0]
        if not matches and not is_cut(name):
            return name
        raise TaskError(
            f"task {task.task_id!r}: its test {name!r} is truncated, and {len(matches)} tests "
            "have this prefix: give its full name, or exclude the task"
        )

    return replace(
        plan,
        fail_to_pass=tuple(dict.fromkeys(map(full_name, plan.fail_to_pass))),
        pass_to_pass=tuple(dict.fromkeys(map(full_name, plan.pass_to_pass))),
    )
