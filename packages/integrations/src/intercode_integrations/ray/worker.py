"""Ray workers: processes on the cluster's machines that run batches of jobs in environments."""

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
from intercode.evaluate.agent_setup import actors
from intercode.evaluate.episode_loop import (
    EpisodeStop,
    FifoSemaphore,
    SharedRunResources,
    default_sandboxes,
)
from intercode.evaluate.executor import PreparedRun
from intercode.evaluate.manifest import package_versions
from intercode.evaluate.progress import Progress
from intercode.evaluate.run_setup import RunPlan, resolve_setting
from intercode.evaluate.worker import EpisodeJob, EpisodeWorker, WorkerInstructions
from intercode.models.interrupted_calls import run_drain
from intercode.project import admit, admit_protocol
from intercode.redaction import SecretRedactor
from intercode_integrations.ray.shared_limits import (
    SharedBudget,
    SharedCallSemaphore,
    SharedLimitsConnection,
    SharedRateLimit,
)
from intercode_sandbox.images import hide
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.image_export import import_image
from intercode_sandbox.images.resolve import register_digest

if TYPE_CHECKING:
    from intercode.evaluate.agent_setup import PreparedAgent
    from intercode.evaluate.run_setup import RunEnvironment

ErrorText = tuple[str, str]
"""Class name and message of an error. The exception itself may not be picklable."""


@dataclass(frozen=True, slots=True)
class RunAssignment:
    """The description of a run that the driver sends to all workers."""

    plan: RunPlan
    facts: Mapping[str, Any]
    """Facts of the driver's environment, which the worker's environment must equal."""
    image_digests: Mapping[str, str]
    """Image → digest, for the images that the driver can send to a worker."""
    folder: str
    """Working directory of the driver. If the worker's machine has the folder, too, relative paths
    refer to the folder."""
    hidden_folders: tuple[str, ...]
    """Folders that no sandbox on the worker's machine may contain, such as the run's folder."""
    versions: Mapping[str, str] = field(default_factory=package_versions)
    env_location: str = ""
    """Location of the environment's class as ``file.py:Class``; empty if a package contains it."""
    ledger: Any = None
    """Actor with the limits that all workers share; None if the run has no model, no judge and no
    limit on concurrent calls."""


@dataclass(frozen=True, slots=True)
class WorkerOpenResult:
    """The worker's answer to `RayWorker.open`; if both fields are empty, the worker is ready."""

    missing_images: tuple[str, ...] = ()
    """Images that the worker's machine lacks, and that the driver must send."""
    refusal: str = ""
    """Reason why this machine cannot take part in the run."""


@dataclass(frozen=True, slots=True)
class JobBatchResult:
    """The worker's answer to `RayWorker.play`: the result of a batch of jobs."""

    episodes: list[Episode]
    """Episodes of the batch's first jobs, in order, without secrets."""
    seconds: float = 0.0
    """Seconds that the batch took on the worker."""
    error: ErrorText | None = None
    """Error that ended the batch; None: no error. Other episodes would fail, too, so the driver
    excludes the machine or ends the run."""


