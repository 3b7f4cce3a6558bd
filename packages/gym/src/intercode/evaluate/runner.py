"""Runs of an agent over a dataset, with a record of every episode.

`evaluate` takes a dataset with an environment factory, or a `RunSpec`. `run` takes a spec or a plan
and prepares the agent and the environment. Both functions give the unfinished episodes to an
executor, by default on threads, and record the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from intercode.agents import registry
from intercode.agents.base import AgentFactory, SupportsAgentFacts, sees_gold
from intercode.episode import Episode
from intercode.errors import RecordError, UsageError
from intercode.evaluate.agent_setup import PreparedAgent, actors
from intercode.evaluate.episode_loop import PlayableEnv
from intercode.evaluate.executor import Executor, PreparedRun, ThreadExecutor, resolve_executor
from intercode.evaluate.manifest import dataset_facts, describe, finish, session as session_record
from intercode.evaluate.manifest_diff import (
    DriftError,
    describe_changes,
    differences,
    find_machine_drift,
    refuse_other_run,
    session_differences,
    warning,
)
from intercode.evaluate.progress import Progress, default_progress
from intercode.evaluate.run_setup import (
    RunEnvironment,
    RunPlan,
    check,
    check_tasks,
    plan,
    resolve_setting,
)
from intercode.evaluate.scoring_versions import rule_versions
from intercode.evaluate.spending import make_budget
from intercode.evaluate.summary import Outcome, Statistics, by_tag, summarize
from intercode.evaluate.task_selection import select_tasks, ungradable_tasks
from intercode.evaluate.worker import EpisodeJob, InterruptCounter
from intercode.models.local import PROVIDER as LOCAL
from intercode.records import (
    EPISODES,
    MANIFEST,
    Key,
    RunRecordWriter,
    episode_key,
    last_attempts,
    read_episodes,
    read_latest,
    read_manifest,
)
from intercode.registry import NOTEBOOK
from intercode.spec import CODE, RunSpec, resolve_paths
from intercode.task import Dataset
from intercode_sandbox.host_files import preserve_working_directory
from intercode_sandbox.images import hide
from intercode_sandbox.user_code import absolute, remember

if TYPE_CHECKING:
    from pandas import DataFrame

    from intercode.models import Budget


@dataclass(slots=True, repr=False)
class RunResult:
    """The results of a run, including those of its earlier sessions."""

    outcomes: list[Outcome]
    """One outcome for each ended episode, by epoch, then in the dataset's order."""
    planned: int
    """Number of requested episodes."""
    ran: int
    """Number of episodes that ended in this session."""
    seconds: float
    """Wall time of this session."""
    interrupted: bool = False
    """Whether an interrupt (Ctrl-C or SIGTERM) came. A caller with several runs then starts no
    other run, even if this run is complete."""
    stopped: str | None = None
    """The error that stopped the run, because every other episode would end in the same error."""
    folder: Path | None = None
    kept: list[Episode] = field(default_factory=list)
    """The episodes, if the run has no folder."""
    shown_gold: bool = False
    """Whether the agent received gold together with the tasks, as the oracle does."""

    def episodes(self) -> Iterator[Episode]:
        """Return all episodes. If the run has a folder, episodes are read from disk one by one.

        The folder also has the attempts that ended in an error and were repeated by a later
        session.
        """
        return iter(self.kept) if self.folder is None else read_episodes(self.folder / EPISODES)

    def to_pandas(self) -> DataFrame:
        """Return a pandas data frame with a row for each episode.

        The columns are those of `intercode.report.export.EPISODE_COLUMNS`. Of an episode that was
        repeated after an error, the last attempt counts.

        Raises:
            UsageError: pandas is not installed.
            RecordError: The run's folder cannot be read.
        """
        episodes = self.kept if self.folder is None else last_attempts(self.folder)
        return NOTEBOOK.get("data frame")(episodes)

    def __repr__(self) -> str:
        successes = sum(outcome.success for outcome in self.outcomes)
        return f"RunResult({len(self.outcomes)} of {self.planned} episodes, {successes} solved)"

    def _repr_html_(self) -> str:
        """Return the view of the results in a notebook."""
        html: str = NOTEBOOK.get("run")(self)
        return html

    @property
    def statistics(self) -> Statistics:
        """The summary of all outcomes."""
        return summarize(self.outcomes)

    @property
    def tags(self) -> dict[str, Statistics]:
        """The summary for each tag."""
        return by_tag(self.outcomes)

    @property
    def cut_short(self) -> bool:
        """Whether an interrupt came, and some episode has no result."""
        return self.interrupted and not self.complete

    @property
    def complete(self) -> bool:
        """Whether every episode has a result."""
        return len(self.outcomes) == self.planned and not self.statistics.errors


