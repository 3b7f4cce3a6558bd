"""The setup of a run: its tasks (`plan`) and its environment (`resolve_setting`), from a spec.

`plan` loads and selects the tasks without starting anything. `resolve_setting` resolves the
provider or the database engine, builds the images, and returns a factory of environments. `check`
refuses agents that cannot try the tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode import datasets
from intercode.agents.base import (
    AgentFactory,
    SupportsRunCheck,
    SupportsTaskCheck,
    check_factory,
    sees_gold,
)
from intercode.databases import engine_name, shared_engine
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import LimitOptions, list_constructor_options
from intercode.envs.traits import find_traits
from intercode.errors import ImageError, UsageError
from intercode.evaluate.agent_setup import agent_provider
from intercode.evaluate.episode_loop import PlayableEnv
from intercode.evaluate.model_rewards import ModelReward, model_reward
from intercode.evaluate.progress import Progress
from intercode.evaluate.task_selection import (
    read_exclusion,
    select_tasks,
    tasks_with_odd_tests,
    ungradable_tasks,
)
from intercode.evaluate.tool_versions import tool_versions
from intercode.project import FILE, create, find_benchmark
from intercode.records import MANIFEST, read_manifest
from intercode.registry import DATASETS, ENVS, REWARDS, SOURCES, environment as find_environment
from intercode.rewards.gold import GoldCache
from intercode.spec import RunSpec, environments, recorded_options, resolve_paths
from intercode.task import COMMON_METADATA, Dataset, Task
from intercode_sandbox import Limits, Provider
from intercode_sandbox.host_files import preserve_working_directory
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.user_code import absolute, digest, is_reference

if TYPE_CHECKING:
    from intercode.models import Budget

REQUESTABLE_OPTIONS = ("reward_every_turn", "max_turns", "ignore")
"""The options of an environment that an agent may request, apart from ``limits`` and ``layers``."""
_MAX_NAMES = 5
"""Maximum number of tasks that a warning names."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The tasks that a spec selects, before anything starts."""

    spec: RunSpec
    dataset: Dataset
    tasks: list[Task]
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Task id → the reason why the run excludes the task."""
    locked: Mapping[str, Any] | None = None
    """The ``run.json`` of the run that this run must reproduce (``--locked``)."""
    follows_machine: bool = False
    """Whether the image ``host`` may differ from its state in the locked run, because the machine
    has changed since."""

    def context(self) -> dict[str, Any]:
        """Return the facts about the options and the locked run, for the session's record."""
        facts: dict[str, Any] = {"options": self.spec.recorded()}
        if self.locked is not None:
            run = str(Path(str(self.spec.run_options.locked)).absolute())
            facts["locked"] = {"run": run, "accepted": list(self.spec.run_options.accept)}
        return facts


def plan(spec: RunSpec, progress: Progress) -> RunPlan:
    """Load the tasks that a spec selects, without starting anything.

    Raises:
        UsageError: An option of the spec is invalid, or the options are inconsistent.
        TaskError: The data is malformed.
        TaskNotFoundError: The spec names a task that the dataset does not have.
        RecordError: The locked run cannot be read.
    """
    if spec.run_options.accept and not spec.run_options.locked:
        raise UsageError("--accept lists permitted differences from --locked RUN: add --locked RUN")
    locked_manifest = (
        None
        if spec.run_options.locked is None
        else read_manifest(run_folder(spec.run_options.locked))
    )
    environment(spec)
    spec.check()
    with preserve_working_directory():
        spec, full_dataset = load(spec)
    excluded_tasks: Mapping[str, str] = (locked_manifest or {}).get("excluded", {})
    if spec.exclude is not None:
        exclusion = read_exclusion(Path(spec.exclude))
        if warning := exclusion.check(full_dataset):
            progress.warn(f"warning: {warning}")
        excluded_tasks = exclusion.tasks or excluded_tasks
    excluded_tasks = {**ungradable_tasks(full_dataset), **excluded_tasks}
    dataset = narrow_dataset(spec, full_dataset, progress)
    tasks = select_tasks(dataset, spec.tasks, spec.limit, excluded_tasks)
    return RunPlan(spec, dataset, tasks, excluded_tasks, locked_manifest)


def run_folder(run: str | Path) -> Path:
    """Return a run's folder, from its path or from the path of its ``run.json``."""
    path = Path(run)
    return path.parent if path.name == MANIFEST else path