class RayWorker:
    """The actor of a Ray worker, with one environment for each concurrent call of `play`.

    Args:
        name: The worker's name, by which the ledger knows it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle_workers: list[EpisodeWorker] = []
        self._lock = threading.Lock()
        self._draining = False
        self._exit_stack = ExitStack()
        self._drain = self._exit_stack.enter_context(run_drain())
        self._actors: PreparedAgent | None = None
        self._setting: RunEnvironment | None = None
        self._outbox: SharedLimitsConnection | None = None
        self._orders: WorkerInstructions

    def open(self, assignment: RunAssignment, images: Mapping[str, Any]) -> WorkerOpenResult:
        """Prepare this process for a run; the driver may call this method again with images.

        Args:
            assignment: The description of the run.
            images: Name of an image that this machine lacked → reference to the image's file in
                Ray's object store.

        Returns:
            The images that are still missing, the reason of a refusal, or neither.
        """
        run_assignment = assignment
        if (versions := package_versions()).get("code") != run_assignment.versions.get("code"):
            local_version, driver_version = (
                f"{version_facts['intercode']} ({version_facts['code'][:8]})"
                for version_facts in (versions, run_assignment.versions)
            )
            return WorkerOpenResult(
                refusal=f"it has InterCode {local_version}, and the driver has {driver_version}"
            )
        with suppress(OSError):
            os.chdir(run_assignment.folder)
        hide(*run_assignment.hidden_folders)
        name = run_assignment.plan.spec.env.name
        image_cache = ImageCache.default()
        try:
            if run_assignment.env_location:
                admit(run_assignment.env_location)
            admit_protocol(name, run_assignment.plan.spec.env.protocol)
            missing_images = [
                image_name
                for image_name, digest in run_assignment.image_digests.items()
                if image_cache.lookup(digest) is None
            ]
            if unsent_images := [name for name in missing_images if name not in images]:
                return WorkerOpenResult(missing_images=tuple(unsent_images))
            for name in missing_images:
                _import_image(images[name], image_cache)
            for name, digest in run_assignment.image_digests.items():
                register_digest(name, digest)
            self._prepare(run_assignment)
        except InterCodeError as error:
            return WorkerOpenResult(refusal=SecretRedactor().text(str(error)))
        return WorkerOpenResult(
            refusal=_describe_differences(
                run_assignment.facts, self._setting.facts if self._setting else {}
            )
        )

    def _prepare(self, assignment: RunAssignment) -> None:
        spec = assignment.plan.spec
        budget = rate_limit = None
        if assignment.ledger is not None:
            self._outbox = outbox = SharedLimitsConnection(assignment.ledger, self._name)
            budget = SharedBudget(outbox, spec.model.max_cost, spec.model.max_tokens)
            rate_limit = SharedRateLimit(outbox)
        self._actors = actors(spec, budget, rate_limit)
        self._actors.start()
        self._setting = resolve_setting(
            assignment.plan,
            Progress(),
            required_options=self._actors.required_options,
            budget=budget,
        )
        self._setting.make().close()
        # The facts of the provider raise an error if this machine does not permit sandboxes.
        getattr(self._setting.provider, "facts", dict)()
        run_options = spec.run_options
        shared_calls = (
            SharedCallSemaphore(self._outbox)
            if self._outbox and run_options.max_connections
            else FifoSemaphore()
        )
        shared_limits = SharedRunResources(
            shared_calls, FifoSemaphore(run_options.max_sandboxes or default_sandboxes())
        )
        self._orders = PreparedRun(assignment.plan, self._actors, self._setting, Progress()).orders(
            shared_limits
        )
        self._tasks = {task.task_id: task for task in assignment.plan.tasks}
        self._redactor = SecretRedactor()

    def play(self, job_keys: Sequence[tuple[int, str]]) -> JobBatchResult:
        """Run the jobs of a batch one after the other, in an environment that stays open.

        Args:
            job_keys: The epoch and the task id of each job.
        """
        with self._lock:
            worker = self._idle_workers.pop() if self._idle_workers else EpisodeWorker(self._orders)
        episodes: list[Episode] = []
        start_time = time.monotonic()
        try:
            for epoch, task_id in job_keys:
                if self._draining:
                    break
                episode = worker.run(EpisodeJob(epoch, self._tasks[task_id]))
                episodes.append(self._redactor.episode(episode))
        except EpisodeStop:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the driver, raised there
            worker.close()
            message = self._redactor.text(str(error))
            return JobBatchResult(episodes, error=(type(error).__name__, message))
        finally:
            # The driver must not receive episodes before the ledger knows their costs.
            if self._outbox is not None:
                self._outbox.flush()
        with self._lock:
            self._idle_workers.append(worker)
        return JobBatchResult(episodes, time.monotonic() - start_time)

    def drain(self) -> None:
        """Start no more jobs, and retry no call of a model."""
        self._draining = True
        self._drain.interrupt()

    def close(self) -> None:
        """Close all environments of the worker."""
        self._draining = True
        self._exit_stack.close()
        with self._lock:
            idle_workers, self._idle_workers = self._idle_workers, []
        for worker in idle_workers:
            worker.close()
        if self._setting is not None:
            self._setting.close()
        if self._actors is not None:
            self._actors.close()


def _import_image(image_ref: Any, cache: ImageCache) -> None:
    """Import an image from the object store into the cache, which validates the image's digest."""
    import ray

    with TemporaryDirectory() as folder:
        archive_path = Path(folder, "image.tar")
        archive_path.write_bytes(ray.get(image_ref))
        import_image(archive_path, (), cache, lambda text: None)


def _describe_differences(driver_facts: Mapping[str, Any], local_facts: Mapping[str, Any]) -> str:
    """Return how this machine's environment differs from the driver's; empty if it does not."""
    fact_names = sorted(
        fact_name
        for fact_name in {*driver_facts, *local_facts}
        if driver_facts.get(fact_name) != local_facts.get(fact_name)
    )
    if not fact_names:
        return ""
    differences = "; ".join(
        f"{fact_name} is {driver_facts.get(fact_name)!r} there, and here "
        f"{local_facts.get(fact_name)!r}"
        for fact_name in fact_names
    )
    return f"its environment is another than the driver's: {differences}"
