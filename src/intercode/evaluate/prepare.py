"""From a spec to what runs: the tasks (`plan`), who acts (`actors`), where (`setting`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode import datasets
from intercode.agents import registry, skills
from intercode.agents.base import AgentFactory, ChecksTasks, sees_gold
from intercode.agents.language import LanguageAgents, Strategy
from intercode.agents.outside.profile import NO_MODEL, WHOLE, is_outside, profile_of
from intercode.agents.skills import Skill
from intercode.databases import engine_name, shared_engine
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import LimitOptions, taken
from intercode.envs.traits import traits_of
from intercode.errors import ImageError, UsageError
from intercode.evaluate.exclusion import no_tests, not_gradable, read_exclusion, select
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.progress import Progress
from intercode.evaluate.tools import tool_versions
from intercode.project import FILE, benchmark_of, create
from intercode.records import MANIFEST, read_manifest
from intercode.registry import DATASETS, ENVS, REWARDS, SOURCES
from intercode.registry import environment as registered
from intercode.rewards.gold import GoldCache
from intercode.rewards.judge import VOTES, Judge
from intercode.sandbox import Limits, Provider
from intercode.spec import (
    AgentSpec,
    ModelSpec,
    RunSpec,
    environments,
    options_of,
    recorded_options,
)
from intercode.spelling import meant
from intercode.task import Dataset, Task
from intercode.user_code import absolute, digest, is_reference

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.models.limits import RateLimit, Retry
    from intercode.models.remote import RemoteModel

RECORDED = ("replay", "predictions")
"""Agents that need ``--recording``."""
ASKED = ("reward_every_turn", "max_turns", "ignore")
"""The options of an environment that an agent may ask for."""
_NAMED = 5
"""The most tasks that a warning names."""
JUDGE = "judge"
"""The reward that asks a model."""
JUDGES_TOO = ("prices", "max_cost", "max_tokens")
"""The options of language models that a judge takes as well, with any agent."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks that a spec asks for; nothing is started yet."""

    spec: RunSpec
    dataset: Dataset
    tasks: list[Task]
    exclude: Mapping[str, str] = field(default_factory=dict)
    """Task id → why it is not run."""
    locked: Mapping[str, Any] | None = None
    """The ``run.json`` of the run that this one is held to."""
    follows_machine: bool = False
    """Whether the image ``host`` may differ from that run's, as the machine was changed since."""

    def context(self) -> dict[str, Any]:
        """Return what the record says of the options, and of the run that this one is held to."""
        facts: dict[str, Any] = {"options": self.spec.recorded()}
        if self.locked is not None:
            run = str(Path(str(self.spec.how.locked)).absolute())
            facts["locked"] = {"run": run, "accepted": list(self.spec.how.accept)}
        return facts


def plan(spec: RunSpec, progress: Progress) -> Plan:
    """Load the tasks that a spec asks for. Starts nothing.

    Raises:
        UsageError: The spec makes no sense.
        TaskError: The data is malformed.
        RecordError: The run that this one is locked to cannot be read.
    """
    if spec.how.accept and not spec.how.locked:
        raise UsageError("--accept says what may differ from --locked RUN: name that, too")
    locked = None if spec.how.locked is None else read_manifest(run_folder(spec.how.locked))
    environment(spec)
    spec, everything = load(spec)
    exclude: Mapping[str, str] = (locked or {}).get("excluded", {})
    if spec.exclude is not None:
        exclusion = read_exclusion(Path(spec.exclude))
        if warning := exclusion.check(everything):
            progress.warn(f"warning: {warning}")
        exclude = exclusion.tasks or exclude
    exclude = {**not_gradable(everything), **exclude}
    dataset = narrowed(spec, everything, progress)
    tasks = select(dataset, spec.tasks, spec.limit, exclude)
    return Plan(spec, dataset, tasks, exclude, locked)


def run_folder(run: str | Path) -> Path:
    """Return a run's folder, whether that or its ``run.json`` is named."""
    path = Path(run)
    return path.parent if path.name == MANIFEST else path


