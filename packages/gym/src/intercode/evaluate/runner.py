"""Runs an agent over a dataset, on threads, and keeps every episode."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from intercode.agents import registry
from intercode.agents.base import AgentFactory, HasFacts, sees_gold
from intercode.episode import Episode
from intercode.errors import RecordError, UsageError
from intercode.evaluate.actors import Actors, actors
from intercode.evaluate.budget_spent import budget_of
from intercode.evaluate.drift import (
    DriftError,
    differences,
    of_machine,
    of_run,
    refuse_another,
    warning,
    what_changed,
)
from intercode.evaluate.exclusion import not_gradable, select
from intercode.evaluate.executor import Executor, Threads, Work, executor_of
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.manifest import dataset_facts, describe, finish, session as session_record
from intercode.evaluate.prepare import Plan, Setting, check, check_tasks, plan, setting
from intercode.evaluate.progress import Progress
from intercode.evaluate.summary import Outcome, Statistics, by_tag, summarize
from intercode.evaluate.versions import rules_of
from intercode.evaluate.worker import Interrupts, Job
from intercode.models.local import PROVIDER as LOCAL
from intercode.records import (
    EPISODES,
    MANIFEST,
    Key,
    RecordWriter,
    key_of,
    latest,
    read_episodes,
    read_manifest,
)
from intercode.spec import CODE, RunSpec, in_any_folder
from intercode.task import Dataset
from intercode_sandbox.files import preserve_working_directory
from intercode_sandbox.images import hide
from intercode_sandbox.user_code import absolute, remember

if TYPE_CHECKING:
    from intercode.models import Budget


@dataclass(slots=True)
class RunResult:
    """The results of a run, with those that earlier sessions of it had finished."""

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
        return self.interrupted and not self.complete

    @property
    def complete(self) -> bool:
        """Whether every episode has a result."""
        return len(self.outcomes) == self.planned and not self.statistics.errors


class Options(TypedDict, total=False):
    """The options of `evaluate`, where it is given a dataset.

    Attributes:
        workers: Threads, each with an environment of its own.
        max_connections: Calls to the model at a time; for an agent that is not a language model of
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
        max_retries: How often an episode is begun again after the sandbox failed.
        settings: The facts that identify the environment, for the record (``env``, ``image``,
            limits…); a run is only resumed under the same.
        agent_options: For an agent given by name.
        context: More that the record is to say of this session (``sandbox``, ``tools``…).
        locked: The ``run.json`` of a run that this one must be made of the same as; if it is that
            of `out` itself, what is accepted may differ from session to session.
        accept: What may differ from it all the same; see `intercode.evaluate.drift`.
    """

    workers: int
    max_connections: int | None
    max_sandboxes: int | None
    out: str | Path | None
    limit: int | None
    tasks: Sequence[str] | None
    exclude: Mapping[str, str] | None
    epochs: int
    seed: int
    max_retries: int
    settings: Mapping[str, Any] | None
    agent_options: Mapping[str, Any] | None
    context: Mapping[str, Any] | None
    locked: Mapping[str, Any] | None
    accept: Collection[str]


def evaluate(
    dataset: Dataset | RunSpec,
    agent: str | AgentFactory = "oracle",
    env_factory: Callable[[], EpisodeEnv] | None = None,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[Options],
) -> RunResult:
    """Run an agent over a dataset.

    An interrupt (Ctrl-C) lets the episodes in flight end and returns what there is; a second one
    stops at once. So does, after the episodes in flight, an error that would be the same for all:
    a budget that is used up, a wrong key. A run that did not finish is resumed by calling this
    again with the same `out`: only what has no result yet is run.

    Args:
        dataset: The tasks; or a `RunSpec`, which says all the rest, too.
        agent: A factory, or a name as `intercode.agents.registry.get` takes it.
        env_factory: Makes an environment over this dataset; called in each worker.
        progress: Is told how it goes.
        executor: Runs the episodes of a `RunSpec`, as ``intercode_integrations.ray.Ray()`` does on
            a cluster; None: the one that the spec names, or else threads.
        options: See `Options`.

    Raises:
        UsageError: The arguments make no sense.
        TypeError: An option is unknown.
        DriftError: Something is not as in the run that this one is locked to.
        RecordError: `out` holds another run, or cannot be written.
        RunLockedError: Another process is writing to `out`.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        known = ", ".join(sorted(Options.__annotations__))
        raise TypeError(f"evaluate() takes no {', '.join(sorted(unknown))}; it takes {known}")
    progress = Progress() if progress is None else progress
    _refuse_wrong(dataset, agent, env_factory, progress)
    if isinstance(dataset, RunSpec):
        if options or env_factory is not None:
            raise UsageError("a RunSpec says everything: put the other arguments into it")
        return run(dataset, progress, executor=executor)
    if executor is not None:
        raise UsageError("an executor needs a RunSpec, from which each machine makes the same")
    if env_factory is None:
        raise UsageError("evaluate() needs an env_factory, or a RunSpec instead of a dataset")
    names = ("workers", "max_connections", "max_sandboxes", "out", "limit", "tasks", "epochs")
    how = {name: options.get(name) for name in (*names, "seed", "accept")}
    spec = RunSpec.of(how, {"retries": options.get("max_retries")})
    exclude = {**not_gradable(dataset), **(options.get("exclude") or {})}
    tasks = select(dataset, spec.tasks, spec.limit, exclude)
    given = dict(options.get("agent_options") or {})
    factory = registry.get(agent, **given) if isinstance(agent, str) else agent
    name = agent if isinstance(agent, str) else getattr(agent, "__name__", type(agent).__name__)
    if isinstance(factory, HasFacts):
        name = factory.name
    asked = Plan(spec, dataset, tasks, exclude, options.get("locked"))
    check_tasks(asked.tasks, factory)
    where = Setting(env_factory, dict(options.get("settings") or {}))
    work = Work(asked, Actors(factory, name, given), where, progress)
    return _run(work, options.get("context"), Threads())


