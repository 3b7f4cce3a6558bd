"""Programs graded by what they print: each case gives the input, and has the output expected.

What was submitted is the last action, a whole program, or with ``submit NAME`` a call of that
function. It runs in a process of its own for each case, after the session's earlier actions, whose
output does not count and whose input is empty. What it should print never enters the sandbox.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from intercode.episode import Episode
from intercode.errors import ImageError, TaskError
from intercode.interpreters.inside.program import RUN, SAID
from intercode.interpreters.python_start import PROGRAM, PythonProcess, start
from intercode.rewards.python_source import session_source
from intercode.rewards.python_trial import MOST_LATE, Result
from intercode.sandbox.base import Sandbox
from intercode.task import Task

RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""How close two numbers must be, of which one is printed with a decimal point."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CHUNK = 1 << 18
_SHOWN = 200
_NOTHING = (b"", "")
_FORGED = "it sent what no program sends"


@dataclass(frozen=True, slots=True)
class Submission:
    """What was submitted."""

    before: Sequence[str]
    """Sources that are run first."""
    program: str


def stdio_cases(task: Task) -> list[Mapping[str, str]]:
    """The cases under ``metadata.stdio``, each with its ``stdin`` and ``stdout``; often none.

    Raises:
        TaskError: They are malformed, or the task has tests of another kind besides.
    """
    given = task.metadata.get("stdio") or []
    where = f"task {task.task_id!r}: 'stdio'"
    if not isinstance(given, list):
        raise TaskError(f"{where} must be a list of cases")
    for index, case in enumerate(given):
        texts = [case.get(name) for name in ("stdin", "stdout")] if isinstance(case, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TaskError(f"{where}: case {index} must be an object with 'stdin' and 'stdout'")
    if given and (task.tests or task.metadata.get("cases")):
        raise TaskError(f"{where} cannot stand beside 'tests' or 'cases': choose one")
    return given


def submission(episode: Episode, setup: str | None) -> Submission | None:
    """What an episode has submitted, or None: nothing."""
    executed = [n for n, turn in enumerate(episode.turns) if turn.info.get("executed", True)]
    if not executed:
        return None
    before = [setup] if setup else []
    if episode.answer is not None:
        if not episode.answer.isidentifier():
            return None
        return Submission([*before, *session_source(episode)], f"{episode.answer}()")
    last = executed[-1]
    earlier = session_source(replace(episode, turns=episode.turns[:last]))
    return Submission([*before, *earlier], episode.turns[last].action)


def run_cases(
    sandbox: Sandbox,
    python: str | None,
    submitted: Submission | None,
    cases: Sequence[Mapping[str, str]],
    timeout: float,
) -> list[Result]:
    """The cases, one after the other. After some that were late, the rest have failed.

    Args:
        sandbox: Where; what the program leaves running is killed.
        python: A program of the image's; None: the Python of InterCode itself.
        submitted: The program.
        cases: See `stdio_cases`.
        timeout: Seconds for each.

    Raises:
        SandboxError: The sandbox died.
    """
    results: list[Result] = []
    for case in cases:
        if submitted is None:
            results.append(Result(False, "no program was submitted"))
        elif sum(result.late for result in results) >= MOST_LATE:
            why = f"not run: {MOST_LATE} cases before it ran into the time limit"
            results.append(Result(False, why))
        else:
            results.append(_run(sandbox, python, submitted, case, timeout))
    sandbox.kill()
    return results


def _run(
    sandbox: Sandbox,
    python: str | None,
    submitted: Submission,
    case: Mapping[str, str],
    timeout: float,
) -> Result:
    request = {"before": submitted.before, "program": submitted.program, "stdin": case["stdin"]}
    most = sandbox.limits.output + 2 * len(case["stdout"].encode("utf-8", "surrogatepass"))
    try:
        started = start(sandbox, PROGRAM, python)
    except ImageError as error:  # by the agent's doing: the image has it
        return Result(False, str(error))
    with closing(started) as process:
        deadline = time.monotonic() + timeout
        process.send(RUN, 0, json.dumps(request).encode(), timeout)
        printed, said = bytearray(), ""
        for out, control in _events(sandbox, process, deadline):
            printed += out
            said = said or control
            if len(printed) > most:
                sandbox.kill()
                return Result(False, f"it printed more than {most} bytes")
            if control == _FORGED:
                sandbox.kill()
                return Result(False, _FORGED)
        code = process.process.poll()
    if code is None:
        sandbox.kill()
        return Result(False, f"not done within {timeout:g} s", late=True)
    if code:
        return Result(False, said or f"it ended with exit code {code}")
    text = printed.decode(errors="surrogateescape")
    if same_output(text, case["stdout"]):
        return Result(True)
    return Result(False, f"it printed {text[:_SHOWN]!r}, not {case['stdout'][:_SHOWN]!r}")


def _events(
    sandbox: Sandbox, process: PythonProcess, deadline: float
) -> Iterator[tuple[bytes, str]]:
    """What is printed and said until the process has ended, or time is up."""
    poll = select.poll()
    poll.register(process.exit_fd, select.POLLIN)
    readers: dict[int, Callable[[], tuple[bytes, str] | None]] = {
        process.out: lambda: _printed(process.out),
        process.control: lambda: _said(process),
    }
    for fd in readers:
        poll.register(fd, select.POLLIN)
    while process.process.poll() is None and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd not in readers:
                continue
            if (event := readers[fd]()) is None:
                poll.unregister(fd)
            else:
                yield event
    if process.process.poll() is None:
        return
    # What is there by now: a child that lives on could go on printing for ever. And if it ended
    # because the sandbox died, that is noticed here, and is no wrong answer.
    sandbox.kill()
    for read in readers.values():
        while (event := read()) is not None and event != _NOTHING:
            yield event


def _printed(fd: int) -> tuple[bytes, str] | None:
    """What has come of the output; None: there will be no more."""
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return _NOTHING
    return (data, "") if data else None


def _said(process: PythonProcess) -> tuple[bytes, str] | None:
    """What the worker says of the program's end; None: it says no more."""
    try:
        frames = process.receive()
    except ValueError:
        return b"", _FORGED
    if frames is None:
        return None
    return b"", "".join(data.decode(errors="replace") for kind, _, data in frames if kind == SAID)


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs are the same: line by line, token by token.

    Blanks between tokens, at the ends of lines, and blank lines do not count. A token equals if it
    is the same text, or if both are numbers, one of them with a decimal point or an exponent, and
    close.
    """
    mine, theirs = _words(printed), _words(expected)
    return len(mine) == len(theirs) and all(
        len(one) == len(other) and all(map(_same, one, other))
        for one, other in zip(mine, theirs, strict=True)
    )


def _words(text: str) -> list[list[str]]:
    """The tokens of each line that has any."""
    return [words for line in text.split("\n") if (words := line.split())]


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    if not set(one + other) & set(".eE"):
        return False  # whole numbers, of any length, are exact
    a, b = float(one), float(other)
    return math.isfinite(a - b) and abs(a - b) <= ABSOLUTE + RELATIVE * abs(b)
