"""From options to an environment: dataset, images, settings."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, cast

from intercode import datasets
from intercode.cli import _options
from intercode.cli._text import safe
from intercode.databases import engine_name, shared_engine
from intercode.envs import create
from intercode.envs.base import InterCodeEnv
from intercode.errors import ImageError, UsageError
from intercode.evaluate.loop import EpisodeEnv
from intercode.registry import ENVS, REWARDS
from intercode.rewards.gold import GoldCache
from intercode.sandbox import Provider, get_provider
from intercode.task import Dataset, Task


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked choice of environment, ready to make as many of it as there are workers."""

    make: Callable[[], EpisodeEnv]
    facts: dict[str, Any]
    """What identifies it, for the run's record."""


def add_name(parser: argparse.ArgumentParser) -> None:
    """The environment and its tasks: ``ENV`` or ``--env ENV``, and ``--data``."""
    parser.add_argument("env", nargs="?", metavar="ENV", help=f"one of {', '.join(names())}")
    parser.add_argument("--env", dest="env_option", metavar="ENV", help="the same")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="tasks (JSON, JSONL, CSV, TSV, YAML), or a dataset's name (default: the bundled)",
    )


def names() -> list[str]:
    """The environments, without their other protocols."""
    return [name for name in ENVS.names() if ":" not in name]


def load(args: argparse.Namespace) -> tuple[str, Dataset]:
    """The environment's name and its tasks, those that can be tried. Starts nothing.

    Raises:
        UsageError: The name is missing, unknown, or given twice and differently.
        TaskError: The data is malformed.
    """
    name = chosen(args)
    return name, narrowed(args, name, load_all(args, args.data or name))


def chosen(args: argparse.Namespace) -> str:
    """The environment's name.

    Raises:
        UsageError: It is missing, unknown, or given twice and differently.
    """
    if args.env and args.env_option and args.env != args.env_option:
        raise UsageError(f"which environment: {args.env!r} or {args.env_option!r}?")
    name: str = args.env or args.env_option
    if not name:
        raise UsageError(f"name an environment: {', '.join(names())}")
    if name not in names():
        raise UsageError(f"there is no environment {name!r}; known: {', '.join(names())}")
    return name


def load_all(args: argparse.Namespace, data: str) -> Dataset:
    """A dataset by its name or file, also the tasks that cannot be tried with these options.

    Raises:
        TaskError: The data is malformed.
    """
    return datasets.load_seeded(data, getattr(args, "seed", 0))


def narrowed(args: argparse.Namespace, name: str, dataset: Dataset) -> Dataset:
    """Without the tasks that cannot be tried with these options; says how many."""
    if name == "sql":
        return _for_engine(dataset, args.engine or "sqlite")
    if name == "ctf" and not args.network:
        return _offline(dataset)
    return dataset


def _for_engine(dataset: Dataset, engine: str) -> Dataset:
    """Without the tasks whose gold means something else on this engine; says how many."""
    name = engine_name(engine)
    kept = dataset.filter(lambda task: name in task.metadata.get("engines", (name,)))
    if left := len(dataset) - len(kept):
        _say(f"intercode: {left} of {len(dataset)} tasks are for other engines than {name}")
    return kept


def _offline(dataset: Dataset) -> Dataset:
    """Without the tasks that need the network; says how many."""
    from intercode.envs.ctf_tasks import offline

    kept = offline(dataset)
    if left := len(dataset) - len(kept):
        _say(f"intercode: {left} of {len(dataset)} tasks need the network (--network tries them)")
    return kept


def prepare(args: argparse.Namespace, name: str, dataset: Dataset, tasks: list[Task]) -> Setting:
    """Find or build what these tasks are tried in, and say what the environment is.

    Raises:
        UsageError: There is no such image, or the environment does not take these options.
        TaskError: A task's database is not there.
        ImageError: An image cannot be built.
        SandboxUnavailableError: This machine permits no sandbox.
        DatabaseError: A database server cannot be reached or started.
    """
    limits = _options.limits(args)
    given = {option: getattr(args, option) for option in _options.ENVIRONMENT}
    given = {option: value for option, value in given.items() if value is not None}
    known = _parameters(name, args.protocol)
    if wrong := [option for option in given if option not in known]:
        flag = "--" + wrong[0].replace("_", "-")
        raise UsageError(f"environment {name!r}, protocol {args.protocol!r}, takes no {flag}")
    if args.reward is not None and f"{name}:{args.reward}" not in REWARDS:
        known_rewards = [n.partition(":")[2] for n in REWARDS.names() if n.startswith(f"{name}:")]
        raise UsageError(
            f"environment {name!r} has no reward {args.reward!r} by name; "
            f"known: {', '.join(known_rewards) or 'none'}"
        )
    options: dict[str, Any] = {"data": dataset, "limits": limits, **given}
    if "cache_gold" in known:
        options["cache_gold"] = GoldCache()  # one for all workers
    facts = {"env": name, "protocol": args.protocol, "image": args.image}
    if "engine" in known:
        engine = options["engine"] = shared_engine(args.engine or "sqlite", progress=_say)
        facts["engine"] = {"name": engine.name, **engine.facts()}
    facts |= {
        option: given[option] for option in ("network", "attempts", "python") if option in given
    }
    provider_that_tells(name)

    def make() -> InterCodeEnv[Any]:
        return cast("InterCodeEnv[Any]", create(name, protocol=args.protocol, **options))

    with closing(make()) as env:  # refuses what it cannot take, now and not in every worker
        first = {env.image(task): task for task in reversed(tasks)}
        try:
            for task in first.values():  # all names, before the first is built
                env.check(task)
        except ImageError as error:
            raise UsageError(str(error)) from error
        digests = {image: env.digest(first[image]) for image in sorted(first)}
    facts |= {
        "images": digests,
        "reward": args.reward or "default",
        "max_turns": args.max_turns,
        "limits": asdict(limits),
    }
    return Setting(make, facts)


def _parameters(name: str, protocol: str) -> set[str]:
    """What the environment's constructor takes."""
    entry = name if protocol == "default" else f"{name}:{protocol}"
    if entry not in ENVS:
        raise UsageError(f"environment {name!r} has no protocol {protocol!r}")
    return set(inspect.signature(ENVS.get(entry)).parameters)


def _say(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def provider_that_tells(env: str = "bash") -> Provider:
    """An environment's sandbox provider.

    What it builds, which may take minutes, it says on standard error.
    """
    if env == "python":
        from intercode.interpreters.python_start import provider as of_python

        provider = of_python()
    else:
        provider = get_provider()
    if hasattr(provider, "progress"):
        provider.progress = _say
    return provider
