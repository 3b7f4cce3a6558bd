"""The driver of a run on a cluster: it starts Ray workers, assigns batches, and keeps the record.

The driver records the episodes of a batch of jobs when the result of the batch arrives. If a worker
is lost, alone or with its machine, its current batches start again on other workers. Nothing else
is lost.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import count
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.errors import SandboxError, SandboxUnavailableError
from intercode.evaluate.episode_loop import failed_episode
from intercode.evaluate.executor import PreparedRun
from intercode.evaluate.progress import Progress
from intercode.evaluate.worker import (
    FATAL_ERROR_NAMES,
    PATIENCE,
    TICK,
    EpisodeJob,
    InterruptCounter,
)
from intercode.registry import ENVS
from intercode_integrations.ray.cluster import allocate_nodes, cluster_connection, node_affinity
from intercode_integrations.ray.shared_limits import SharedLimitsActor
from intercode_integrations.ray.worker import (
    JobBatchResult,
    RayWorker,
    RunAssignment,
    WorkerOpenResult,
)
from intercode_integrations.serve.client import rebuild_error
from intercode_sandbox.images.image_export import export_image
from intercode_sandbox.images.resolve import resolve
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.records import Key

log = logging.getLogger(__name__)

NODE_POLL_SECONDS = 1.0
"""Seconds between two queries of the cluster's nodes."""
BATCH_SECONDS = 1.0
"""Target duration of a batch: the work that is repeated for each batch of a lost worker."""
MAX_BATCH_JOBS = 64
"""Maximum number of jobs in a batch."""
WAIT_NOTICE_SECONDS = 30.0
"""Seconds without any open worker after which the driver reports what it waits for."""


@dataclass(eq=False)
class _WorkerHandle:
    """The driver's record of a Ray worker: its actor, node and number of running batches."""

    name: str
    node: str
    actor: Any
    is_open: bool = False
    batch_count: int = 0


@dataclass(frozen=True, slots=True)
class _WorkerCall:
    """A call of a worker's actor whose result has not arrived."""

    worker: _WorkerHandle
    batch: list[EpisodeJob] = field(default_factory=list)
    """The jobs of the batch; empty for the call that opens the worker."""