def _refuse_wrong(dataset: object, agent: object, env_factory: object, progress: object) -> None:
    """Refuse arguments of `evaluate` that are of other types.

    Raises:
        UsageError: An argument is something else than what is wanted.
    """
    if not isinstance(dataset, (Dataset, RunSpec)):
        raise UsageError(
            "evaluate() needs a Dataset or a RunSpec, as intercode.load_dataset('bash') returns "
            f"one, not {dataset!r:.80}"
        )
    if not isinstance(agent, str) and not callable(agent):
        raise UsageError(f"agent must be a name or a factory of agents, not {agent!r:.80}")
    if env_factory is not None and not callable(env_factory):
        raise UsageError(
            "env_factory must be a function that makes an environment for each worker: "
            f"lambda: intercode.make('bash', data=tasks), not {type(env_factory).__name__}"
        )
    if not isinstance(progress, Progress):
        raise UsageError(
            "progress must be an object of a subclass of intercode.evaluate.progress.Progress, "
            f"whose methods are told how the run goes, not {type(progress).__name__}"
        )


@preserve_working_directory()
def run(
    asked: RunSpec | Plan,
    progress: Progress,
    budget: Budget | None = None,
    executor: Executor | None = None,
) -> RunResult:
    """Carry out what is asked for.

    Args:
        asked: A spec, or what `intercode.evaluate.prepare.plan` has made of one.
        progress: Is told how it goes.
        budget: One that several runs share; default: the run's own.
        executor: As for `evaluate`.

    Raises:
        InterCodeError: As `evaluate`.
    """
    planned = plan(asked, progress) if isinstance(asked, RunSpec) else asked
    # Before an agent's file is run, which may change the working directory. Names of code are
    # recorded as they were given.
    paths = {**planned.spec.flat()}
    for name in CODE & paths.keys():
        remember(str(paths.pop(name)))
    planned = replace(planned, spec=planned.spec.merge(**in_any_folder(paths)))
    budget = budget or budget_of(planned.spec)
    executor = executor or executor_of(planned.spec)
    executor.check(planned.spec)
    fetch_models(planned.spec, progress)
    who = actors(planned.spec, budget)
    with ExitStack() as stack:
        stack.callback(who.close)
        check(planned, who.factory, progress)
        where = setting(planned, progress, asks=who.asks, budget=budget)
        stack.callback(where.close)
        context = {**planned.context(), **where.context()}
        work = Work(planned, who, where, progress, budget)
        return _run(work, context, executor)


def fetch_models(spec: RunSpec, progress: Progress) -> None:
    """Fetch the models of this machine that a run needs, unless they are there.

    Raises:
        UsageError: There is no such model.
        FetchError: A file cannot be had, or is another one.
    """
    names = [name for name in (spec.model.name, spec.env.judge_model) if name]
    if any(name.startswith(f"{LOCAL}/") for name in names):
        from intercode.models.local.store import ensure  # which loads what downloads need

        for name in names:
            ensure(name, progress.say)
        progress.built()


