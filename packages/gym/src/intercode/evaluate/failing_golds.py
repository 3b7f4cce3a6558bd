"""A search for Bash golds and setups that fail, which trials alone do not show.

The reward compares an episode with gold. A gold that fails therefore solves its task, but no agent
can solve the task by correct commands. `gold_failure` repeats an action of gold without its error
output, to find out whether gold's output consists of error messages. For a setup only the last exit
code normally counts; `setup_failure` checks the exit code of each line.
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
    from intercode.evaluate.task_checks import Kind
    from intercode.task import Task

_NOT_RUN = (126, 127)
_SIGPIPE = 141
_DIFFERS = 1
"""The exit code by which ``grep``, ``diff``, ``cmp`` and ``test`` report a negative result, which
is not a failure."""
_REMARK = re.compile(r"(?i:.*\b(?:warning|note|hint)): ?.*")
_FAILURE_CODE = 98
# This text precedes a setup. The text is part of the setup's first line, so the setup's lines keep
# their numbers. If a program such as ``head`` stops reading early, the program that writes to it
# ends with SIGPIPE, which does not count as a failure.
_EACH_LINE = (
    "exec 9>&2; set -o pipefail; "
    f"trap 'code=$?; [ $code = {_SIGPIPE} ] || {{ "
    'echo "line $LINENO (exit code $code): $BASH_COMMAND" >&9; '
    f"exit {_FAILURE_CODE}; }}' ERR; "
)


def gold_failure(task: Task, turns: Sequence[Turn], stage: SandboxStage) -> tuple[Kind, str] | None:
    """Return the failure of an action of gold; None: no action fails.

    If a program of gold does not run, and the action prints only the error message, the message
    would be the right answer. This failure is a problem (kind ``command``). Other failures may be
    intended (kind ``fails``).

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
        # The field ``output`` has the plain output; the observation may also have InterCode's
        # notes.
        lines = str(turn.info.get("output", turn.observation)).splitlines()
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
    """Return a description of the first failing line of a task's setup; None: no failure.

    If no line fails, but the setup prints an error message, the description quotes the message.

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
    """Repeat actions in a new sandbox, and return the standard output of the last action.

    The last action runs without its standard error.
    """
    *earlier_actions, last_action = actions
    with closing(stage.open(task)) as sandbox, closing(BashInterpreter(sandbox)) as shell:
        for action in [*earlier_actions, "exec 2>/dev/null"]:
            shell.execute(action, task.timeout)
        return decode(shell.execute(last_action, task.timeout).output).splitlines()


def _errors(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are error messages of programs; warnings and notes do not count."""
    for line in drop_complaints(lines):
        if is_message(line) and not _REMARK.fullmatch(line):
            yield line


def _quote_line(lines: Sequence[str]) -> str:
    return f": {lines[0]}" if lines else ""