def environment(spec: RunSpec) -> str:
    """Return the environment's name.

    Raises:
        UsageError: It is missing or unknown.
    """
    name = spec.env.name
    if not name:
        raise UsageError(
            f"name an environment: {', '.join(environments())}; for instance intercode run bash"
        )
    if (name not in ENVS or ":" in name) and name not in SOURCES:
        raise _unknown(name)
    return name


def _unknown(name: str) -> UsageError:
    """Return what is wrong with the name of an environment, which may be meant for a path."""
    path = Path(name)
    if path.is_file():
        return UsageError(
            f"{name} is a file and no environment: name one, as intercode run bash --data {name}; "
            f"or check its tasks: intercode validate {name}"
        )
    if "/" in name or name in (".", "..") or path.suffix:
        return UsageError(f"there is no folder and no file {name}")
    return ENVS.unknown(name, environments())


def load(spec: RunSpec) -> tuple[RunSpec, Dataset]:
    """Load the dataset, also the tasks that cannot be tried; the spec then has its secret.

    Raises:
        TaskError: The data is malformed, or has no such split.
        UsageError: A review was asked for, and there is none; or an environment comes without
            tasks, and none are named.
    """
    data = spec.env.data or spec.env.name
    if spec.env.data is None and data in ENVS and data not in DATASETS:
        raise UsageError(f"environment {data!r} comes without tasks: name them, as --data FILE")
    if spec.env.reviewed:
        if not datasets.takes(data, "reviewed"):
            raise UsageError(f"--reviewed: there is no review of the golds of {data!r}")
        return spec, datasets.load(data, spec.env.split, reviewed=True)
    if datasets.takes(data, "secret") and spec.env.secret is None:
        # What a run is locked to would have told it, but is from before there were secrets.
        secret = "" if spec.how.locked else secret_of(spec.how.out, spec.agent.recording)
        spec = spec.merge(secret=secrets.token_hex(8) if secret is None else secret)
    return spec, datasets.load_seeded(data, spec.seed, spec.env.secret, spec.env.split)


def secret_of(*runs: str | Path | None) -> str | None:
    """Return the secret of the first of these runs that was begun; None: none was."""
    for run in runs:
        if run is not None and (Path(run) / MANIFEST).is_file():
            return str(recorded_options(read_manifest(Path(run))).get("secret", ""))
    return None


def narrowed(spec: RunSpec, dataset: Dataset, progress: Progress) -> Dataset:
    """Leave out the tasks that cannot be tried with these options, and say how many.

    Unknown fields of tasks are told, too.
    """
    source = None if spec.env.benchmark else dataset.source
    if source is not None and (folder := benchmark_of(source)) is not None:
        progress.warn(f"{source}: without what {folder / FILE} says: for that give the folder")
    if dataset.kept:
        progress.warn(
            f"{dataset.source or dataset.name}: kept as metadata: {', '.join(dataset.kept)}"
        )
    odd = no_tests(dataset)
    for task_id, reason in [*odd.items()][:_NAMED]:
        progress.warn(f"left out: {task_id}: {reason}")
    if len(odd) > _NAMED:
        progress.warn(f"left out: {len(odd) - _NAMED} more tasks whose tests have such names")
    kind = registered(spec.env.name)
    if not hasattr(kind, "narrowed"):
        return dataset
    kept: Dataset
    kept, told = kind.narrowed(dataset, spec.env.options)
    if told:
        progress.warn(told)
    return kept


@dataclass(frozen=True, slots=True)
class Actors:
    """The agent, ready to act."""

    factory: AgentFactory
    name: str
    """The agent's name, for the record."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options that go with the name."""
    asks: dict[str, Any] = field(default_factory=dict)
    """Options of the environment without which it cannot act."""
    skills: tuple[Skill, ...] = ()
    """The skills that it is offered."""
    start: Callable[[], None] = lambda: None
    """Starts the server of its model, where that is ours, before the first episode."""
    close: Callable[[], None] = lambda: None
    """Lets go of what it holds."""
    delay: Callable[[], tuple[float, str] | None] = lambda: None
    """Tells for how long its model has not answered, and that in words."""


