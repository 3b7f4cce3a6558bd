"""The grading of one submission: the tests' process, the submission's process, and their relay.

InterCode relays all messages between the two processes, and enforces the time limits. A submission
that ends its process, or floods the channel, fails its test and affects nothing else.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from intercode.errors import CausedInsideError, ImageError, RewardError, SandboxError
from intercode.interpreters.inside.grader import OPEN, TEST
from intercode.interpreters.inside.object_proxy import ANSWER, ASK
from intercode.interpreters.inside.program import EXIT_CAUSE, RUN
from intercode.interpreters.inside.submission import LOAD
from intercode.interpreters.python_start import (
    GRADER,
    PROGRAM,
    SUBMISSION,
    PythonWorkerProcess,
    start,
)
from intercode.rewards.python_plan import PythonSubmission
from intercode_sandbox.base import SandboxBackend

T = TypeVar("T")

MAX_LATE_TESTS = 3
"""The number of late tests of a submission after which its other tests are not run."""
_RELAYED_KINDS = (ASK, ANSWER)
_MAX_GRADINGS = 100
"""The number of gradings after which a new process for the tests is started."""
_ENDED_REASON = {
    SUBMISSION: "the submission ended the process that it runs in",
    GRADER: "the process of the tests ended during the test",
}


@dataclass(frozen=True, slots=True)
class TestResult:
    """The outcome of one test."""

    passed: bool
    reason: str = ""
    """A description of the failure."""
    late: bool = False
    """Whether the test reached the time limit."""


def _run_in_turn(
    kind: str, tests: Sequence[T], run: Callable[[int, T], TestResult]
) -> list[TestResult]:
    """Run tests sequentially; after `MAX_LATE_TESTS` late ones, the remaining tests fail."""
    results: list[TestResult] = []
    for test_number, test in enumerate(tests):
        if sum(result.late for result in results) < MAX_LATE_TESTS:
            results.append(run(test_number, test))
        else:
            reason = f"not run: {MAX_LATE_TESTS} {kind} before it ran into the time limit"
            results.append(TestResult(False, reason))
    return results


class _SubmissionFailure(Exception):  # noqa: N818 - not an error of ours
    """A failure of the submission after which its processes cannot continue."""


@contextmanager
def _blame_tests(module: str) -> Iterator[None]:
    """Attribute the end of a sandbox to the tests, unless the submission's process is in it.

    Args:
        module: The module of the process in the sandbox: `GRADER` or `SUBMISSION`.

    Raises:
        RewardError: The tests have ended the sandbox.
    """
    try:
        yield
    except CausedInsideError as error:
        if module == SUBMISSION:
            raise
        raise RewardError(f"the tests killed their own sandbox: {error}") from error


class GradingSandbox:
    """A sandbox for tests in which no submission has run, with an optional retained process.

    Args:
        sandbox: The sandbox, unchanged since its start.
    """

    def __init__(self, sandbox: SandboxBackend) -> None:
        self.sandbox = sandbox
        self._process: PythonWorkerProcess | None = None
        self._gradings = 0

    def take(self) -> PythonWorkerProcess | None:
        """Return the retained process for the next tests; None if no such process runs."""
        process, self._process = self._process, None
        if process is not None and process.process.poll() is not None:
            process.close()
            return None
        return process

    def keep(self, process: PythonWorkerProcess | None, harmless: bool) -> None:
        """Retain the process of completed tests if they were harmless; otherwise end the process.

        In a retained process the submission's messages have only created values, and the next tests
        start with fresh names. After `_MAX_GRADINGS` gradings the process is ended, because its
        memory is fragmented by then.

        Args:
            process: The process; None if it has ended already.
            harmless: Whether its tests leave their process unchanged
                (`PythonGradingPlan.harmless`).
        """
        self._gradings += 1
        if process is None or (harmless and self._gradings % _MAX_GRADINGS):
            self._process = process
        else:
            process.close()

    def is_new(self) -> bool:
        """Return whether the sandbox's files are unchanged; kill processes that tests have left."""
        if self._process is not None and self._process.process.poll() is None:
            return True  # all tests since the last check were harmless
        if (process := self.take()) is not None:
            process.close()
        self.sandbox.kill()
        return not self.sandbox.changes()

    def close(self) -> None:
        """End the process and the sandbox. Idempotent."""
        if (process := self.take()) is not None:
            process.close()
        self.sandbox.close()


