"""The effect of gold: execution in a separate sandbox that no agent sees, and its cache.

`GoldRunner` executes a reference solution (gold) and returns a `GoldResult`. `GoldCache` shares
results between threads and environments.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from intercode.episode import decode, encode
from intercode.errors import CausedInsideError, OutputLimitError, RewardError, SandboxError
from intercode.interpreters.base import Interpreter
from intercode.rewards import digest_archive
from intercode.rewards.answer_types import AnswerType, normalise
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.interruption import is_callers

T = TypeVar("T")

_RETRY_FACTOR = 8
"""The factor on gold's time limit in the second run: agents may have slowed the first run."""
_LATE_SECONDS = 600.0
"""Seconds during which gold that was late twice is refused at once, without a new run.

A stalled machine may recover in that time.
"""
_retry_lock = threading.Lock()
TROUBLES = {
    "gone": "left no shell",
    "truncated": "printed more than the limit 'output' keeps, which can be raised",
}
"""Key of `info` with a true value → reason why gold's result cannot serve for a comparison."""


class LateError(RewardError):
    """An error: gold reached its time limit."""


def run_with_retry(run: Callable[[int], T]) -> T:
    """Run gold; if gold is late, run it once more, with a longer time limit.

    No two second runs overlap, so a second run does not slow another.

    Args:
        run: Runs gold with the time limit multiplied by the argument, and returns the result.

    Raises:
        RewardError: Gold has no result that answers could be compared with.
    """
    try:
        return run(1)
    except LateError:
        with _retry_lock:
            try:
                return run(_RETRY_FACTOR)
            except LateError as error:
                raise LateError(f"{error} (with {_RETRY_FACTOR} times its time limit)") from None


@contextmanager
def blame_task(task: Task, field_name: str) -> Iterator[None]:
    """Attribute the end of a sandbox in this block to a field of the task, not to an agent.

    Args:
        task: The task.
        field_name: The field whose commands run in the block, such as ``gold``.

    Raises:
        RewardError: Code in a sandbox has ended the sandbox, or exceeded a limit of it.
    """
    try:
        yield
    except CausedInsideError as error:
        raise RewardError(f"task {task.task_id!r}, {field_name}: {error}") from error


@dataclass(frozen=True, slots=True)
class GoldResult:
    """The effect of one accepted solution."""

    output: str
    """The normalised output (`intercode.rewards.answer_types.normalise`)."""
    setup_changes: Mapping[str, Change]
    """The changes to the image by the task's files and setup, by path."""
    gold_changes: Mapping[str, Change]
    """The changes to the image by the task's files, the setup and gold, by path."""
    changed_paths: frozenset[str]
    """The paths at which `setup_changes` and `gold_changes` differ: the changes by gold alone."""
    archives: Mapping[str, str] = field(default_factory=dict)
    """The digests of the archives that the task names, by path."""


class GoldCache:
    """A thread-safe cache of gold's results by key, which retains the most recently used results.

    Gold that is late twice is refused for ten minutes, because each further run would take as long.

    Args:
        size: The number of results to retain; 0: none.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[str, Future[Any]] = OrderedDict()
        self._late_entries: dict[str, tuple[float, str]] = {}
        """Key of late gold → time of the next permitted attempt, and the error's text."""

    @classmethod
    def from_option(cls, option: bool | GoldCache, owner: object) -> GoldCache:
        """Return the cache that an environment's option selects; False: a cache of size 0.

        Args:
            option: The option.
            owner: The provider or engine on which gold runs. All its environments share a cache.
        """
        if isinstance(option, GoldCache):
            return option
        return _shared_caches.setdefault(owner, cls()) if option else cls(0)

    def get(self, key: str, compute: Callable[[], T]) -> T:
        """Return the result for `key`; the first caller computes the result, and others wait.

        An error of `compute` also reaches the waiting callers.

        Raises:
            LateError: Gold was late now, or twice within the last ten minutes.
        """
        new_future: Future[Any] = Future()
        self._refuse_late(key)
        try:
            with self._lock:
                future = self._results.setdefault(key, new_future)
                self._results.move_to_end(key)
                while len(self._results) > self._size:
                    self._results.popitem(last=False)
            if future is new_future:
                new_future.set_result(compute())
        except BaseException as error:
            with self._lock:
                if self._results.get(key) is new_future:
                    del self._results[key]
                if isinstance(error, LateError) and self._size:
                    self._late_entries[key] = time.monotonic() + _LATE_SECONDS, str(error)
                    if len(self._late_entries) > self._size:
                        del self._late_entries[next(iter(self._late_entries))]
            # Waiting callers get the error, too, unless only this caller was interrupted (Ctrl-C).
            if not is_callers(error):
                new_future.set_exception(error)
            elif new_future.cancel():
                new_future.set_running_or_notify_cancel()
            raise
        try:
            result: T = future.result()
        except CancelledError:
            return self.get(key, compute)
        return result

    def _refuse_late(self, key: str) -> None:
        with self._lock:
            retry_time, text = self._late_entries.get(key, (0.0, ""))
            if retry_time > time.monotonic():
                raise LateError(text)
            self._late_entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._results)

    def __deepcopy__(self, memo: object) -> GoldCache:
        """Return the cache itself: Gymnasium copies options, and caches are shared."""
        return self