def actors(spec: RunSpec, budget: Budget | None = None, pace: RateLimit | None = None) -> Actors:
    """Make the agent that a spec names.

    Args:
        spec: The spec.
        budget: One that several runs share; default: the run's own.
        pace: The pace of calls that several processes share; default: this process's own.

    Raises:
        UsageError: There is no such agent or model, or it does not take these options.
    """
    name = spec.agent.name
    if name in RECORDED and spec.agent.recording is None:
        raise UsageError(f"--agent {name} needs --recording PATH")
    offered = skills.read_all(spec.agent.skill)
    if (strategy := strategy_of(name)) is not None:
        _check_context(spec)
        model = _model(spec, strategy, budget, pace)
        agents = _language_agents(spec, strategy, model, offered)
        asks = {"reward_every_turn": True} if agents.needs_reward else {}
        start = partial(model.start, calls_at_once(spec))
        return Actors(agents, agents.name, {}, asks, offered, start, model.close, model.delay)
    if is_outside(name):
        return _outside(spec, budget or budget_of(spec), offered, pace)
    if without := [option for option in without_model(spec) if option in spec.flat()]:
        if not is_reference(name):
            registry.AGENTS.get(name)  # a misspelt name is told as that
        flag = "--" + without[0].replace("_", "-")
        raise UsageError(
            f"agent {name} is not a language model: it takes no {flag}; name one that is, such as "
            "--agent try-again"
        )
    recording = spec.agent.recording
    options: dict[str, Any] = {} if recording is None else {"recording": Path(recording)}
    return Actors(registry.get(name, **options), name, options, skills=offered)


def _outside(
    spec: RunSpec, budget: Budget, offered: tuple[Skill, ...], pace: RateLimit | None
) -> Actors:
    """Make the agents of a profile, with a gateway to their model.

    Raises:
        UsageError: The profile is malformed, or does not go with these options.
    """
    from intercode.agents.language import EpisodeLimits
    from intercode.agents.outside import play
    from intercode.agents.outside.layers import layer_of
    from intercode.gateway import Gateway
    from intercode.gateway.upstream import serving
    from intercode.models.limits import RateLimit
    from intercode.models.prices import Prices
    from intercode.models.remote import Around

    told, name = spec.agent, spec.agent.name
    has_model = spec.model.name not in (None, NO_MODEL)
    profile = profile_of(name, has_model=has_model)
    parts = {**options_of(ModelSpec), **options_of(AgentSpec)}
    given = spec.flat()
    if wrong := [one for one in parts if one in given and one not in _OUTSIDE]:
        flag = "--" + wrong[0].replace("_", "-")
        raise UsageError(f"agent {name} decides that by itself: it takes no {flag}")
    if spec.model.name is None or (profile.needs_model and not has_model):
        either = "" if profile.needs_model else f", or --model {NO_MODEL}"
        raise UsageError(f"agent {name} needs --model PROVIDER/NAME{either}")
    if not has_model and (idle := sorted(_OF_MODEL & given.keys())):
        flag = "--" + idle[0].replace("_", "-")
        raise UsageError(f"agent {name} without a model takes no {flag}")
    calls = spec.env.options.get("max_turns", play.CALLS)
    gateway, stack = None, ExitStack()
    if has_model:
        prices = Prices(spec.model.prices)
        price = prices.find(spec.model.name)
        if told.episode_cost is not None and price is None:
            raise UsageError(f"the price of {spec.model.name} is not known: give --prices FILE")
        around = Around(pace or RateLimit(), budget, price=price, retry=patience_of(spec))
        upstream = stack.enter_context(
            serving(spec.model.name, spec.model.base_url, calls_at_once(spec))
        )
        gateway = Gateway(upstream, around=around, prices=prices)
        stack.callback(gateway.close)
    limits = EpisodeLimits(told.episode_seconds, told.episode_tokens, told.episode_cost)
    offer = ""
    if profile.home_of_skills is None:  # else it finds them by itself
        offer = skills.offer(offered, readable=profile.run.skills != WHOLE)
    agents = play.OutsideAgents(profile, gateway, spec.model.name, limits, calls, offer)
    asks: dict[str, Any] = {"max_turns": calls, "ignore": profile.score.ignore}
    if needs := profile.limits.needed():
        asks["limits"] = needs
    if (layer := layer_of(profile)) is not None:
        asks["layers"] = [str(layer)]
    delay = (lambda: None) if gateway is None else gateway.delay
    return Actors(agents, name, {}, asks, offered, close=stack.close, delay=delay)


