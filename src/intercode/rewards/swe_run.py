"""Running named tests in a sandbox, and believing as little as possible of what comes back."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from intercode.episode import decode
from intercode.errors import TaskError
from intercode.rewards import swe_junit, swe_runner
from intercode.rewards.swe_failing import Failing, failing
from intercode.rewards.swe_plan import Plan
from intercode.sandbox.base import Sandbox
from intercode.task import Task

_GRACE = 5.0
_OUTPUT = 4000
_SHELL = ("/bin/bash", "--norc", "--noprofile", "-c")


@dataclass(frozen=True, slots=True)
class Run:
    """What came of the tests."""

    passed: frozenset[str]
    why: str = ""
    """Why none has passed, if there is no report that can be believed."""
    output: str = ""
    """The end of what was printed, for people."""


def run(sandbox: Sandbox, plan: Plan) -> Run:
    """Run the plan's tests in a sandbox that has the agent's work, and the tests."""
    seconds = sandbox.limits.seconds(plan.timeout)
    if plan.runner == "command":
        return _run_commands(sandbox, plan, seconds)
    secret = secrets.token_hex(16)
    marker = f"test_{secrets.token_hex(8)}"
    ours = _install_failing(sandbox, plan, marker)
    message = {
        "runner": plan.runner,
        "tests": [ours.first, plan.tests, ours.last],
        "secret": secret,
        "seconds": seconds,
    }
    done = sandbox.exec(
        [plan.python, _install(sandbox)],
        stdin=json.dumps(message).encode(),
        cwd=plan.directory,
        timeout=seconds + _GRACE,
        output_limit=swe_junit.LIMIT,
    )
    sandbox.kill()
    output = _without(marker, decode(done.stderr))
    start = secret.encode()
    if done.timed_out:
        return Run(frozenset(), f"the tests were not done within {seconds:g} s", output)
    if not done.ok or done.truncated or not done.stdout.startswith(start):
        return Run(frozenset(), f"the tests ended without a report ({done.exit_code})", output)
    whole = done.stdout[len(start) :][:1] == swe_runner.WHOLE
    try:
        found = swe_junit.read(done.stdout[len(start) + 1 :])
    except swe_junit.ReportError as error:
        return Run(frozenset(), str(error), output)
    if ours.betray(found, whole):
        return Run(frozenset(), "tests that cannot pass have passed, or were not run", output)
    return Run(frozenset(name for name, passed in found.items() if passed), "", output)


def check_runner(sandbox: Sandbox, task: Task, plan: Plan) -> None:
    """See to it that tests can be run in a sandbox that no agent's work has been in.

    Raises:
        TaskError: They cannot: the image lacks something.
    """
    if plan.runner == "command":
        return
    code = f"import unittest, xml.etree, {plan.runner}"
    done = sandbox.exec([plan.python, "-c", code], cwd="/", timeout=60.0)
    if not done.ok:
        raise TaskError(
            f"task {task.task_id!r}: its image cannot run {plan.runner} with {plan.python!r}: "
            f"{decode(done.stderr).strip()[-300:] or f'exit code {done.exit_code}'}; install it "
            f"in the image, or name another in 'metadata.python'"
        )


def _install_failing(sandbox: Sandbox, plan: Plan, name: str) -> Failing:
    """Put tests that fail into the repository, beside the first of the task's."""
    file = PurePosixPath(f"{name}.py")
    if plan.runner == "pytest":
        file = PurePosixPath(plan.tests[0].partition("::")[0]).with_name(file.name)
    ours = failing(plan.runner, str(file) if plan.runner == "pytest" else name)
    sandbox.write_file(PurePosixPath(plan.directory, file), ours.source.encode())
    return ours


def _without(marker: str, output: str) -> str:
    """The end of what was printed, without what it says of our own tests."""
    return "\n".join(line for line in output.split("\n") if marker not in line)[-_OUTPUT:]


def _install(sandbox: Sandbox) -> str:
    path = f"/tmp/{secrets.token_hex(8)}/run.py"
    sandbox.write_file(path, Path(swe_runner.__file__).read_bytes())
    return path


def _run_commands(sandbox: Sandbox, plan: Plan, seconds: float) -> Run:
    """The tests are commands: the kernel says whether they have passed."""
    passed, output = set(), ""
    for command in plan.tests:
        argv = [*_SHELL, command]
        done = sandbox.exec(argv, cwd=plan.directory, timeout=seconds, merge_stderr=True)
        sandbox.kill()
        if done.ok:
            passed.add(command)
        else:
            output += f"$ {command}\n{decode(done.stdout[-_OUTPUT:])}"
    return Run(frozenset(passed), "", output[-_OUTPUT:])