def environment(spec: RunSpec) -> str:
    """Return the name of a spec's environment, if the name is valid.

    Raises:
        UsageError: The name is missing or unknown.
    """
    name = spec.env.name
    if not name:
        raise UsageError(f"name an environment, such as 'bash': {', '.join(environments())}")
    if (name not in ENVS or ":" in name) and name not in SOURCES:
        raise SOURCES.unknown(name) if name in SOURCES.homes else _unknown(name)
    return name


def _unknown(name: str) -> UsageError:
    """Return the error for an unknown environment name, which may be a mistaken path."""
    path = Path(name)
    if path.is_file():
        return UsageError(
            f"{name} is a file, not an environment: name one, such as intercode run bash --data "
            f"{name}; or validate its tasks: intercode validate {name}"
        )
    if "/" in name or name in (".", "..") or path.suffix:
        return UsageError(f"there is no folder or file {name}")
    return ENVS.unknown(name, environments())


def load(spec: RunSpec) -> tuple[RunSpec, Dataset]:
    """Load the dataset of a spec, including tasks that cannot be graded.

    Returns:
        The spec and the dataset. If the dataset is generated from a secret, the returned spec
        contains the secret.

    Raises:
        TaskError: The data is malformed, or lacks the split.
        UsageError: The spec requests reviewed golds that do not exist; or the environment has no
            tasks and the spec names none.
    """
    dataset_name = spec.env.data or spec.env.name
    if spec.env.data is None and dataset_name in ENVS and dataset_name not in DATASETS:
        raise UsageError(
            f"environment {dataset_name!r} has no bundled tasks: name a file or dataset by --data"
        )
    if spec.env.reviewed:
        if not datasets.accepts_option(dataset_name, "reviewed"):
            raise UsageError(f"--reviewed: there is no review of the golds of {dataset_name!r}")
        return spec, datasets.load(dataset_name, spec.env.split, reviewed=True)
    if datasets.accepts_option(dataset_name, "secret") and spec.env.secret is None:
        # A locked run without a recorded secret was made before secrets existed. Its tasks were
        # generated from an empty secret.
        secret = (
            ""
            if spec.run_options.locked
            else find_secret(spec.run_options.out, spec.agent.recording)
        )
        spec = spec.merge(secret=secrets.token_hex(8) if secret is None else secret)
    return spec, datasets.load_seeded(dataset_name, spec.seed, spec.env.secret, spec.env.split)


def find_secret(*runs: str | Path | None) -> str | None:
    """Return the recorded secret of the first of several runs that has started.

    Returns:
        The secret from which the run's tasks are generated; None: none of the runs has started.
    """
    for run in runs:
        if run is not None and (Path(run) / MANIFEST).is_file():
            return str(recorded_options(read_manifest(Path(run))).get("secret", ""))
    return None


def narrow_dataset(spec: RunSpec, dataset: Dataset, progress: Progress) -> Dataset:
    """Remove the tasks that cannot run with the spec's options, and warn of the removal.

    Further warnings name a benchmark's options that are not used, the unknown fields of tasks, and
    tasks with impossible test names.
    """
    source = None if spec.env.benchmark else dataset.source
    if source is not None and (folder := find_benchmark(source)) is not None:
        progress.warn(
            f"{source}: the options of {folder / FILE} are not used: to use them, name the folder"
        )
    read_fields = {*COMMON_METADATA, *find_traits(spec.env.name, spec.env.protocol).fields}
    if metadata_fields := [name for name in dataset.kept if name not in read_fields]:
        progress.warn(
            f"{dataset.source or dataset.name}: kept as metadata: {', '.join(metadata_fields)}"
        )
    odd_tasks = tasks_with_odd_tests(dataset)
    for task_id, reason in [*odd_tasks.items()][:_MAX_NAMES]:
        progress.warn(f"excluded: {task_id}: {reason}")
    if len(odd_tasks) > _MAX_NAMES:
        progress.warn(f"left out: {len(odd_tasks) - _MAX_NAMES} more tasks with such test names")
    kind = find_environment(spec.env.name)
    if not hasattr(kind, "filter_tasks"):
        return dataset
    narrowed_dataset: Dataset
    narrowed_dataset, warning = kind.filter_tasks(dataset, spec.env.options)
    if warning:
        progress.warn(warning)
    return narrowed_dataset


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The checked environment of a run, with a factory that each worker calls for an instance."""

    make: Callable[[], PlayableEnv]
    facts: dict[str, Any]
    """The facts that identify the environment, for the run's record."""
    provider: Provider | None = None
    """The provider of the environment's sandboxes; None: tasks run in databases or remotely, or the
    caller made the environment's factory."""
    reward: ModelReward | None = None
    """The reward, if the reward asks a model; otherwise None."""

    def close(self) -> None:
        """Release the reward's resources."""
        if self.reward is not None:
            self.reward.close()

    def context(self) -> dict[str, Any]:
        """Return the facts about sandboxes and the tools in images, for the session's record.

        The method starts a sandbox of each image's base, in which the tools print their versions.
        """
        if self.provider is None:
            return {}
        tools = tool_versions(self.provider, self.facts["images"])
        facts = getattr(self.provider, "facts", dict)
        return {"sandbox": facts(), "tools": tools}