def calls_at_once(spec: RunSpec) -> int:
    """Return the number of calls that a run makes at a time, at most."""
    return spec.how.max_connections or spec.how.workers


def patience_of(spec: RunSpec) -> Retry:
    """Return the patience of a run with the servers of its models."""
    from intercode.models.limits import Retry

    seconds = spec.how.model_timeout
    return Retry() if seconds is None else Retry(timeout=seconds)


_OF_MODEL = {"base_url", "prices", "max_cost", "max_tokens", "episode_cost", "episode_tokens"}
"""The options that say something of a model."""
_OUTSIDE = {"agent", "skill", "episode_seconds", "model", *_OF_MODEL}
"""The options of an agent and its model that one from outside takes."""


def strategy_of(agent: str) -> Strategy | None:
    """Return the strategy of that name; None if the agent is not a language model, or unknown."""
    if agent not in registry.AGENTS and not is_reference(agent):
        return None
    target = registry.AGENTS.resolve(agent)
    return target if isinstance(target, Strategy) else None


def without_model(spec: RunSpec) -> list[str]:
    """List the options of language models of which neither the agent nor a judge makes use."""
    parts = {**options_of(ModelSpec), **options_of(AgentSpec)}
    taken: tuple[str, ...] = JUDGES_TOO if spec.reward == JUDGE else ()
    taken += ("skill",) if registry.AGENTS.is_foreign(spec.agent.name) else ()
    return [
        name
        for name in parts
        if name not in ("agent", "recording", "preset", "observation_tail", *taken)
    ]


def _check_context(spec: RunSpec) -> None:
    """Refuse to show what there is in an environment where nothing shows it."""
    context, env = spec.agent.context, spec.env
    traits = traits_of(env.name, env.protocol)
    if context and (traits.elsewhere or not traits.overview):
        raise UsageError(
            f"--context {context}: nothing shows what there is in environment {env.name!r}, "
            f"{env.protocol} protocol"
        )


def _model(
    spec: RunSpec, strategy: Strategy, budget: Budget | None, pace: RateLimit | None
) -> RemoteModel:
    if spec.agent.recording is not None:
        raise UsageError(f"agent {strategy.name} takes no --recording")
    if spec.model.name is None:
        raise UsageError(f"agent {strategy.name} needs --model PROVIDER/NAME")
    from intercode.models import get_model

    return get_model(
        spec.model.name,
        base_url=spec.model.base_url,
        cache=spec.model.cache,
        prices=spec.model.prices,
        budget=budget or budget_of(spec),
        rate_limit=pace,
        retry=patience_of(spec),
    )


def _language_agents(
    spec: RunSpec, strategy: Strategy, model: RemoteModel, offered: Sequence[Skill]
) -> LanguageAgents:
    from intercode.agents.language import EpisodeLimits, Search
    from intercode.models import Settings

    told, asked = spec.agent, spec.model
    options = {
        name: value
        for name in _TOLD
        if (value := getattr(told, name)) is not None and value is not False
    }
    for name in ("observation_tail", "examples", "recap"):
        if (value := getattr(told, name)) is not None:
            options[name] = value
    if told.prompt is not None:
        options["prompt"] = Path(told.prompt)
    if search := {to: v for name, to in _SEARCH.items() if (v := getattr(told, name)) is not None}:
        options["search"] = Search(**search)
    # Read in a turn of its own, which not every agent has, where files can be read.
    readable = strategy.name != "single-turn" and _takes_layers(spec)
    options["skills"] = skills.offer(offered, readable=readable)
    temperature = 0.0 if asked.temperature is None else asked.temperature
    return strategy(
        model,
        settings=Settings(temperature, asked.top_p, asked.reply_tokens, trace=asked.record_tokens),
        limits=EpisodeLimits(told.episode_seconds, told.episode_tokens, told.episode_cost),
        **options,
    )