class SubmissionTestRun:
    """A run of tests against a submission. The constructor starts the submission's process.

    Args:
        subject: The sandbox for the submission.
        python: The image's Python; None: the Python of InterCode.
        sources: The submission's sources, in order.
        plan: The message to the grader (`PythonGradingPlan.message`).
        timeout: Seconds for each source, and for each test.
    """

    def __init__(
        self,
        subject: SandboxBackend,
        python: str | None,
        sources: Sequence[str],
        plan: dict[str, Any],
        timeout: float,
    ) -> None:
        self._sandboxes = {SUBMISSION: subject}
        self._python = python
        self._sources = sources
        self._plan = json.dumps(plan).encode()
        self._timeout = timeout
        self._processes: dict[str, PythonWorkerProcess] = {}
        self._is_open = False
        # The start fails if the sandbox lacks Python. Each test then repeats the start, and fails
        # with the error of the start.
        with suppress(ImageError):
            self._processes[SUBMISSION] = start(subject, SUBMISSION, python)

    def close(self) -> None:
        """End the processes, and all other processes in the submission's sandbox."""
        self._end(SUBMISSION)

    def run(
        self, bench: GradingSandbox, tests: Sequence[Any], harmless: bool = False
    ) -> list[TestResult]:
        """Run the tests sequentially; after `MAX_LATE_TESTS` late ones, the remaining tests fail.

        Args:
            bench: The sandbox for the tests.
            tests: The tests (`PythonGradingPlan.tests`).
            harmless: Whether the tests' process may run other tests afterwards
                (`PythonGradingPlan.harmless`).

        Raises:
            RewardError: The tests have ended their own sandbox.
            CausedInsideError: The submission has ended its own sandbox.
            SandboxError: A sandbox was lost for another reason.
        """
        self._sandboxes[GRADER] = bench.sandbox
        if (process := bench.take()) is not None:
            self._processes[GRADER] = process
        results = _run_in_turn("tests", tests, self._test)
        bench.keep(self._processes.pop(GRADER, None), harmless)
        return results

    def _test(self, test_number: int, test: Any) -> TestResult:
        start_time = time.monotonic()
        try:
            if not self._is_open:
                self._open()
            message = self._ask_grader(TEST, test_number, json.dumps(test).encode())
        except _SubmissionFailure as failure:
            self._end(SUBMISSION, GRADER)
            # A submission that loads slowly and then ends counts as late, so fewer tests wait for
            # it.
            return TestResult(False, str(failure), time.monotonic() - start_time >= self._timeout)
        return TestResult(not message, message)

    def _open(self) -> None:
        for module, sandbox in self._sandboxes.items():
            if module not in self._processes:
                self._processes[module] = self._start(module, sandbox)
        for source_number, source in enumerate(self._sources):
            self._load(source_number, source)
        if message := self._ask_grader(OPEN, 0, self._plan):
            raise _SubmissionFailure(message)
        self._is_open = True

    def _start(self, module: str, sandbox: SandboxBackend) -> PythonWorkerProcess:
        try:
            with _blame_tests(module):
                return start(sandbox, module, self._python)
        except ImageError as error:
            if module == SUBMISSION:  # the image has Python: the agent has removed it
                raise _SubmissionFailure(str(error)) from None
            raise

    def _end(self, *modules: str) -> None:
        """End all processes of this run, and all other processes in these modules' sandboxes."""
        processes, self._processes, self._is_open = self._processes, {}, False
        for module in modules:
            with _blame_tests(module):
                self._sandboxes[module].kill()
        for process in processes.values():
            process.close()

    def _load(self, source_number: int, source: str) -> None:
        subject = self._processes[SUBMISSION]
        deadline = time.monotonic() + self._timeout
        source_bytes = source.encode("utf-8", "surrogatepass")
        if not subject.send(LOAD, source_number, source_bytes, self._timeout):
            raise self._end_sandbox(subject, deadline)
        while True:
            for _, kind, loaded_source_number, _ in self._frames([subject], deadline):
                if (kind, loaded_source_number) == (LOAD, source_number):
                    return

    def _ask_grader(self, kind: int, request_number: int, payload: bytes) -> str:
        """Send the grader a request; return a description of the failure, or an empty text."""
        subject, grader = self._processes[SUBMISSION], self._processes[GRADER]
        deadline = time.monotonic() + self._timeout
        # The grader waits for a request now, so its delay is not the submission's.
        if not grader.send(kind, request_number, payload) and grader.exit_code() is None:
            raise SandboxError("the tests' process did not read its request")
        while True:
            for sender, frame_kind, frame_number, frame_payload in self._frames(
                [subject, grader], deadline
            ):
                if frame_kind in _RELAYED_KINDS:
                    recipient = grader if sender is subject else subject
                    # A process that reads its messages slowly gets no more time than the whole
                    # test.
                    if not recipient.send(
                        frame_kind, frame_number, frame_payload, self._remaining_seconds(deadline)
                    ):
                        raise self._end_sandbox(recipient, deadline)
                elif sender is grader and (frame_kind, frame_number) == (kind, request_number):
                    return frame_payload.decode(errors="replace")

    def _remaining_seconds(self, deadline: float) -> float:
        """Return the seconds until the deadline, above 0.

        Raises:
            _SubmissionFailure: The deadline has passed.
        """
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise self._late_failure()
        return remaining_seconds

    def _late_failure(self) -> _SubmissionFailure:
        return _SubmissionFailure(f"not done within {self._timeout:g} s")

    def _end_sandbox(self, process: PythonWorkerProcess, deadline: float) -> _SubmissionFailure:
        """Kill the processes of a sandbox whose process does not answer; return the test's failure.

        The process has closed its channel, or has not accepted a message in time.

        Raises:
            SandboxError: The process ended because InterCode's own Python crashed.
        """
        module = SUBMISSION if process is self._processes[SUBMISSION] else GRADER
        with _blame_tests(module):
            # A process may run on after it has closed its channel.
            self._sandboxes[module].kill()
        process.check_end(self._sandboxes[SUBMISSION])
        if time.monotonic() >= deadline:
            return self._late_failure()
        return _SubmissionFailure(_ENDED_REASON[module])

    def _frames(
        self, processes: Sequence[PythonWorkerProcess], deadline: float
    ) -> Iterator[tuple[PythonWorkerProcess, int, int, bytes]]:
        """Wait for messages, and yield those that have arrived, each with its sender.

        The iterator may be empty: a process may have sent only a part of a message.
        """
        poll = select.poll()
        for process in processes:
            poll.register(process.control, select.POLLIN)
        ready_fds = {fd for fd, _ in poll.poll(self._remaining_seconds(deadline) * 1000)}
        if not ready_fds:
            raise self._late_failure()
        for process in processes:
            if process.control in ready_fds:
                try:
                    frames = process.receive()
                except ValueError as error:
                    raise _SubmissionFailure(str(error)) from None
                if frames is None:
                    raise self._end_sandbox(process, deadline)
                for kind, request_number, frame_payload in frames:
                    yield process, kind, request_number, frame_payload


