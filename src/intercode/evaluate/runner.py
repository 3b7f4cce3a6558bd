"""Runs an agent over a dataset, on threads, and keeps every episode."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents import registry
from intercode.agents.base import AgentFactory, ChecksTasks, HasFacts, sees_gold
from intercode.episode import Episode
from intercode.errors import RecordError, UsageError
from intercode.evaluate import drift, manifest
from intercode.evaluate.interrupts import Interrupts
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.permits import Permits, default_sandboxes
from intercode.evaluate.pool import Pool
from intercode.evaluate.progress import Progress
from intercode.evaluate.report import Outcome, Statistics, by_tag, summarize
from intercode.evaluate.worker import Job, Orders
from intercode.records import EPISODES, MANIFEST, RecordWriter, latest, read_episodes, read_manifest
from intercode.sandbox.images import hide
from intercode.task import CANNOT

if TYPE_CHECKING:
    from intercode.task import Dataset, Task


@dataclass(slots=True)
class RunResult:
    """What came of a run, together with what earlier sessions of it had finished."""

    outcomes: list[Outcome]
    """One for each episode, by epoch, then in the dataset's order."""
    planned: int
    """Episodes that were asked for."""
    ran: int
    """Episodes that ended in this session."""
    seconds: float
    """Wall time of this session."""
    interrupted: bool = False
    """Whether an interrupt came. Who runs several runs stops then, even if this one was done."""
    stopped: str | None = None
    """The error that every other episode would have ended in, too, so that none was begun."""
    folder: Path | None = None
    kept: list[Episode] = field(default_factory=list)
    """The episodes themselves, where no folder keeps them."""

    def episodes(self) -> Iterator[Episode]:
        """Every episode; from the disk where there is a folder, so that memory stays flat."""
        return iter(self.kept) if self.folder is None else read_episodes(self.folder / EPISODES)

    @property
    def statistics(self) -> Statistics:
        """The summary."""
        return summarize(self.outcomes)

    @property
    def tags(self) -> dict[str, Statistics]:
        """The summary for each tag."""
        return by_tag(self.outcomes)

    @property
    def cut_short(self) -> bool:
        """Whether an interrupt has kept episodes from being begun, or from ending."""
        return self.interrupted and len(self.outcomes) < self.planned

    @property
    def complete(self) -> bool:
        """Whether every episode has a result."""
        return len(self.outcomes) == self.planned and not self.statistics.errors