_SEARCH = {
    "search": "order",
    "search_width": "width",
    "search_depth": "depth",
    "search_budget": "budget",
    "search_test": "test",
    "search_from": "start",
}
"""Option of a spec → field of `Search`."""
_TOLD = (
    *("setting", "schema", "context", "observation_limit", "dialogue_limit", "samples"),
    "choose",
)


def budget_of(spec: RunSpec, runs: Iterable[RunSpec] = ()) -> Budget:
    """Return what models may take, all episodes together, and what they have taken before.

    Args:
        spec: The spec that says it.
        runs: Those of the runs that share it; default: the same.
    """
    from intercode.evaluate.budget_spent import spent_by
    from intercode.models import Budget
    from intercode.models.limits import Spending
    from intercode.models.prices import Prices

    before = Spending()
    limits = spec.model.max_cost, spec.model.max_tokens
    for run in runs or (spec,):
        names = run.model.name, run.env.judge_model
        if run.how.out is None or not any(names) or limits == (None, None):
            continue
        known = Prices(run.model.prices)
        price, judge_price = (known.find(name) if name else None for name in names)
        found = spent_by(Path(run.how.out), price, run.model.reply_tokens, judge_price=judge_price)
        before.add(found.cost, found.tokens)
    return Budget(*limits, before=before)


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked choice of environment, ready to make as many of it as there are workers."""

    make: Callable[[], EpisodeEnv]
    facts: dict[str, Any]
    """The facts that identify it, for the run's record."""
    provider: Provider | None = None
    """Of its sandboxes; None where tasks are tried in databases."""
    judge: Judge | None = None
    """The judge of outputs, if the reward is one's."""

    def close(self) -> None:
        """Let go of what the judge holds."""
        if self.judge is not None:
            self.judge.close()

    def context(self) -> dict[str, Any]:
        """Return what the record says of its sandboxes and of the tools in them; starts some."""
        if self.provider is None:
            return {}
        tools = tool_versions(self.provider, self.facts["images"])
        facts = getattr(self.provider, "facts", dict)
        return {"sandbox": facts(), "tools": tools}


