"""From options to an environment: dataset, images, settings."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from intercode import datasets
from intercode.cli import _judge, _options
from intercode.cli._patience import Patience
from intercode.cli._text import safe
from intercode.databases import shared_engine
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import taken
from intercode.envs.traits import traits_of
from intercode.errors import ImageError, UsageError
from intercode.evaluate.log import MANIFEST, read_manifest
from intercode.evaluate.loop import EpisodeEnv
from intercode.evaluate.tools import tool_versions
from intercode.project import create, read
from intercode.registry import DATASETS, ENVS, REWARDS, environment
from intercode.rewards.gold import GoldCache
from intercode.rewards.judge import Judge
from intercode.sandbox import Limits, Provider
from intercode.task import Dataset, Task
from intercode.user_code import digest, is_reference

if TYPE_CHECKING:
    from intercode.models import Budget


_SANDBOX = {"provider": "sandbox"}
"""What runs the sandboxes: its name among the recorded options → as an option."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked choice of environment, ready to make as many of it as there are workers."""

    make: Callable[[], EpisodeEnv]
    facts: dict[str, Any]
    """What identifies it, for the run's record."""
    provider: Provider | None
    """Of its sandboxes; None where tasks are tried in databases."""
    judge: Judge | None = None
    """The judge of outputs, if the reward is one's."""

    def close(self) -> None:
        """Let go of what the judge holds."""
        if self.judge is not None:
            self.judge.close()

    def context(self) -> dict[str, Any]:
        """What the record says of its sandboxes and of the tools in them; starts some."""
        if self.provider is None:
            return {}
        tools = tool_versions(self.provider, self.facts["images"])
        facts = getattr(self.provider, "facts", dict)
        return {"sandbox": facts(), "tools": tools}


def add_name(parser: argparse.ArgumentParser) -> None:
    """The environment and its tasks: ``ENV`` or ``--env ENV``, and ``--data``."""
    known = f"one of {', '.join(names(packages=False))}; or a folder that 'intercode new' made"
    parser.add_argument("env", nargs="?", metavar="ENV", help=known)
    parser.add_argument("--env", dest="env_option", metavar="ENV", help="the same")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="tasks (JSON, JSONL, CSV, TSV, YAML), or a dataset's name (default: the bundled)",
    )
    add_reviewed(parser)


def add_reviewed(parser: argparse.ArgumentParser) -> None:
    """``--reviewed``."""
    parser.add_argument(
        "--reviewed",
        action="store_true",
        default=None,
        help="with our review of the dataset's golds, which is not the published protocol "
        "(nl2bash, spider of 2023, mbpp)",
    )


def names(*, packages: bool = True) -> list[str]:
    """The environments, without their other protocols."""
    return [name for name in ENVS.names(packages=packages) if ":" not in name]


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
    if args.env is not None and args.env not in ENVS and Path(args.env).is_dir():
        args.env = _open(args, args.env)
    if args.env and args.env_option and args.env != args.env_option:
        raise UsageError(f"which environment: {args.env!r} or {args.env_option!r}?")
    name: str = args.env or args.env_option
    if not name:
        raise UsageError(f"name an environment: {', '.join(names())}")
    if name not in ENVS or ":" in name:
        raise UsageError(f"there is no environment {name!r}; known: {', '.join(names())}")
    return name


def open_data(args: argparse.Namespace) -> str | None:
    """The environment of the folder that ``args.data`` names; None if it names something else."""
    folder = args.data
    if folder in DATASETS or not Path(folder).is_dir():
        return None
    args.data = None
    return _open(args, folder)


def _open(args: argparse.Namespace, folder: str) -> str:
    """The environment that a folder is for; what the command line does not say is taken from it."""
    project = read(folder)
    args.data = args.data or project.tasks
    args.more = {}
    for option, value in (*project.options.items(), *project.limits.items()):
        name = "provider" if option == "sandbox" else option
        if not hasattr(args, name):
            args.more[name] = value
        elif getattr(args, name) is None:
            setattr(args, name, value)
    return project.env


def load_all(args: argparse.Namespace, data: str) -> Dataset:
    """A dataset by its name or file, also the tasks that cannot be tried with these options.

    Raises:
        TaskError: The data is malformed.
        UsageError: The dataset has no review, and one was asked for.
    """
    if getattr(args, "reviewed", None):
        if not datasets.takes(data, "reviewed"):
            raise UsageError(f"--reviewed: there is no review of the golds of {data!r}")
        return datasets.load(data, reviewed=True)
    if datasets.takes(data, "secret") and getattr(args, "secret", None) is None:
        # What a run is locked to would have told it, but is from before there were secrets.
        locked = "" if getattr(args, "locked", None) else None
        before = secret_of(*(getattr(args, name, None) for name in ("out", "recording")))
        known = [one for one in (locked, before) if one is not None]
        args.secret = known[0] if known else secrets.token_hex(8)
    return datasets.load_seeded(data, getattr(args, "seed", 0), getattr(args, "secret", None))