class EvaluationOptions(TypedDict, total=False):
    """The options of `evaluate` for a dataset.

    Attributes:
        workers: Threads, each with its own environment.
        max_connections: The maximum number of concurrent calls to the model. For agents other than
            InterCode's language models: of agents that decide at the same time. None: the number of
            workers.
        max_sandboxes: Environments that are reset, take an action or score at the same time; None:
            twice the number of cores. Time limits exclude the waiting time.
        out: The run's folder; None keeps the episodes in memory.
        limit: Run only the first so many tasks.
        tasks: Run only the tasks with these ids.
        exclude: Task id → the reason why the run excludes the task. The run's record also lists the
            tasks whose metadata marks them as ungradable.
        epochs: Attempts at each task.
        seed: Each episode's seed derives from this number, the epoch and the task.
        max_retries: Restarts of an episode after sandbox failures.
        settings: The facts that identify the environment, for the record (``env``, ``image``,
            limits…). A run resumes only under the same facts.
        agent_options: Options for an agent that a name selects.
        context: Further facts for the record of this session (``sandbox``, ``tools``…).
        locked: The ``run.json`` of a run that this run must reproduce. If the file belongs to the
            folder `out`, the accepted differences may vary from session to session.
        accept: Facts that may differ from `locked`; see `intercode.evaluate.manifest_diff`.
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
    env_factory: Callable[[], PlayableEnv] | None = None,
    *,
    progress: Progress | None = None,
    executor: Executor | None = None,
    **options: Unpack[EvaluationOptions],
) -> RunResult:
    """Run an agent over a dataset.

    The first interrupt (Ctrl-C) lets the running episodes end, and returns their results. A second
    interrupt stops at once. An error that all episodes would share, such as an exhausted budget or
    a wrong key, also stops the run after the running episodes. To resume an unfinished run, call
    this function again with the same `out`: only episodes without a result run.

    Args:
        dataset: The tasks; or a `RunSpec`, which contains all other settings.
        agent: A factory, or a name that `intercode.agents.registry.get` accepts; ignored with a
            `RunSpec`, which names its agent.
        env_factory: Makes an environment over this dataset; each worker calls it.
        progress: Observes the run. None: in a notebook, a bar below the cell; elsewhere, log lines.
        executor: Runs the episodes of a `RunSpec`; ``intercode_integrations.ray.Ray()`` uses a
            cluster. None: the spec's executor, or else threads.
        options: See `EvaluationOptions`.

    Returns:
        The outcomes of this and of earlier sessions.

    Raises:
        UsageError: The arguments are inconsistent or out of range.
        TypeError: An option is unknown.
        DriftError: A fact differs from the run that this run is locked to.
        RecordError: `out` holds another run, or cannot be written.
        RunLockedError: Another process is writing to `out`.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    if unknown_options := options.keys() - EvaluationOptions.__annotations__.keys():
        option_names = ", ".join(sorted(EvaluationOptions.__annotations__))
        raise TypeError(
            f"evaluate() takes no {', '.join(sorted(unknown_options))}; it takes {option_names}"
        )
    progress = default_progress() if progress is None else progress
    _check_arguments(dataset, agent, env_factory, progress)
    if isinstance(dataset, RunSpec):
        if options or env_factory is not None:
            raise UsageError("a RunSpec describes the whole run: put the other arguments into it")
        return run(dataset, progress, executor=executor)
    if executor is not None:
        raise UsageError(
            "an executor needs a RunSpec, with which each machine creates the same environment"
        )
    if env_factory is None:
        raise UsageError("evaluate() needs an env_factory, or a RunSpec instead of a dataset")
    names = ("workers", "max_connections", "max_sandboxes", "out", "limit", "tasks", "epochs")
    run_options = {name: options.get(name) for name in (*names, "seed", "accept")}
    spec = RunSpec.from_layers(run_options, {"retries": options.get("max_retries")})
    excluded_tasks = {**ungradable_tasks(dataset), **(options.get("exclude") or {})}
    tasks = select_tasks(dataset, spec.tasks, spec.limit, excluded_tasks)
    agent_options = dict(options.get("agent_options") or {})
    factory = registry.get(agent, **agent_options) if isinstance(agent, str) else agent
    name = agent if isinstance(agent, str) else getattr(agent, "__name__", type(agent).__name__)
    if isinstance(factory, SupportsAgentFacts):
        name = factory.name
    run_plan = RunPlan(spec, dataset, tasks, excluded_tasks, options.get("locked"))
    check_tasks(run_plan.tasks, factory)
    env_setting = RunEnvironment(env_factory, dict(options.get("settings") or {}))
    prepared_run = PreparedRun(
        run_plan, PreparedAgent(factory, name, agent_options), env_setting, progress
    )
    return _run(prepared_run, options.get("context"), ThreadExecutor())