def resolve_setting(
    plan: RunPlan,
    progress: Progress,
    *,
    required_options: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> RunEnvironment:
    """Resolve or build the environment of a plan's tasks, and return it with its facts.

    Args:
        plan: The plan.
        progress: Receives the names of images and servers under construction.
        required_options: Options of the environment that the agent requests.
        budget: The budget for a reward that asks a model, which an agent may share; None:
            unlimited.

    Raises:
        UsageError: An image does not exist, or the environment does not take these options.
        TaskError: A task's database is missing.
        ImageError: An image cannot be built.
        SandboxUnavailableError: This machine permits no sandbox.
        DatabaseError: A database server cannot be reached or started.
    """
    spec, env = plan.spec, plan.spec.env
    option_parameters = list_constructor_options(find_environment(env.name, env.protocol))
    limits = _LIMIT_OPTIONS if "limits" in option_parameters else ()
    env_options = {name: value for name, value in env.options.items() if name not in limits}
    _check_options(spec, env_options, option_parameters)
    reward = model_reward(spec, budget)
    sandbox = env_options.get("sandbox", "native")
    agent_options = {**(required_options or {})}
    agent_limits, agent_layers = agent_options.pop("limits", {}), agent_options.pop("layers", ())
    # Paths are resolved now, because workers make environments later, and the agent's code may
    # change the working directory before that.
    options: dict[str, Any] = {"data": plan.dataset, **resolve_paths(env_options), **agent_options}
    name, protocol = absolute(env.name), absolute(env.protocol)
    facts = _environment_facts(spec, agent_limits)
    if layers := [*agent_layers, *agent_provider(spec.agent.name).layers(spec)]:
        options["layers"] = layers
    provider = None
    if "engine" in option_parameters:
        engine = shared_engine(env_options.get("engine", "sqlite"), progress.announce, sandbox)
        options["engine"] = engine
        facts["engine"] = {"name": engine.name, **engine.facts()}
        if is_reference(code := engine_name(env_options.get("engine", "sqlite"))):
            facts["engine"]["code"] = code
        facts |= {"sandbox": absolute(sandbox)} if "sandbox" in env_options else {}
    elif not find_traits(env.name).is_remote:
        provider = find_provider(env.name, sandbox, progress.announce)
        facts["sandbox"] = absolute(sandbox)
    if "history" in option_parameters:
        facts["history"] = env_options.get("history", option_parameters["history"].default)
    if "limits" in option_parameters:
        options["limits"] = _resolve_limits(spec, agent_limits)
    if "cache_gold" in option_parameters:
        options.setdefault("cache_gold", GoldCache())  # all workers share the cache
    if reward is not None:
        options["reward"] = reward
        facts[reward.KIND] = reward.facts()

    def make() -> InterCodeEnv[Any]:
        return cast("InterCodeEnv[Any]", create(name, protocol=protocol, **options))

    facts["images"] = _digests(make, plan.tasks, progress)
    return RunEnvironment(make, {**facts, **agent_options}, provider, reward)


def _environment_facts(spec: RunSpec, agent_limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about the environment that follow from the spec and the agent's limits."""
    env_options, reward = spec.env.options, spec.reward
    limits = _resolve_limits(spec, agent_limits).to_dict()
    engine = str(env_options.get("engine", ""))
    sources = {
        "engine": "" if "://" in engine else engine,
        "env": ENVS.file_reference(spec.env.name),
        "protocol": spec.env.protocol,
        "sandbox": str(env_options.get("sandbox", "")),
    }
    code = {name: text for name, source in sources.items() if (text := digest(source))}
    del limits["debugger"], limits["private"]  # the environment sets these two limits
    return {
        "env": spec.env.name,
        "protocol": spec.env.protocol,
        "image": env_options.get("image", env_options.get("default_image")),
        "reward": reward or "default",
        "max_turns": env_options.get("max_turns"),
        "limits": limits,
        "options": spec.identity(),
        **({"reward_digest": digest(reward)} if reward and is_reference(reward) else {}),
        **({"code": code} if code else {}),
    }


def _resolve_limits(spec: RunSpec, agent_limits: Mapping[str, Any]) -> Limits:
    """Return the limits of sandboxes: those that the agent needs, unless the spec sets others."""
    env_options = {
        name: value for name, value in spec.env.options.items() if name in _LIMIT_OPTIONS
    }
    return replace(Limits.merge({**agent_limits, **env_options}), overrides=frozenset(env_options))


_LIMIT_OPTIONS = LimitOptions.__struct_fields__


def _check_options(
    spec: RunSpec, env_options: Mapping[str, Any], option_parameters: Collection[str]
) -> None:
    """Refuse options and rewards that the environment does not support.

    Raises:
        UsageError: The environment does not take an option, or has no such reward.
    """
    name, reward = spec.env.name, spec.reward
    if unknown_options := [option for option in env_options if option not in option_parameters]:
        flag = "--" + unknown_options[0].replace("_", "-")
        raise UsageError(f"environment {name!r}, protocol {spec.env.protocol!r}, takes no {flag}")
    if reward is not None and not is_reference(reward) and f"{name}:{reward}" not in REWARDS:
        rewards = [
            reward_name.partition(":")[2]
            for reward_name in REWARDS.names()
            if reward_name.startswith(f"{name}:")
        ]
        raise UsageError(
            f"environment {name!r} has no reward {reward!r} by name{hint_text(reward, rewards)} "
            "(or your own, as path/to/file.py:function)"
        )


def _digests(
    env_factory: Callable[[], InterCodeEnv[Any]], tasks: Sequence[Task], progress: Progress
) -> dict[str, str]:
    """Resolve or build the images of the tasks.

    Returns:
        Image name → digest.

    Raises:
        UsageError: A task's image does not exist.
    """
    # The constructor refuses invalid options, here once, before the workers start.
    with closing(env_factory()) as env:
        task_by_image = {env.image(task): task for task in reversed(tasks)}
        try:
            for task in tasks:  # check all tasks before the first build
                env.check(task)
        except ImageError as error:
            raise UsageError(str(error)) from error
        digests = {}
        for image in sorted(task_by_image):
            digests[image] = env.digest(task_by_image[image])
            progress.end_preparation()
    return digests


def find_provider(
    env: str, sandbox: str = "native", report_line: Callable[[str], None] = lambda text: None
) -> Provider:
    """Return an environment's provider of sandboxes.

    Args:
        env: The environment's name.
        sandbox: The provider's name.
        report_line: Receives each line in which the provider reports the progress of a build.
    """
    provider = find_traits(env).provider(sandbox)
    if hasattr(provider, "progress"):
        provider.progress = report_line
    return provider


def check(plan: RunPlan, agent: AgentFactory, progress: Progress) -> None:
    """Refuse tasks and settings that the agent does not support, or warn of them, before any start.

    Raises:
        UsageError: The object makes no agents, or the agent cannot try a task.
    """
    workers = plan.spec.run_options.workers
    if isinstance(agent, SupportsRunCheck) and (warning := agent.check_run(plan.tasks, workers)):
        progress.warn(f"warning: {warning}")
    check_tasks(plan.tasks, agent)


def check_tasks(tasks: Sequence[Task], agent: AgentFactory) -> None:
    """Refuse an object that makes no agents, or tasks that the agent cannot try.

    The agent checks the tasks in the form that the agent will receive, without gold by default.

    Raises:
        UsageError: The object makes no agents, or the agent cannot try a task.
    """
    check_factory(agent)
    if isinstance(agent, SupportsTaskCheck):
        agent.check([task if sees_gold(agent) else task.shown() for task in tasks])