def secret_of(*folders: Path | None) -> str | None:
    """The secret of the first of these runs that was begun; None: none was."""
    for folder in folders:
        if folder is not None and (folder / MANIFEST).is_file():
            session: dict[str, Any] = (read_manifest(folder).get("sessions") or [{}])[-1]
            return str(session.get("options", {}).get("secret", ""))
    return None


def narrowed(args: argparse.Namespace, name: str, dataset: Dataset) -> Dataset:
    """Without the tasks that cannot be tried with these options; says how many."""
    kind = environment(name)
    if not hasattr(kind, "narrowed"):
        return dataset
    kept, told = kind.narrowed(dataset, {"engine": args.engine, "network": args.network})
    if told:
        _say(f"intercode: {told}")
    narrow: Dataset = kept
    return narrow


def prepare(
    args: argparse.Namespace,
    name: str,
    dataset: Dataset,
    tasks: list[Task],
    budget: Budget | None = None,
) -> Setting:
    """Find or build what these tasks are tried in, and say what the environment is.

    Args:
        args: The options.
        name: The environment's.
        dataset: All tasks.
        tasks: Those of them that are to be tried.
        budget: What a judge may spend, with all who share it; None: there is no limit.

    Raises:
        UsageError: There is no such image, or the environment does not take these options.
        TaskError: A task's database is not there.
        ImageError: An image cannot be built.
        SandboxUnavailableError: This machine permits no sandbox.
        DatabaseError: A database server cannot be reached or started.
    """
    say = _silent if getattr(args, "quiet", False) else _say
    limits = _options.limits(args)
    given = {_SANDBOX.get(name, name): getattr(args, name) for name in _options.ENVIRONMENT}
    given = {option: value for option, value in given.items() if value is not None}
    known = taken(environment(name, args.protocol))
    if wrong := [option for option in given if option not in known]:
        flag = "--" + wrong[0].replace("_", "-")
        raise UsageError(f"environment {name!r}, protocol {args.protocol!r}, takes no {flag}")
    reward = given.get("reward")
    if reward is not None and not is_reference(reward) and f"{name}:{reward}" not in REWARDS:
        known_rewards = [n.partition(":")[2] for n in REWARDS.names() if n.startswith(f"{name}:")]
        raise UsageError(
            f"environment {name!r} has no reward {reward!r} by name; "
            f"known: {', '.join(known_rewards) or 'none'}, or your own as path/to/file.py:function"
        )
    options: dict[str, Any] = {"data": dataset, **given, **getattr(args, "more", {})}
    if (judge := _judge.make(args, budget)) is not None:
        options["reward"] = judge
    if "limits" in known:
        options["limits"] = limits
    if "cache_gold" in known:
        options["cache_gold"] = GoldCache()  # one for all workers
    facts = {"env": name, "protocol": args.protocol, "image": args.image}
    if "engine" in known:
        sandbox = given.get("sandbox", "native")
        engine = options["engine"] = shared_engine(args.engine or "sqlite", say, sandbox)
        facts["engine"] = {"name": engine.name, **engine.facts()}
        if "sandbox" in given:
            facts["sandbox"] = sandbox
    else:
        facts["sandbox"] = args.provider or "native"
    facts |= {
        option: given[option] for option in ("network", "attempts", "python") if option in given
    }
    patience = Patience(say)
    provider = provider_that_tells(name, args.provider, patience)

    def make() -> InterCodeEnv[Any]:
        return cast("InterCodeEnv[Any]", create(name, protocol=args.protocol, **options))

    with closing(make()) as env:  # refuses what it cannot take, now and not in every worker
        first = {env.image(task): task for task in reversed(tasks)}
        try:
            for task in first.values():  # all names, before the first is built
                env.check(task)
        except ImageError as error:
            raise UsageError(str(error)) from error
        digests = {}
        for image in sorted(first):
            digests[image] = env.digest(first[image])
            patience.done()
    facts |= {
        "images": digests,
        "reward": reward or "default",
        "max_turns": args.max_turns,
        "limits": _chosen(limits),
    }
    if reward is not None and is_reference(reward):
        facts["reward_digest"] = digest(reward)
    if judge is not None:
        facts["judge"] = judge.facts()
    return Setting(make, facts, None if "engine" in known else provider, judge)


def _chosen(limits: Limits) -> dict[str, Any]:
    """Those that a user sets. Whether programs can be traced, an environment says."""
    return {name: value for name, value in asdict(limits).items() if name != "debugger"}


def _say(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """What ``--quiet`` says of how it goes."""


def provider_that_tells(
    env: str = "bash", provider_name: str | None = None, say: Callable[[str], None] = _say
) -> Provider:
    """An environment's sandbox provider, by its name.

    What it builds, which may take minutes, it says on standard error.
    """
    provider = traits_of(env).provider(provider_name or "native")
    if hasattr(provider, "progress"):
        provider.progress = say
    return provider