def _check_arguments(dataset: object, agent: object, env_factory: object, progress: object) -> None:
    """Refuse arguments of `evaluate` that have the wrong type.

    Raises:
        UsageError: An argument has the wrong type.
    """
    if not isinstance(dataset, (Dataset, RunSpec)):
        raise UsageError(
            "evaluate() needs a Dataset, such as intercode.load_dataset('bash'), or a RunSpec, "
            f"not {dataset!r:.80}"
        )
    if not isinstance(agent, str) and not callable(agent):
        raise UsageError(f"agent must be a name or a factory of agents, not {agent!r:.80}")
    if env_factory is not None and not callable(env_factory):
        raise UsageError(
            "env_factory must be a function that creates an environment for each worker: lambda: "
            f"intercode.make('bash', data=tasks), not {type(env_factory).__name__}"
        )
    if not isinstance(progress, Progress):
        raise UsageError(
            "progress must be an instance of a subclass of intercode.evaluate.progress.Progress, "
            f"not {type(progress).__name__}"
        )


@preserve_working_directory()
def run(
    spec_or_plan: RunSpec | RunPlan,
    progress: Progress,
    budget: Budget | None = None,
    executor: Executor | None = None,
) -> RunResult:
    """Run the episodes of a spec or a plan.

    Args:
        spec_or_plan: A spec, or the result of `intercode.evaluate.run_setup.plan`.
        progress: Observes the run.
        budget: A budget that several runs share; None: a budget for this run alone.
        executor: As for `evaluate`.

    Raises:
        InterCodeError: As for `evaluate`.
    """
    run_plan = plan(spec_or_plan, progress) if isinstance(spec_or_plan, RunSpec) else spec_or_plan
    # Paths are resolved before an agent's file runs, because the file may change the working
    # directory. References to code stay unresolved, because the record has them in that form.
    paths = {**run_plan.spec.flat()}
    for name in CODE & paths.keys():
        remember(str(paths.pop(name)))
    run_plan = replace(run_plan, spec=run_plan.spec.merge(**resolve_paths(paths)))
    budget = budget or make_budget(run_plan.spec)
    executor = executor or resolve_executor(run_plan.spec)
    executor.check(run_plan.spec)
    fetch_models(run_plan.spec, progress)
    agent = actors(run_plan.spec, budget)
    with ExitStack() as stack:
        stack.callback(agent.close)
        check(run_plan, agent.factory, progress)
        env_setting = resolve_setting(
            run_plan, progress, required_options=agent.required_options, budget=budget
        )
        stack.callback(env_setting.close)
        context = {**run_plan.context(), **env_setting.context()}
        prepared_run = PreparedRun(run_plan, agent, env_setting, progress, budget)
        return _run(prepared_run, context, executor)


def fetch_models(spec: RunSpec, progress: Progress) -> None:
    """Fetch the local models that a run needs and that this machine lacks.

    Raises:
        UsageError: A model does not exist.
        FetchError: A file cannot be fetched, or has another digest.
    """
    names = [name for name in (spec.model.name, spec.env.judge_model) if name]
    if any(name.startswith(f"{LOCAL}/") for name in names):
        from intercode.models.local.store import ensure  # the module loads the download code

        for name in names:
            ensure(name, progress.announce)
        progress.end_preparation()


def _run(
    prepared_run: PreparedRun, context: Mapping[str, Any] | None, executor: Executor
) -> RunResult:
    """Run the episodes that have no result yet, and write the record."""
    plan = prepared_run.plan
    folder = plan.spec.run_options.out
    current_manifest = _describe_run(plan, prepared_run.agent, prepared_run.setting.facts)
    session = _session(plan.spec, context)
    machine_changes = _check_lock(
        plan, {**current_manifest, "sessions": [session]}, prepared_run.progress
    )
    with ExitStack() as stack:
        hide(folder)
        if folder is None:
            retained_episodes: list[Episode] = []
            prepared_run = replace(
                prepared_run, record=lambda *episodes: retained_episodes.extend(episodes)
            )
            return replace(_play_jobs(prepared_run, executor, {}), kept=retained_episodes)
        log = stack.enter_context(RunRecordWriter(Path(folder)))
        record, finished_outcomes = _resume_run(log.folder, current_manifest, plan.locked)
        if plan.locked is not None and plan.locked == record:
            session |= session_differences(plan.locked, current_manifest, machine_changes)
        record["sessions"].append(session)
        log.write_manifest(record)
        result = _play_jobs(replace(prepared_run, record=log.append), executor, finished_outcomes)
        result.folder = log.folder
        finish(session, episodes=result.ran, seconds=result.seconds, interrupted=result.cut_short)
        log.write_manifest(record)
    return result