_shared_caches: weakref.WeakKeyDictionary[object, GoldCache] = weakref.WeakKeyDictionary()
# A forked child has none of the parent's threads, so no thread would finish their computations.
os.register_at_fork(after_in_child=_shared_caches.clear)


class GoldRunner:
    """The runner of gold: in a prepared sandbox, with a fresh interpreter, as one action.

    Args:
        start: Starts a sandbox with the task's files and setup applied.
        interpreter: Opens an interpreter in a sandbox.
        identify: Returns a key for everything but gold itself that determines the effect: image,
            files, setup.
        cache: The cache of results. Without a cache, gold runs each time, like the gold of a task
            that opts out (`Task.caches_gold`).
    """

    def __init__(
        self,
        start: Callable[[Task], SandboxBackend],
        interpreter: Callable[[SandboxBackend], Interpreter],
        identify: Callable[[Task], str],
        cache: GoldCache | None = None,
    ) -> None:
        self._start = start
        self._interpreter = interpreter
        self._identify = identify
        self._cache = cache

    def run(self, task: Task, gold: str) -> GoldResult:
        """Return the effect of a solution of the task.

        Raises:
            RewardError: The result cannot be compared with: gold reached a limit, or ended the
                shell permanently.
            SandboxError: The sandbox failed.
        """
        if self._cache is None or not task.caches_gold:
            return self._run(task, gold)
        text = f"{self._identify(task)}\0{gold}\0{dict(_archives(task))}"
        key = hashlib.blake2b(encode(text), digest_size=16).hexdigest()
        return self._cache.get(key, lambda: self._run(task, gold))

    def _run(self, task: Task, gold: str) -> GoldResult:
        return run_with_retry(lambda timeout_factor: self._run_once(task, gold, timeout_factor))

    def _run_once(self, task: Task, gold: str, timeout_factor: int) -> GoldResult:
        with blame_task(task, "gold"), closing(self._start(task)) as sandbox:
            prepared = bool(task.setup or task.files)
            setup_changes = (
                {change.path: change for change in sandbox.changes()} if prepared else {}
            )
            interpreter = self._interpreter(sandbox)
            execution = interpreter.execute(
                gold, timeout_factor * sandbox.limits.seconds(task.timeout)
            )
            interpreter.close()
            if execution.info.get("timed_out"):
                raise LateError(f"task {task.task_id!r}: gold ran into the time limit: {gold}")
            for flag_name, description in TROUBLES.items():
                if execution.info.get(flag_name):
                    raise RewardError(f"task {task.task_id!r}: gold {description}: {gold}")
            sandbox.kill()
            gold_changes = {change.path: change for change in sandbox.changes()}
            archives = {
                path: archive_digest(sandbox, path, kind) for path, kind in _archives(task).items()
            }
        return GoldResult(
            output=normalise(decode(execution.output)),
            setup_changes=setup_changes,
            gold_changes=gold_changes,
            changed_paths=differing_paths(setup_changes, gold_changes),
            archives=archives,
        )


def _archives(task: Task) -> Mapping[str, str]:
    """Return the kinds of the archives that the task's answer consists of, by path."""
    answer = AnswerType.parse(task)
    return {} if answer is None else answer.archives


def differing_paths(
    first_changes: Mapping[str, Change], second_changes: Mapping[str, Change]
) -> frozenset[str]:
    """Return the paths at which two file systems differ.

    Args:
        first_changes: The differences between the first file system and the image, by path.
        second_changes: The differences between the second file system and the same image, by path.
    """
    paths = first_changes.keys() | second_changes.keys()
    return frozenset(path for path in paths if first_changes.get(path) != second_changes.get(path))


def archive_digest(sandbox: SandboxBackend, path: str, kind: str) -> str:
    """Return a digest of an archive's members; empty if the file is not a readable archive.

    Args:
        sandbox: The sandbox that holds the archive.
        path: The archive's absolute path.
        kind: One of `digest_archive.KINDS`.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        content = sandbox.read_file(path, digest_archive.MAX_BYTES)
    except OutputLimitError:
        return ""  # an archive above the limit is unreadable; the sandbox continues
    except OSError as error:
        if isinstance(error, SandboxError):
            raise
        return ""
    # The archive is untrusted: a separate process with limits reads it.
    argv = [sys.executable, "-I", digest_archive.__file__, kind]
    result = subprocess.run(argv, input=content, capture_output=True, check=False)
    return result.stdout.decode().strip() if result.returncode == 0 else ""