class RayExecutor:
    """The executor of one run on a cluster; see `intercode.evaluate.worker.JobExecution`.

    Args:
        jobs: The jobs, in the order in which they should start.
        work: The prepared run.
        address: The address of the cluster; None: see `intercode_integrations.ray.Ray`.
        cpus: The processors that each worker reserves.
    """

    def __init__(
        self, jobs: Sequence[EpisodeJob], work: PreparedRun, address: str | None, cpus: float
    ) -> None:
        self.stopped: str | None = None
        self._remaining_jobs = deque(jobs)
        self._loss_counts: Counter[Key] = Counter()
        """Key of a job that lost its worker → number of losses while the job was alone in a batch.
        Such a job always gets a batch for itself."""
        self._work, self._address, self._cpus = work, address, cpus
        self._worker_count = min(work.plan.spec.run_options.workers, max(1, len(jobs)))
        self._worker_handles: list[_WorkerHandle] = []
        self._calls: dict[Any, _WorkerCall] = {}
        self._refusals: dict[str, str] = {}
        """Node id → the reason why the run does not use the node."""
        self._failure_counts: Counter[str] = Counter()
        self._worker_numbers = count(1)
        self._mean_episode_seconds = 0.0
        """Moving average of the seconds that an episode takes on a worker."""
        self._draining = False
        self._failure: BaseException | None = None
        self._announced_nodes: set[str] = set()
        self._wait_start = time.monotonic()

    def run(
        self, interrupts: InterruptCounter, progress: Progress
    ) -> Generator[Episode, None, None]:
        """Execute the jobs, and yield each episode when it has been recorded.

        After an interrupt or a failure that concerns all episodes, no further job starts.

        Args:
            interrupts: The interrupts of the user.
            progress: The object that shows the progress.

        Raises:
            KeyboardInterrupt: A second interrupt came.
            InterCodeError: No node can take part, or a worker reported an error that ends the run.
        """
        if not self._remaining_jobs:
            return
        with cluster_connection(self._address) as self._ray:
            self._begin()
            try:
                yield from self._loop(interrupts, progress)
                self._close()
            finally:
                for worker in self._worker_handles:
                    self._ray.kill(worker.actor)
                if self._ledger is not None:
                    self._settle_budget()
                    self._ray.kill(self._ledger)
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        ray, run_plan = self._ray, self._work.plan
        facts, spec = self._work.setting.facts, run_plan.spec
        images = {} if self._work.setting.provider is None else facts["images"]
        self._ledger: Any = None
        if spec.model.name or spec.env.judge_model or spec.run_options.max_connections:
            budget = self._work.budget
            assert budget is not None  # a run that uses a model has a budget
            self._prior_spending = budget.spent.cost, budget.spent.tokens
            self._ledger = (
                ray.remote(SharedLimitsActor)
                .options(
                    num_cpus=0,
                    max_concurrency=2 * self._worker_count + 8,
                    scheduling_strategy=node_affinity(ray.get_runtime_context().get_node_id()),
                )
                .remote(
                    budget.max_cost,
                    budget.max_tokens,
                    budget.spent,
                    spec.run_options.max_connections,
                )
            )
        image_digests = {
            image_name: digest
            for image_name, digest in images.items()
            if not self._image(image_name).host
        }
        hidden_paths = [spec.run_options.out, run_plan.dataset.source]
        assignment = RunAssignment(
            run_plan,
            facts,
            image_digests,
            folder=str(Path.cwd()),
            hidden_folders=tuple(
                str(Path(path).absolute()) for path in hidden_paths if path is not None
            ),
            env_location=ENVS.file_reference(spec.env.name),
            ledger=self._ledger,
        )
        self._assignment_ref = ray.put(assignment)
        self._image_refs: dict[str, Any] = {}
        self._last_poll = 0.0

    def _loop(
        self, interrupts: InterruptCounter, progress: Progress
    ) -> Generator[Episode, None, None]:
        handled_count = 0
        while True:
            if interrupts.count > 1:
                raise KeyboardInterrupt
            if interrupts.count > handled_count:
                handled_count = interrupts.count
                self._drain()
                progress.report_interrupt(
                    sum(len(worker_call.batch) for worker_call in self._calls.values())
                )
            is_playing = any(worker_call.batch for worker_call in self._calls.values())
            if not is_playing and (self._draining or not self._remaining_jobs):
                return
            if not self._draining:
                self._start_missing_workers(progress)
                self._assign_batches()
            yield from self._receive_episodes(progress, interrupts)
            progress.tick()

    # Workers

    def _start_missing_workers(self, progress: Progress) -> None:
        """Start the missing workers, at first on all nodes, and later on nodes that have joined."""
        now = time.monotonic()
        if now - self._last_poll < NODE_POLL_SECONDS:
            return
        self._last_poll = now
        nodes = {
            cluster_node["NodeID"]: cluster_node
            for cluster_node in self._ray.nodes()
            if cluster_node["Alive"]
        }
        self._node_names = {
            node_id: f"{cluster_node['NodeName']} ({node_id[:8]})"
            for node_id, cluster_node in nodes.items()
        }
        process_counts = allocate_nodes(
            self._worker_count, self._cpus, excluded_nodes=self._refusals
        )
        share = ceil(self._worker_count / (process_counts.total() or 1))
        worker_counts = Counter(worker.node for worker in self._worker_handles)
        for node, process_count in process_counts.items():
            for _ in range(process_count - worker_counts[node]):
                self._start(node, share, nodes[node]["Resources"])
        if any(worker.is_open for worker in self._worker_handles):
            self._wait_start = now
        elif now - self._wait_start > WAIT_NOTICE_SECONDS:
            self._wait_start = now
            reasons_text = "; ".join(
                f"{cluster_node}: {reason}" for cluster_node, reason in self._refusals.items()
            )
            notice = "no node has room for a process with environments yet"
            progress.nodes(0, f"{notice} ({reasons_text})" if reasons_text else notice)

    def _start(self, node: str, share: int, resources: dict[str, float]) -> None:
        # Ray reserves memory for the sandboxes of the worker's environments. The reservation is at
        # most 90 % of the node's memory, divided by the number of the node's processors.
        env_memory = self._work.setting.facts.get("limits", {}).get("memory", 0)
        reserved_memory = min(
            share * env_memory,
            int(resources.get("memory", 0) * 0.9 / max(1, int(resources["CPU"]))),
        )
        worker_name = f"worker-{next(self._worker_numbers)}"
        actor = (
            self._ray.remote(RayWorker)
            .options(
                num_cpus=self._cpus,
                memory=reserved_memory or None,
                max_concurrency=self._worker_count + 2,
                scheduling_strategy=node_affinity(node),
            )
            .remote(worker_name)
        )
        worker = _WorkerHandle(worker_name, node, actor)
        self._worker_handles.append(worker)
        self._open(worker)

    def _open(self, worker: _WorkerHandle) -> None:
        self._calls[worker.actor.open.remote(self._assignment_ref, {})] = _WorkerCall(worker)

    def _finish_open(
        self, worker: _WorkerHandle, open_result: WorkerOpenResult, progress: Progress
    ) -> None:
        if open_result.missing_images:
            for image_name in open_result.missing_images:
                self._store_image(image_name)
            image_refs = {
                image_name: self._image_refs[image_name]
                for image_name in open_result.missing_images
            }
            self._calls[worker.actor.open.remote(self._assignment_ref, image_refs)] = _WorkerCall(
                worker
            )
            return
        if open_result.refusal:
            self._refuse(worker.node, open_result.refusal, progress)
            return
        worker.is_open = True
        if worker.node not in self._announced_nodes:
            self._announced_nodes.add(worker.node)
            progress.nodes(self._count_nodes(), f"{self._node_names[worker.node]} takes part")

    def _refuse(self, node: str, reason: str, progress: Progress) -> None:
        """Exclude a node from the run, and remove its workers.

        If no node remains, the run ends with an error.
        """
        if node in self._refusals:
            return
        self._refusals[node] = reason
        for worker in [worker for worker in self._worker_handles if worker.node == node]:
            self._remove_worker(worker)
        progress.nodes(self._count_nodes(), f"{self._node_names[node]} is left out: {reason}")
        if not allocate_nodes(1, self._cpus, excluded_nodes=self._refusals):
            message = f"no node of the cluster can take part; the last one: {reason}"
            self._failure = rebuild_error(SandboxUnavailableError.__name__, message)
            self._drain()

    def _count_nodes(self) -> int:
        return len({worker.node for worker in self._worker_handles if worker.is_open})

    def _handle_loss(self, worker: _WorkerHandle, error: Exception, progress: Progress) -> None:
        """Remove a lost worker, and put the jobs of its batches back into the queue.

        A node on which workers repeatedly end before they are open is excluded.
        """
        self._remove_worker(worker)
        self._failure_counts[worker.node] += 1
        if not worker.is_open and self._failure_counts[worker.node] > 2:
            self._refuse(worker.node, f"its processes end at once: {error}", progress)
            return
        self._announced_nodes.discard(worker.node)
        node_name = self._node_names.get(worker.node, worker.node[:8])
        progress.nodes(
            self._count_nodes(), f"{node_name}: a process was lost; its episodes begin again"
        )
        log.info("%s on %s was lost: %s", worker.name, node_name, error)

    def _remove_worker(self, worker: _WorkerHandle) -> None:
        if worker not in self._worker_handles:
            return
        self._worker_handles.remove(worker)
        self._ray.kill(worker.actor)
        if self._ledger is not None:
            self._ledger.release_process.remote(worker.name)
        for call in [ref for ref, call in self._calls.items() if call.worker is worker]:
            batch = self._calls.pop(call).batch
            if len(batch) == 1:  # a larger batch does not show which job caused the loss
                self._loss_counts[batch[0].key] += 1
            for lost_job in reversed(batch):
                self._loss_counts.setdefault(lost_job.key, 0)
                self._remaining_jobs.appendleft(lost_job)

    # Images

    def _image(self, name: str) -> Any:
        provider: Any = self._work.setting.provider
        return provider.image(name) if hasattr(provider, "image") else resolve(name)

    def _store_image(self, name: str) -> None:
        """Put an image into Ray's object store, unless the store has it."""
        if name not in self._image_refs:
            with tempfile.TemporaryDirectory() as folder:
                archive_path = Path(folder, "image.tar")
                export_image(self._image(name), name, archive_path)
                self._image_refs[name] = self._ray.put(archive_path.read_bytes())

    # Jobs

    def _assign_batches(self) -> None:
        free_slots = self._worker_count - sum(worker.batch_count for worker in self._worker_handles)
        worker_heap = [
            (worker.batch_count, worker_index, worker)
            for worker_index, worker in enumerate(self._worker_handles)
            if worker.is_open
        ]
        heapify(worker_heap)
        while self._remaining_jobs and worker_heap and free_slots > 0:
            _, worker_index, worker = worker_heap[0]
            batch = self._take_batch()
            job_keys = [(job.epoch, job.task.task_id) for job in batch]
            worker_call = _WorkerCall(worker, batch)
            self._calls[worker.actor.play.remote(job_keys)] = worker_call
            worker.batch_count += 1
            free_slots -= 1
            heapreplace(worker_heap, (worker.batch_count, worker_index, worker))

    def _take_batch(self) -> list[EpisodeJob]:
        """Take the jobs of a batch from the queue. A job that lost a worker is alone in it."""
        fair_share = len(self._remaining_jobs) // (2 * self._worker_count)
        batch_size = (
            int(BATCH_SECONDS / self._mean_episode_seconds) if self._mean_episode_seconds else 1
        )
        batch = [self._remaining_jobs.popleft()]
        while len(batch) < min(batch_size, fair_share, MAX_BATCH_JOBS) and self._remaining_jobs:
            if (
                batch[-1].key in self._loss_counts
                or self._remaining_jobs[0].key in self._loss_counts
            ):
                break
            batch.append(self._remaining_jobs.popleft())
        return batch

    def _receive_episodes(
        self, progress: Progress, interrupts: InterruptCounter
    ) -> Generator[Episode, None, None]:
        """Wait up to `TICK` seconds for results, record their episodes, and yield these."""
        if not self._calls:
            with suppress(queue.Empty):
                interrupts.messages.get(timeout=TICK)
            return
        refs = list(self._calls)
        ready_refs, _ = self._ray.wait(refs, timeout=TICK)
        if ready_refs:
            ready_refs, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        episodes: list[Episode] = []
        for ref in ready_refs:
            if (worker_call := self._calls.pop(ref, None)) is None:
                continue  # an earlier result of this loop has removed the lost worker of the call
            try:
                worker_result = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError:
                raise  # an exception inside the actor is a defect of InterCode
            except self._ray.exceptions.RayError as error:
                self._calls[ref] = worker_call
                self._handle_loss(worker_call.worker, error, progress)
                episodes += self._abandon_jobs()
                continue
            if isinstance(worker_result, WorkerOpenResult):
                self._finish_open(worker_call.worker, worker_result, progress)
            else:
                episodes += self._finish_batch(worker_call, worker_result, progress)
        if episodes:
            self._work.record(*episodes)
            yield from episodes

    def _finish_batch(
        self, worker_call: _WorkerCall, batch_result: JobBatchResult, progress: Progress
    ) -> list[Episode]:
        worker_call.worker.batch_count -= 1
        if episode_count := len(batch_result.episodes):
            # These seconds exclude the wait for the driver, which may itself be the bottleneck.
            episode_seconds = batch_result.seconds / episode_count
            self._mean_episode_seconds = (
                0.8 * self._mean_episode_seconds + 0.2 * episode_seconds
                if self._mean_episode_seconds
                else episode_seconds
            )
        self._remaining_jobs.extendleft(reversed(worker_call.batch[episode_count:]))
        for episode in batch_result.episodes:
            if episode.metadata.get("error_type") in FATAL_ERROR_NAMES:
                self.stopped = self.stopped or episode.error
                self._drain()
        if batch_result.error is not None:
            error_name, message = batch_result.error
            if error_name == SandboxUnavailableError.__name__:
                self._refuse(worker_call.worker.node, message, progress)
            else:
                self._failure = self._failure or rebuild_error(error_name, message)
                self._drain()
        return batch_result.episodes

    def _abandon_jobs(self) -> Iterable[Episode]:
        """Remove jobs that lost more than `retries` workers; yield their episodes with an error."""
        max_retries = self._work.plan.spec.run_options.retries
        for job in [
            job for job in self._remaining_jobs if self._loss_counts[job.key] > max_retries
        ]:
            self._remaining_jobs.remove(job)
            del self._loss_counts[job.key]
            attempt_text = format_count(max_retries + 1, "time")
            error = SandboxError(f"the process that ran the episode was lost {attempt_text}")
            env_name = str(self._work.setting.facts.get("env", ""))
            partial_episode = Episode(job.task.task_id, job.task.query, env_name, epoch=job.epoch)
            partial_episode.agent = self._work.agent.name
            yield failed_episode(error, partial_episode)

    # Shutdown

    def _drain(self) -> None:
        self._draining = True
        for worker in self._worker_handles:
            worker.actor.drain.remote()

    def _close(self) -> None:
        """Let the workers close their environments. Killing the workers would free less."""
        close_refs = [
            worker.actor.close.remote() for worker in self._worker_handles if worker.is_open
        ]
        if close_refs:
            self._ray.wait(close_refs, num_returns=len(close_refs), timeout=PATIENCE)

    def _settle_budget(self) -> None:
        """Record the spending of this run in its budget, which other runs may share."""
        budget = self._work.budget
        try:
            current_spending, presumed_spending = self._ray.get(
                self._ledger.read_spending.remote(), timeout=PATIENCE
            )
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            log.warning("what was spent is not known: %s", error)
            return
        if budget is not None:
            cost, tokens = self._prior_spending
            budget.spent.add(current_spending.cost - cost, current_spending.tokens - tokens)
            budget.presumed_spending.add(presumed_spending.cost, presumed_spending.tokens)