def _check_lock(
    plan: RunPlan, current_manifest: Mapping[str, Any], progress: Progress
) -> list[str]:
    """Compare a run with the run to which it is locked, and warn of permitted changes.

    Changes of this machine may be permitted, see `RunPlan.follows_machine`.

    Returns:
        The permitted changes of the machine, as text.

    Raises:
        DriftError: Another fact has changed.
    """
    if plan.locked is None:
        return []
    run_differences = differences(plan.locked, current_manifest, plan.spec.run_options.accept)
    machine_differences = (
        find_machine_drift(run_differences, plan.locked) if plan.follows_machine else []
    )
    if refused_differences := [
        difference for difference in run_differences if difference not in machine_differences
    ]:
        raise DriftError(refused_differences)
    machine_changes = describe_changes(machine_differences)
    if machine_changes:
        progress.warn(warning(machine_changes))
    return machine_changes


def _play_jobs(
    prepared_run: PreparedRun, executor: Executor, finished_outcomes: Mapping[Key, Outcome]
) -> RunResult:
    """Run the unfinished episodes."""
    plan, progress = prepared_run.plan, prepared_run.progress
    jobs = [EpisodeJob(epoch, task) for epoch in range(plan.spec.epochs) for task in plan.tasks]
    outcomes = {job.key: finished_outcomes[job.key] for job in jobs if job.key in finished_outcomes}
    pool = executor.start([job for job in jobs if job.key not in outcomes], prepared_run)
    progress.begin(len(jobs), list(outcomes.values()))
    with ExitStack() as stack:
        stack.callback(progress.end)
        interrupts = stack.enter_context(InterruptCounter())
        start, episode_count = time.monotonic(), 0
        with closing(pool.run(interrupts, progress)) as episodes:
            for episode in episodes:
                episode_count += 1
                outcomes[episode_key(episode)] = Outcome.from_episode(episode)
                progress.episode(episode)
        return RunResult(
            outcomes=[outcomes[job.key] for job in jobs if job.key in outcomes],
            planned=len(jobs),
            ran=episode_count,
            seconds=time.monotonic() - start,
            interrupted=interrupts.count > 0,
            stopped=pool.stopped,
            shown_gold=sees_gold(prepared_run.agent.factory),
        )


def _describe_run(plan: RunPlan, agent: PreparedAgent, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a new run."""
    model: dict[str, Any] = {}
    if isinstance(agent.factory, SupportsAgentFacts):
        model = {"language_model": agent.factory.facts()}
    return describe(
        dataset=dataset_facts(plan.dataset),
        env={**facts, **rule_versions(facts)},
        agent={
            "name": agent.name,
            "options": {key: str(value) for key, value in agent.options.items()},
            "digest": registry.digest(agent.name),
            **(
                {"skills": {skill.name: skill.digest for skill in agent.skills}}
                if agent.skills
                else {}
            ),
            **model,
        },
        needs_gold=sees_gold(agent.factory),
        seed=plan.spec.seed,
        excluded_tasks=plan.exclude,
    )


def _session(spec: RunSpec, context: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the record of this session."""
    return session_record(
        context,
        workers=spec.run_options.workers,
        max_connections=spec.run_options.max_connections,
        max_sandboxes=spec.run_options.max_sandboxes,
        limit=spec.limit,
        tasks=None if spec.tasks is None else list(spec.tasks),
        epochs=spec.epochs,
        max_retries=spec.run_options.retries,
        **(
            {}
            if spec.run_options.model_timeout is None
            else {"model_timeout": spec.run_options.model_timeout}
        ),
        **({} if spec.run_options.on is None else {"on": absolute(spec.run_options.on)}),
    )


def _resume_run(
    folder: Path, current_manifest: dict[str, Any], locked_manifest: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[Key, Outcome]]:
    """Return the ``run.json`` and the finished outcomes of a run's folder.

    For a new folder, the result is `current_manifest` and no outcomes.

    Raises:
        RecordError: The folder holds another run, or episodes without a manifest.
    """
    if not (folder / MANIFEST).exists():
        if (folder / EPISODES).stat().st_size:
            raise RecordError(f"{folder} has episodes but no {MANIFEST}: it cannot be resumed")
        return current_manifest, {}
    recorded_manifest = read_manifest(folder)
    # `_check_lock` has already compared the current facts with a locked run.
    if recorded_manifest != locked_manifest:
        refuse_other_run(recorded_manifest, current_manifest, folder)
    outcomes = read_latest(folder, Outcome.from_episode)
    return recorded_manifest, {
        key: outcome for key, outcome in outcomes.items() if not outcome.failed
    }