def _run(work: Work, context: Mapping[str, Any] | None, executor: Executor) -> RunResult:
    """Run the episodes that have no result yet, and keep the record."""
    plan = work.plan
    out = plan.spec.how.out
    wanted = _wanted(plan, work.who, work.where.facts)
    session = _session(plan.spec, context)
    changed = _hold(plan, {**wanted, "sessions": [session]}, work.progress)
    with ExitStack() as stack:
        hide(out)
        if out is None:
            kept: list[Episode] = []
            work = replace(work, record=lambda *episodes: kept.extend(episodes))
            return replace(_work(work, executor, {}), kept=kept)
        log = stack.enter_context(RecordWriter(Path(out)))
        record, finished = _resumed(log.folder, wanted, plan.locked)
        if plan.locked is not None and plan.locked == record:
            session |= of_run(plan.locked, wanted, changed)
        record["sessions"].append(session)
        log.write_manifest(record)
        result = _work(replace(work, record=log.append), executor, finished)
        result.folder = log.folder
        finish(session, episodes=result.ran, seconds=result.seconds, interrupted=result.cut_short)
        log.write_manifest(record)
    return result


def _hold(plan: Plan, now: Mapping[str, Any], progress: Progress) -> list[str]:
    """Hold a run to what it is locked to; warn of changes of the machine that it may follow.

    Returns:
        Those changes.

    Raises:
        DriftError: Something else has changed.
    """
    if plan.locked is None:
        return []
    found = differences(plan.locked, now, plan.spec.how.accept)
    machine = of_machine(found, plan.locked) if plan.follows_machine else []
    if rest := [one for one in found if one not in machine]:
        raise DriftError(rest)
    changed = what_changed(machine)
    if changed:
        progress.warn(warning(changed))
    return changed


def _work(work: Work, executor: Executor, finished: Mapping[Key, Outcome]) -> RunResult:
    """Run the episodes that are not finished."""
    plan, progress = work.plan, work.progress
    jobs = [Job(epoch, task) for epoch in range(plan.spec.epochs) for task in plan.tasks]
    done = {job.key: finished[job.key] for job in jobs if job.key in finished}
    pool = executor.start([job for job in jobs if job.key not in done], work)
    progress.begin(len(jobs), list(done.values()))
    with ExitStack() as stack:
        stack.callback(progress.end)
        interrupts = stack.enter_context(Interrupts())
        start, ran = time.monotonic(), 0
        with closing(pool.run(interrupts, progress)) as episodes:
            for episode in episodes:
                ran += 1
                done[key_of(episode)] = Outcome.of(episode)
                progress.episode(episode)
        return RunResult(
            outcomes=[done[job.key] for job in jobs if job.key in done],
            planned=len(jobs),
            ran=ran,
            seconds=time.monotonic() - start,
            interrupted=interrupts.count > 0,
            stopped=pool.stopped,
        )


def _wanted(plan: Plan, who: Actors, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The record that a new run has."""
    model: dict[str, Any] = {}
    if isinstance(who.factory, HasFacts):
        model = {"language_model": who.factory.facts()}
    return describe(
        dataset=dataset_facts(plan.dataset),
        env={**facts, **rules_of(facts)},
        agent={
            "name": who.name,
            "options": {key: str(value) for key, value in who.options.items()},
            "digest": registry.digest(who.name),
            **({"skills": {s.name: s.digest for s in who.skills}} if who.skills else {}),
            **model,
        },
        needs_gold=sees_gold(who.factory),
        seed=plan.spec.seed,
        excluded=plan.exclude,
    )


def _session(spec: RunSpec, context: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of this call."""
    return session_record(
        context,
        workers=spec.how.workers,
        max_connections=spec.how.max_connections,
        max_sandboxes=spec.how.max_sandboxes,
        limit=spec.limit,
        tasks=None if spec.tasks is None else list(spec.tasks),
        epochs=spec.epochs,
        max_retries=spec.how.retries,
        **({} if spec.how.model_timeout is None else {"model_timeout": spec.how.model_timeout}),
        **({} if spec.how.on is None else {"on": absolute(spec.how.on)}),
    )


def _resumed(
    folder: Path, wanted: dict[str, Any], locked: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[Key, Outcome]]:
    """Return the run's ``run.json`` and what it has finished, if it was begun before."""
    if not (folder / MANIFEST).exists():
        if (folder / EPISODES).stat().st_size:
            raise RecordError(f"{folder} has episodes but no {MANIFEST}: it cannot be resumed")
        return wanted, {}
    recorded = read_manifest(folder)
    if recorded != locked:  # else it was compared already
        refuse_another(recorded, wanted, folder)
    outcomes = latest(folder, Outcome.of)
    return recorded, {key: outcome for key, outcome in outcomes.items() if not outcome.failed}
