"""A station: a process on a machine of the cluster, with warm environments for batches of jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.errors import InterCodeError
from intercode.evaluate.actors import actors
from intercode.evaluate.executor import Work
from intercode.evaluate.loop import Semaphore, Shared, Stopped, default_sandboxes
from intercode.evaluate.manifest import package_versions
from intercode.evaluate.prepare import Plan, setting
from intercode.evaluate.progress import Progress
from intercode.evaluate.worker import Job, Orders, Worker
from intercode.models.drain import run_drain
from intercode.project import admit, admit_protocol
from intercode.redaction import Redactor
from intercode_integrations.ray.shared_limits import Outbox, SharedBudget, SharedCalls, SharedPace
from intercode_sandbox.images import hide
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.resolve import carried
from intercode_sandbox.images.transfer import import_image

if TYPE_CHECKING:
    from intercode.evaluate.actors import Actors
    from intercode.evaluate.prepare import Setting

Said = tuple[str, str]
"""The name of an error's class, and its message: errors are not pickled, as theirs may not be."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The instructions that all stations of a run have in common."""

    plan: Plan
    facts: Mapping[str, Any]
    """The facts of the environment at the driver."""
    carried: Mapping[str, str]
    """Image → digest, of those that can be shipped."""
    folder: str
    """The driver's working directory, from which relative paths start if it is there."""
    hidden: tuple[str, ...]
    """Folders that no sandbox may see."""
    versions: Mapping[str, str] = field(default_factory=package_versions)
    own: str = ""
    """The place of the environment's class, ``file.py:Class``, if it is not a package's."""
    ledger: Any = None
    """The actor that keeps what all share, if a model is asked."""


@dataclass(frozen=True, slots=True)
class Opened:
    """How a station was opened."""

    missing: tuple[str, ...] = ()
    """Images that have to be shipped first."""
    refusal: str = ""
    """The reason for which this machine cannot take part."""


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a batch."""

    episodes: list[Episode]
    """Of its first jobs, without secrets."""
    seconds: float = 0.0
    """The time that they took here, all together."""
    error: Said | None = None
    """The error that every other episode would meet, too."""


class Station:
    """The actor. `play` may be called from as many threads as it is to have environments.

    Args:
        name: Its name, for the ledger.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._draining = False
        self._held = ExitStack()
        self._drain = self._held.enter_context(run_drain())
        self._who: Actors | None = None
        self._where: Setting | None = None
        self._outbox: Outbox | None = None
        self._orders: Orders

    def open(self, assignment: Assignment, images: Mapping[str, Any]) -> Opened:
        """Prepare for a run, on this machine.

        Args:
            assignment: The run.
            images: Image that was missing here → its file, in the object store.
        """
        given = assignment
        if (versions := package_versions()).get("code") != given.versions.get("code"):
            mine, theirs = (
                f"{one['intercode']} ({one['code'][:8]})" for one in (versions, given.versions)
            )
            return Opened(refusal=f"it has InterCode {mine}, and the driver has {theirs}")
        with suppress(OSError):
            os.chdir(given.folder)
        hide(*given.hidden)
        name = given.plan.spec.env.name
        cache = ImageCache.default()
        try:
            if given.own:
                admit(given.own)
            admit_protocol(name, given.plan.spec.env.protocol)
            missing = [n for n, digest in given.carried.items() if cache.lookup(digest) is None]
            if untold := [name for name in missing if name not in images]:
                return Opened(missing=tuple(untold))
            for name in missing:
                _take(images[name], cache)
            for name, digest in given.carried.items():
                carried(name, digest)
            self._prepare(given)
        except InterCodeError as error:
            return Opened(refusal=Redactor().text(str(error)))
        return Opened(refusal=_difference(given.facts, self._where.facts if self._where else {}))

    def _prepare(self, given: Assignment) -> None:
        spec = given.plan.spec
        budget = pace = None
        if given.ledger is not None:
            self._outbox = outbox = Outbox(given.ledger, self._name)
            budget = SharedBudget(outbox, spec.model.max_cost, spec.model.max_tokens)
            pace = SharedPace(outbox)
        self._who = actors(spec, budget, pace)
        self._who.start()
        self._where = setting(
            given.plan, Progress(), required_options=self._who.required_options, budget=budget
        )
        self._where.make().close()
        getattr(self._where.provider, "facts", dict)()  # asks whether this machine permits them
        how = spec.how
        calls = SharedCalls(self._outbox) if self._outbox and how.max_connections else Semaphore()
        shared = Shared(calls, Semaphore(how.max_sandboxes or default_sandboxes()))
        self._orders = Work(given.plan, self._who, self._where, Progress()).orders(shared)
        self._tasks = {task.task_id: task for task in given.plan.tasks}
        self._redactor = Redactor()

    def play(self, keys: Sequence[tuple[int, str]]) -> Played:
        """Run jobs, by epoch and task, one after the other, in a warm environment."""
        with self._lock:
            worker = self._idle.pop() if self._idle else Worker(self._orders)
        episodes: list[Episode] = []
        began = time.monotonic()
        try:
            for epoch, task_id in keys:
                if self._draining:
                    break
                episode = worker.run(Job(epoch, self._tasks[task_id]))
                episodes.append(self._redactor.episode(episode))
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the driver, raised there
            worker.close()
            text = self._redactor.text(str(error))
            return Played(episodes, error=(type(error).__name__, text))
        finally:
            if self._outbox is not None:  # what was spent for these is known when they are
                self._outbox.flush()
        with self._lock:
            self._idle.append(worker)
        return Played(episodes, time.monotonic() - began)

    def drain(self) -> None:
        """Begin no more jobs, and repeat no call of a model."""
        self._draining = True
        self._drain.interrupt()

    def close(self) -> None:
        """Close the environments."""
        self._draining = True
        self._held.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
        if self._where is not None:
            self._where.close()
        if self._who is not None:
            self._who.close()


def _take(stored: Any, cache: ImageCache) -> None:
    """Put an image that was shipped into the cache; its files' digest is checked."""
    import ray

    with TemporaryDirectory() as folder:
        file = Path(folder, "image.tar")
        file.write_bytes(ray.get(stored))
        import_image(file, (), cache, lambda text: None)


def _difference(driver: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say in what this machine's environment is another than the driver's; empty if it is not."""
    names = sorted(n for n in {*driver, *here} if driver.get(n) != here.get(n))
    if not names:
        return ""
    found = "; ".join(f"{n} is {driver.get(n)!r} there, and here {here.get(n)!r}" for n in names)
    return f"its environment is another than the driver's: {found}"