# -- programs --------------------------------------------------------------------------------------

# A program is graded by its output: each case has an input and the expected output. Each case runs
# in a separate process, after the session's earlier actions. The output of these actions does not
# count, and their input is empty. The expected output never enters the sandbox.

RELATIVE, ABSOLUTE = 1e-5, 1e-8
"""The relative and the absolute tolerance of numbers, one of which has a point or an exponent."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CHUNK = 1 << 18
_QUOTED_CHARACTERS = 200
_NO_EVENT = (b"", "")
_FORGED_REASON = "it sent what no program sends"


def run_cases(
    sandbox: SandboxBackend,
    python: str | None,
    submission: PythonSubmission | None,
    cases: Sequence[Mapping[str, str]],
    timeout: float,
) -> list[TestResult]:
    """Run the cases sequentially; after `MAX_LATE_TESTS` late cases, the remaining cases fail.

    Args:
        sandbox: The sandbox in which the cases run. At the end all its processes are killed.
        python: The image's Python; None: the Python of InterCode.
        submission: The program; None fails every case.
        cases: The cases (`stdio_cases`).
        timeout: Seconds for each case.

    Raises:
        SandboxError: The sandbox died.
    """

    def run(case_number: int, case: Mapping[str, str]) -> TestResult:
        if submission is None:
            return TestResult(False, "no program was submitted")
        return _run_case(sandbox, python, submission, case, timeout)

    results = _run_in_turn("cases", cases, run)
    sandbox.kill()
    return results


def _run_case(
    sandbox: SandboxBackend,
    python: str | None,
    submission: PythonSubmission,
    case: Mapping[str, str],
    timeout: float,
) -> TestResult:
    request = {
        "before": submission.earlier_sources,
        "program": submission.program,
        "stdin": case["stdin"],
    }
    max_bytes = sandbox.limits.output + 2 * len(case["stdout"].encode("utf-8", "surrogatepass"))
    try:
        python_process = start(sandbox, PROGRAM, python)
    except ImageError as error:  # the image has Python: the agent has removed it
        return TestResult(False, str(error))
    with closing(python_process) as process:
        deadline = time.monotonic() + timeout
        process.send(RUN, 0, json.dumps(request).encode(), timeout)
        output, message = bytearray(), ""
        for chunk, control in _process_events(sandbox, process, deadline):
            output += chunk
            message = message or control
            if len(output) > max_bytes:
                sandbox.kill()
                return TestResult(False, f"it printed more than {max_bytes} bytes")
            if control == _FORGED_REASON:
                sandbox.kill()
                return TestResult(False, _FORGED_REASON)
        code = process.process.poll()
    if code is None:
        sandbox.kill()
        return TestResult(False, f"not done within {timeout:g} s", late=True)
    if code:
        process.check_end(sandbox)
        return TestResult(False, message or f"it ended with exit code {code}")
    text = output.decode(errors="surrogateescape")
    if is_same_output(text, case["stdout"]):
        return TestResult(True)
    return TestResult(
        False,
        f"it printed {text[:_QUOTED_CHARACTERS]!r}, not {case['stdout'][:_QUOTED_CHARACTERS]!r}",
    )


def _process_events(
    sandbox: SandboxBackend, process: PythonWorkerProcess, deadline: float
) -> Iterator[tuple[bytes, str]]:
    """Yield pairs of output and message from the process of a case, until it ends or is late.

    In each pair, the output is empty, or the message is empty.
    """
    poll = select.poll()
    poll.register(process.exit_fd, select.POLLIN)
    readers: dict[int, Callable[[], tuple[bytes, str] | None]] = {
        process.output_fd: lambda: _read_output(process.output_fd),
        process.control: lambda: _read_message(process),
    }
    for fd in readers:
        poll.register(fd, select.POLLIN)
    while process.process.poll() is None and (remaining_seconds := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(remaining_seconds * 1000 + 1):
            if fd not in readers:
                continue
            if (event := readers[fd]()) is None:
                poll.unregister(fd)
            else:
                yield event
    if process.process.poll() is None:
        return
    # The kill comes first, because a surviving child could print for ever. Then the pending output
    # is read. If the process ended because its sandbox died, the kill raises that error, so this
    # end does not count as a wrong answer.
    sandbox.kill()
    for read in readers.values():
        while (event := read()) is not None and event != _NO_EVENT:
            yield event


def _read_output(fd: int) -> tuple[bytes, str] | None:
    """Return the pending output; None: the output has ended."""
    try:
        chunk = os.read(fd, _CHUNK)
    except BlockingIOError:
        return _NO_EVENT
    return (chunk, "") if chunk else None


def _read_message(process: PythonWorkerProcess) -> tuple[bytes, str] | None:
    """Return the process's message about why the program ended; None: the channel has closed."""
    try:
        frames = process.receive()
    except ValueError:
        return b"", _FORGED_REASON
    if frames is None:
        return None
    return b"", "".join(
        frame_payload.decode(errors="replace")
        for kind, _, frame_payload in frames
        if kind == EXIT_CAUSE
    )


