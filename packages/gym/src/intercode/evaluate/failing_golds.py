"""Golds and setups of Bash that fail, found by a second run without the error output.

A failing gold is compared with itself: gold solves its task, and no agent can. In a normal run only
the last exit code of a setup counts; this module checks each line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from intercode.episode import decode
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.error_messages import drop_complaints, is_message

if TYPE_CHECKING:
    from intercode.envs.stage import SandboxStage
    from intercode.episode import Turn
    from intercode.evaluate.checks import Kind
    from intercode.task import Task

_NOT_RUN = (126, 127)
_SIGPIPE = 141
_DIFFERS = 1
"""The exit code of ``grep``, ``diff``, ``cmp`` and ``test`` for a result without a failure."""
_REMARK = re.compile(r"(?i:.*\b(?:warning|note|hint)): ?.*")
_FAILURE_CODE = 98
# The prefix is one line, so the setup's lines keep their numbers. A reader that stops early, such
# as ``head``, ends its writer with SIGPIPE, which does not count as a failure.
_EACH_LINE = (
    "exec 9>&2; set -o pipefail; "
    f"trap 'code=$?; [ $code = {_SIGPIPE} ] || {{ "
    'echo "line $LINENO (exit code $code): $BASH_COMMAND" >&9; '
    f"exit {_FAILURE_CODE}; }}' ERR; "
)


def gold_failure(task: Task, turns: Sequence[Turn], stage: SandboxStage) -> tuple[Kind, str] | None:
    """Return the failure of an action of gold; None: no action fails.

    Gold is a problem (``command``) if its program does not run and prints only the error: the error
    would be the answer. Other failures may be intended (``fails``).

    Args:
        task: The task.
        turns: The turns of gold's episode.
        stage: Opens the sandbox that repeats an apparently failing action.

    Returns:
        The kind of the finding, and its description.

    Raises:
        TaskError, ImageError, SandboxError: The sandbox cannot be opened.
    """
    for turn_index, turn in enumerate(turns):
        if turn.exit_code is None or turn.info.get("timed_out"):
            continue
        lines = str(turn.info.get("output", turn.observation)).splitlines()  # without our notes
        exit_message = f"gold ends with exit code {turn.exit_code}"
        has_failed = turn.exit_code not in (0, _DIFFERS, _SIGPIPE)
        if not has_failed and not lines:
            continue
        if turn.exit_code == 0 and not any(_errors(lines)):
            continue
        stdout_lines = _stdout_lines(
            task, [earlier_turn.action for earlier_turn in turns[: turn_index + 1]], stage
        )
        error_lines = [*(Counter(lines) - Counter(stdout_lines)).elements()]
        if turn.exit_code in _NOT_RUN:
            return (
                "command" if error_lines and not stdout_lines else "fails"
            ), f"{exit_message}{_quote_line(lines)}"
        if errors := [*_errors(error_lines)]:
            code = f" (exit code {turn.exit_code})" if turn.exit_code else ""
            return "fails", f"an error message is part of gold's output{code}{_quote_line(errors)}"
        if turn.exit_code and error_lines and not stdout_lines:
            return "fails", f"{exit_message}, and prints errors{_quote_line(error_lines)}"
        if has_failed:
            return "fails", exit_message
    return None


def setup_failure(task: Task, stage: SandboxStage) -> str | None:
    """Return a description of the first failing line of a task's setup; None: no line fails.

    Raises:
        TaskError, ImageError, SandboxError: The sandbox cannot be opened.
    """
    if task.setup is None:
        return None
    result = stage.try_setup(task, _EACH_LINE + task.setup)
    lines = decode(result.stderr).splitlines()
    if result.exit_code == _FAILURE_CODE and lines:
        *preceding_stderr_lines, line = lines
        return (
            f"the setup continues after a failure: {line}{_quote_line(preceding_stderr_lines[-1:])}"
        )
    if errors := [*_errors(lines)]:
        return f"the setup continues after an error{_quote_line(errors)}"
    return None


def _stdout_lines(task: Task, actions: Sequence[str], stage: SandboxStage) -> list[str]:
    """Return the lines of the last action's standard output, without its errors."""
    *earlier_actions, last_action = actions
    with closing(stage.open(task)) as sandbox, closing(BashInterpreter(sandbox)) as shell:
        for action in [*earlier_actions, "exec 2>/dev/null"]:
            shell.execute(action, task.timeout)
        return decode(shell.execute(last_action, task.timeout).output).splitlines()


def _errors(lines: Sequence[str]) -> Iterator[str]:
    """Yield the error messages of programs."""
    for line in drop_complaints(lines):
        if is_message(line) and not _REMARK.fullmatch(line):
            yield line


def _quote_line(lines: Sequence[str]) -> str:
    return f": {lines[0]}" if lines else ""
