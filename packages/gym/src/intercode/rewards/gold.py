"""The effect of gold: run in a sandbox of its own that no agent sees, and remembered."""

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
from intercode.rewards import archive
from intercode.rewards.answer_types import Answer, normalise
from intercode.task import Task
from intercode_sandbox.base import Change, SandboxBackend
from intercode_sandbox.interruption import is_callers

T = TypeVar("T")

_RETRY_FACTOR = 8
"""The factor on the time limit of late gold: agents' programs may have filled the machine."""
_LATE_SECONDS = 600.0
"""The time for which late gold is believed to be late again, and not the machine to have stood."""
_retry_lock = threading.Lock()
TROUBLES = {
    "gone": "left no shell",
    "truncated": "printed more than the limit 'output' keeps, which can be raised",
}
"""Reasons why its result is not a measure, by the interpreter's word for them."""


class LateError(RewardError):
    """Gold ran into its time limit."""


def run_with_retry(run: Callable[[int], T]) -> T:
    """Return the result of gold; where gold is late, that of another try, with no gold beside it.

    Args:
        run: Runs gold with so many times its time limit.

    Raises:
        RewardError: Gold has no result that could be a measure.
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
def blame_task(task: Task, part: str) -> Iterator[None]:
    """Blame this part of the task, and not an agent, if a sandbox ends meanwhile.

    Raises:
        RewardError: A sandbox has ended.
    """
    try:
        yield
    except CausedInsideError as error:
        raise RewardError(f"task {task.task_id!r}: by {part}: {error}") from error


@dataclass(frozen=True, slots=True)
class GoldResult:
    """The effect of one accepted solution."""

    output: str
    """The output, normalised."""
    setup_changes: Mapping[str, Change]
    """The changes of the image by the task's own files and setup, by path."""
    gold_changes: Mapping[str, Change]
    """The changes of the image when gold had run, by path."""
    changed_paths: frozenset[str]
    """The paths at which the two differ: gold's own work."""
    archives: Mapping[str, str] = field(default_factory=dict)
    """The digests of the archives that the task names, by path."""


class GoldCache:
    """Results of gold by key, the most recently used ones; share one between threads.

    Gold that is late at last is not tried again for a while: it would take as long each time.

    Args:
        size: The number of results to keep; 0: none.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._results: OrderedDict[str, Future[Any]] = OrderedDict()
        self._late_entries: dict[str, tuple[float, str]] = {}
        """Key of late gold → when it may be tried again, and its error's text."""

    @classmethod
    def from_option(cls, option: bool | GoldCache, owner: object) -> GoldCache:
        """Return the cache that an environment's option asks for; False: one that keeps nothing.

        Args:
            option: The option.
            owner: What gold runs on, a provider or an engine: all its environments share a cache.
        """
        if isinstance(option, GoldCache):
            return option
        return _shared_caches.setdefault(owner, cls()) if option else cls(0)

    def get(self, key: str, compute: Callable[[], T]) -> T:
        """Return the result for `key`; the first caller computes it, and others wait for it."""
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
            # Callers that wait get the error, too, unless it is this caller's own (Ctrl-C).
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
        """Return itself: Gymnasium copies the options of an environment, and a cache is shared."""
        return self


_shared_caches: weakref.WeakKeyDictionary[object, GoldCache] = weakref.WeakKeyDictionary()
# In a fork, none would end what another thread has begun to compute.
os.register_at_fork(after_in_child=_shared_caches.clear)


class GoldRunner:
    """Runs gold as an agent would have: a prepared sandbox, a fresh interpreter, one action.

    Args:
        start: Starts a sandbox in which the task's files and setup are done.
        interpreter: Opens an interpreter in it.
        identify: Names all that gold's effect depends on but gold: image, files, setup.
        cache: The cache of results; None: gold runs each time, as it does for a task that is
            marked (`Task.caches_gold`).
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
            RewardError: Its result is not a measure: it ran into a limit, or ended the shell for
            good. SandboxError: The sandbox failed.
        """
        if self._cache is None or not task.caches_gold:
            return self._run(task, gold)
        text = f"{self._identify(task)}\0{gold}\0{dict(_archives(task))}"
        key = hashlib.blake2b(encode(text), digest_size=16).hexdigest()
        return self._cache.get(key, lambda: self._run(task, gold))

    def _run(self, task: Task, gold: str) -> GoldResult:
        return run_with_retry(lambda times: self._run_once(task, gold, times))

    def _run_once(self, task: Task, gold: str, times: int) -> GoldResult:
        with blame_task(task, "gold"), closing(self._start(task)) as sandbox:
            prepared = bool(task.setup or task.files)
            setup_changes = (
                {change.path: change for change in sandbox.changes()} if prepared else {}
            )
            interpreter = self._interpreter(sandbox)
            execution = interpreter.execute(gold, times * sandbox.limits.seconds(task.timeout))
            interpreter.close()
            if execution.info.get("timed_out"):
                raise LateError(f"task {task.task_id!r}: gold ran into the time limit: {gold}")
            for trouble, description in TROUBLES.items():
                if execution.info.get(trouble):
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
    """Return the files that are compared by their content as archives, each with its kind."""
    answer = Answer.parse(task)
    return {} if answer is None else answer.archives


def differing_paths(
    first_changes: Mapping[str, Change], second_changes: Mapping[str, Change]
) -> frozenset[str]:
    """Return the paths at which two states differ, each given as its changes to the same image."""
    paths = first_changes.keys() | second_changes.keys()
    return frozenset(path for path in paths if first_changes.get(path) != second_changes.get(path))


def archive_digest(sandbox: SandboxBackend, path: str, kind: str) -> str:
    """Return a digest of an archive's members; empty if there is no archive that can be read.

    Args:
        sandbox: The sandbox that has it.
        path: Its absolute path.
        kind: One of `archive.KINDS`.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        data = sandbox.read_file(path, archive.MAX_BYTES)
    except OutputLimitError:
        return ""  # too large to look into, which does not end the sandbox
    except OSError as error:
        if isinstance(error, SandboxError):
            raise
        return ""
    # In a process of its own, with limits: the archive is not trusted.
    argv = [sys.executable, "-I", archive.__file__, kind]
    result = subprocess.run(argv, input=data, capture_output=True, check=False)
    return result.stdout.decode().strip() if result.returncode == 0 else ""