def setting(
    plan: Plan,
    progress: Progress,
    *,
    asks: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> Setting:
    """Find or build what a plan's tasks are tried in, and say what the environment is.

    Args:
        plan: The plan.
        progress: Is told what is built.
        asks: Options of the environment that the agent asks for.
        budget: What a judge may spend, with all who share it; None: there is no limit.

    Raises:
        UsageError: There is no such image, or the environment does not take these options.
        TaskError: A task's database is not there.
        ImageError: An image cannot be built.
        SandboxUnavailableError: This machine permits no sandbox.
        DatabaseError: A database server cannot be reached or started.
    """
    spec, env = plan.spec, plan.spec.env
    known = taken(registered(env.name, env.protocol))
    limits = _LIMITS if "limits" in known else ()
    given = {name: value for name, value in env.options.items() if name not in limits}
    _check_options(spec, given, known)
    judge = judge_of(spec, budget)
    sandbox = given.get("sandbox", "native")
    asked = {**(asks or {})}
    needs, layered = asked.pop("limits", {}), asked.pop("layers", ())
    options: dict[str, Any] = {"data": plan.dataset, **given, **asked}
    facts = _facts(spec, needs)
    if layers := _layers(spec, layered):
        options["layers"] = layers
    provider = None
    if "engine" in known:
        engine = shared_engine(given.get("engine", "sqlite"), progress.say, sandbox)
        options["engine"] = engine
        facts["engine"] = {"name": engine.name, **engine.facts()}
        if is_reference(name := engine_name(given.get("engine", "sqlite"))):
            facts["engine"]["code"] = name
        facts |= {"sandbox": absolute(sandbox)} if "sandbox" in given else {}
    elif not traits_of(env.name).elsewhere:
        provider = provider_of(env.name, sandbox, progress.say)
        facts["sandbox"] = absolute(sandbox)
    if "history" in known:
        facts["history"] = given.get("history", known["history"].default)
    if "limits" in known:
        options["limits"] = _limits(spec, needs)
    if "cache_gold" in known:
        options.setdefault("cache_gold", GoldCache())  # one for all workers
    if judge is not None:
        options["reward"] = judge
        facts["judge"] = judge.facts()

    def make() -> InterCodeEnv[Any]:
        return cast("InterCodeEnv[Any]", create(env.name, protocol=env.protocol, **options))

    facts["images"] = _digests(make, plan.tasks, progress)
    return Setting(make, {**facts, **asked}, provider, judge)


def _layers(spec: RunSpec, asked: Sequence[str]) -> list[str]:
    """Return the layers that the agent brings along: those it asks for, and its skills.

    They are among the agent's facts, by their digests, and not among the environment's.

    Raises:
        UsageError: A skill is none; or it is for an environment of 2023, which had none.
    """
    if spec.agent.skill and spec.env.protocol != "default":
        raise UsageError("--skill goes with the default protocol only: in 2023 there were none")
    if not spec.agent.skill or not _takes_layers(spec):
        return [*asked]
    homes = [skills.HOME]  # also for an agent that looks elsewhere: a skill's text may name it
    if is_outside(spec.agent.name) and (own := profile_of(spec.agent.name).home_of_skills):
        homes.append(own)
    offered = skills.read_all(spec.agent.skill)
    return [*asked, *(str(skill.layer(home)) for home in dict.fromkeys(homes) for skill in offered)]


def _takes_layers(spec: RunSpec) -> bool:
    """Tell whether an agent can have files of its own there: not in a session with a database."""
    return "layers" in taken(registered(spec.env.name, spec.env.protocol))


def _facts(spec: RunSpec, needs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an environment that its spec, and the needs of its agent, say."""
    given, reward = spec.env.options, spec.reward
    limits = _limits(spec, needs).to_dict()
    engine = str(given.get("engine", ""))
    sources = {
        "engine": "" if "://" in engine else engine,
        "env": ENVS.file_of(spec.env.name),
        "protocol": spec.env.protocol,
        "sandbox": str(given.get("sandbox", "")),
    }
    code = {name: text for name, source in sources.items() if (text := digest(source))}
    del limits["debugger"], limits["private"]  # an environment says what programs see
    return {
        "env": spec.env.name,
        "protocol": spec.env.protocol,
        "image": given.get("image", given.get("default_image")),
        "reward": reward or "default",
        "max_turns": given.get("max_turns"),
        "limits": limits,
        "options": spec.identity(),
        **({"reward_digest": digest(reward)} if reward and is_reference(reward) else {}),
        **({"code": code} if code else {}),
    }


def _limits(spec: RunSpec, needs: Mapping[str, Any]) -> Limits:
    """Return the limits of a spec: those that it names, then those that its agent needs."""
    given = {name: value for name, value in spec.env.options.items() if name in _LIMITS}
    return replace(Limits.of({**needs, **given}), overrides=frozenset(given))


_LIMITS = LimitOptions.__struct_fields__


def _check_options(spec: RunSpec, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse options that the environment does not take, and rewards that it does not have."""
    name, reward = spec.env.name, spec.reward
    if wrong := [option for option in given if option not in known]:
        flag = "--" + wrong[0].replace("_", "-")
        raise UsageError(f"environment {name!r}, protocol {spec.env.protocol!r}, takes no {flag}")
    if reward is not None and not is_reference(reward) and f"{name}:{reward}" not in REWARDS:
        rewards = [n.partition(":")[2] for n in REWARDS.names() if n.startswith(f"{name}:")]
        raise UsageError(
            f"environment {name!r} has no reward {reward!r} by name{meant(reward, rewards)} "
            "(or your own, as path/to/file.py:function)"
        )


def _digests(
    make: Callable[[], InterCodeEnv[Any]], tasks: Sequence[Task], progress: Progress
) -> dict[str, str]:
    """Find or build the images of the tasks: name → digest."""
    with closing(make()) as env:  # refuses what it cannot take, now and not in every worker
        first = {env.image(task): task for task in reversed(tasks)}
        try:
            for task in tasks:  # before the first image is built
                env.check(task)
        except ImageError as error:
            raise UsageError(str(error)) from error
        digests = {}
        for image in sorted(first):
            digests[image] = env.digest(first[image])
            progress.built()
    return digests


def judge_of(spec: RunSpec, budget: Budget | None = None) -> Judge | None:
    """Make the judge that a spec asks for; None: it asks for none.

    Args:
        spec: The spec.
        budget: What it may spend, with all who share it; None: there is no limit.

    Raises:
        UsageError: It has no model, or there is a model and no judge.
    """
    env = spec.env
    votes, model = env.judge_votes, env.judge_model
    given = {"judge-model": model, "judge-url": env.judge_url, "judge-votes": votes}
    if spec.reward != JUDGE:
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"--{name} is for --reward judge")
        return None
    if model is None:
        raise UsageError("--reward judge needs --judge-model PROVIDER/NAME")
    from intercode.models import get_model

    asked = get_model(
        model,
        base_url=env.judge_url,
        prices=spec.model.prices,
        budget=budget,
        retry=patience_of(spec),
    )
    return Judge(asked, votes or VOTES)


def provider_of(
    env: str, sandbox: str = "native", say: Callable[[str], None] = lambda text: None
) -> Provider:
    """Return an environment's provider of sandboxes, which says what it builds."""
    provider = traits_of(env).provider(sandbox)
    if hasattr(provider, "progress"):
        provider.progress = say
    return provider


def check(plan: Plan, agent: AgentFactory, progress: Progress) -> None:
    """Refuse, or warn of, what the agent cannot do, before anything starts."""
    name = plan.spec.agent.name
    if is_outside(name):
        _check_outside(plan.spec)
    if name == "human" and plan.spec.how.workers > 1:
        raise UsageError("agent human does one task at a time: it takes no --workers above 1")
    check_tasks(plan.tasks, agent)
    without = [task.task_id for task in plan.tasks if not task.gold]
    if name == "oracle" and len(without) == len(plan.tasks):
        raise UsageError(
            "agent oracle runs gold, and none of the tasks has any: name another agent"
        )
    if name == "oracle" and without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        progress.warn(
            f"warning: no gold for {', '.join(without[:3])}{more}: "
            "there the oracle does nothing but submit"
        )


def _check_outside(spec: RunSpec) -> None:
    """Refuse an environment in which a program cannot act by itself."""
    env, agent = spec.env, spec.agent.name
    if "ignore" not in taken(registered(env.name, env.protocol)):
        raise UsageError(
            f"agent {agent} acts by itself in a sandbox with a shell: environment {env.name!r}, "
            f"protocol {env.protocol!r}, has none; take bash or swe"
        )
    if (sandbox := env.options.get("sandbox", "native")) != "native":
        raise UsageError(f"agent {agent} reaches its model by --sandbox native, not {sandbox}")
    if env.options.get("network"):
        raise UsageError(f"agent {agent} reaches its model without --network, and nothing else")


def check_tasks(tasks: Sequence[Task], agent: AgentFactory) -> None:
    """Refuse tasks that an agent cannot try, as it sees them."""
    if isinstance(agent, ChecksTasks):
        agent.check([task if sees_gold(agent) else task.shown() for task in tasks])