def is_same_output(output: str, expected_output: str) -> bool:
    """Return whether two outputs are the same: line by line, token by token.

    Blanks between tokens and at the ends of lines do not count, and neither do blank lines. Two
    tokens are equal if their texts are equal. Two numbers, at least one with a decimal point or an
    exponent, are also equal within `ABSOLUTE` + `RELATIVE` · abs(expected number).
    """
    output_lines, expected_lines = _tokenise_lines(output), _tokenise_lines(expected_output)
    return len(output_lines) == len(expected_lines) and all(
        len(output_line) == len(expected_line)
        and all(map(_is_same_token, output_line, expected_line))
        for output_line, expected_line in zip(output_lines, expected_lines, strict=True)
    )


def _tokenise_lines(text: str) -> list[list[str]]:
    """List the tokens of each line that has any."""
    return [words for line in text.split("\n") if (words := line.split())]


def _is_same_token(first_token: str, second_token: str) -> bool:
    if first_token == second_token:
        return True
    if not (_NUMBER.fullmatch(first_token) and _NUMBER.fullmatch(second_token)):
        return False
    if not set(first_token + second_token) & set(".eE"):
        return False  # integers, of any length, are exact
    first_number, second_number = float(first_token), float(second_token)
    return math.isfinite(first_number - second_number) and abs(
        first_number - second_number
    ) <= ABSOLUTE + RELATIVE * abs(second_number)