def evaluate(
    dataset: Dataset,
    agent: str | AgentFactory,
    env_factory: Callable[[], EpisodeEnv],
    *,
    workers: int = 1,
    max_connections: int | None = None,
    max_sandboxes: int | None = None,
    out: str | Path | None = None,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    exclude: Mapping[str, str] | None = None,
    epochs: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
    max_retries: int = 2,
    settings: Mapping[str, Any] | None = None,
    agent_options: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    locked: Mapping[str, Any] | None = None,
    accept: Collection[str] = (),
) -> RunResult:
    """Run an agent over a dataset.

    An interrupt (Ctrl-C) lets the episodes in flight end and returns what there is; a second one
    stops at once. So does, after the episodes in flight, an error that would be the same for all:
    a budget that is used up, a wrong key. A run that did not finish is gone on with by calling this
    again with the same `out`: only what has no result yet is run.

    Args:
        dataset: The tasks.
        agent: A factory, or a name as `intercode.agents.registry.get` takes it.
        env_factory: Makes an environment over this dataset; called in each worker.
        workers: Threads, each with an environment of its own.
        max_connections: Calls to the model at a time; for an agent that is no language model of
            ours: agents that act at a time. None: as many as workers.
        max_sandboxes: Environments at a time that are reset, take an action or score; None: twice
            as many as cores. Waiting is in no time limit.
        out: The run's folder; None keeps the episodes in memory.
        limit: Only the first so many tasks.
        tasks: Only these, by id.
        exclude: Task id → why it is not run; kept in the run's record, with the tasks that say
            themselves that they cannot be graded.
        epochs: Attempts at each task.
        seed: From it, the epoch and the task comes each episode's own seed.
        progress: Is told how it goes.
        max_retries: How often an episode is begun again after the sandbox failed.
        settings: What identifies the environment, for the record (``env``, ``image``, limits…);
            a run is only gone on with under the same.
        agent_options: For an agent given by name.
        context: What else the record is to say of this session (``sandbox``, ``tools``…).
        locked: The ``run.json`` of a run that this one must be made of the same as; if it is that
            of `out` itself, what is accepted may differ from session to session.
        accept: What may differ from it all the same; see `intercode.evaluate.drift`.

    Raises:
        UsageError: The arguments make no sense.
        DriftError: Something is not as in the run that this one is locked to.
        RecordError: `out` holds another run, or cannot be written.
        RunLockedError: Another process is writing to `out`.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    if workers < 1 or epochs < 1 or max_retries < 0:
        raise UsageError("workers and epochs must be at least 1, retries at least 0")
    if any(most is not None and most < 1 for most in (max_connections, max_sandboxes)):
        raise UsageError("max_connections and max_sandboxes must be at least 1")
    options = dict(agent_options or {})
    factory = registry.get(agent, **options) if isinstance(agent, str) else agent
    facts: dict[str, Any] = {}
    if isinstance(factory, HasFacts):
        name, facts = factory.name, {"language_model": factory.facts()}
    else:
        name = agent if isinstance(agent, str) else getattr(agent, "__name__", type(agent).__name__)
    exclude = {**not_gradable(dataset), **(exclude or {})}
    chosen = select(dataset, tasks, limit, exclude)
    if isinstance(factory, ChecksTasks):
        factory.check([task if sees_gold(factory) else task.shown() for task in chosen])
    wanted = manifest.describe(
        dataset={
            "name": dataset.name,
            "source": None if dataset.source is None else str(dataset.source),
            "digest": dataset.digest,
            "tasks": len(dataset),
        },
        env=settings or {},
        agent={
            "name": name,
            "options": {key: str(value) for key, value in options.items()},
            "digest": registry.digest(name),
            **facts,
        },
        needs_gold=sees_gold(factory),
        seed=seed,
        excluded=exclude,
    )
    session = manifest.session(
        context,
        workers=workers,
        max_connections=max_connections,
        max_sandboxes=max_sandboxes,
        limit=limit,
        tasks=tasks,
        epochs=epochs,
        max_retries=max_retries,
    )
    if locked is not None:
        drift.refuse(locked, {**wanted, "sessions": [session]}, accept)
    kept: list[Episode] = []
    with ExitStack() as stack:
        hide(out)
        log = None if out is None else stack.enter_context(RecordWriter(Path(out)))
        finished: dict[tuple[int, str], Outcome] = {}
        if log is not None:
            record, finished = _resumed(log.folder, wanted, locked)
            if locked == record:
                session |= drift.of_run(locked, wanted)
            record["sessions"].append(session)
            log.write_manifest(record)
        jobs = [Job(epoch, task) for epoch in range(epochs) for task in chosen]
        done = {job.key: finished[job.key] for job in jobs if job.key in finished}
        orders = Orders(
            agent=factory,
            env_factory=env_factory,
            seed=seed,
            max_retries=max_retries,
            agent_name=name,
            env_name=str((settings or {}).get("env", "")),
            record=kept.append if log is None else log.append,
            on_action=(progress := progress or Progress()).action,
            calls=Permits(max_connections),
            sandboxes=Permits(max_sandboxes or default_sandboxes()),
        )
        pool = Pool([job for job in jobs if job.key not in done], orders, workers)
        progress.begin(len(jobs), list(done.values()))
        stack.callback(progress.end)
        interrupts = stack.enter_context(Interrupts())
        start, ran = time.monotonic(), 0
        with closing(pool.run(interrupts, progress)) as episodes:
            for episode in episodes:
                ran += 1
                done[(episode.epoch, episode.task_id)] = Outcome.of(episode)
                progress.episode(episode)
        result = RunResult(
            outcomes=[done[job.key] for job in jobs if job.key in done],
            planned=len(jobs),
            ran=ran,
            seconds=time.monotonic() - start,
            interrupted=interrupts.count > 0,
            stopped=pool.stopped,
            folder=None if log is None else log.folder,
            kept=kept,
        )
        if log is not None:
            manifest.finish(
                session, episodes=ran, seconds=result.seconds, interrupted=result.cut_short
            )
            log.write_manifest(record)
    return result


def not_gradable(dataset: Dataset) -> dict[str, str]:
    """The tasks that say that they cannot be graded, and why."""
    reasons = ((task.task_id, task.metadata.get(CANNOT)) for task in dataset)
    return {task_id: str(reason) for task_id, reason in reasons if reason is not None}


def select(
    dataset: Dataset,
    ids: Sequence[str] | None,
    limit: int | None,
    exclude: Collection[str] = (),
) -> list[Task]:
    """The tasks that were asked for and are not excluded, in the dataset's order.

    Raises:
        TaskNotFoundError: An id is unknown.
        UsageError: None is left.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    if ids:
        wanted = {dataset.by_id(task_id).task_id for task_id in ids}
        chosen = [task for task in dataset if task.task_id in wanted]
    else:
        chosen = list(dataset)
    if not chosen:
        raise UsageError(f"dataset {dataset.name} has no tasks")
    chosen = [task for task in chosen if task.task_id not in exclude]
    if not chosen:
        raise UsageError("all of the tasks that were asked for are excluded")
    return chosen[:limit]


def _resumed(
    folder: Path, wanted: dict[str, Any], locked: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[tuple[int, str], Outcome]]:
    """The run's ``run.json`` and what it has finished, if it was begun before."""
    if not (folder / MANIFEST).exists():
        if (folder / EPISODES).stat().st_size:
            raise RecordError(f"{folder} has episodes but no {MANIFEST}: cannot go on with it")
        return wanted, {}
    recorded = read_manifest(folder)
    manifest.check_format(recorded, folder)
    if recorded != locked:  # else it was compared already
        manifest.check_same(recorded, wanted, folder)
    outcomes = latest(folder, Outcome.of)
    return recorded, {key: outcome for key, outcome in outcomes.items() if not outcome.failed}
