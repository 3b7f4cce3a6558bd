"""From options to an environment: dataset, images, settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, cast

from intercode import datasets
from intercode.cli import _options
from intercode.cli._text import safe
from intercode.envs import create
from intercode.envs.base import InterCodeEnv
from intercode.errors import ImageError, UsageError
from intercode.evaluate.loop import EpisodeEnv
from intercode.registry import ENVS
from intercode.rewards.gold import GoldCache
from intercode.sandbox import Provider, get_provider
from intercode.sandbox.images.resolve import check
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
    """The environment's name and its tasks. Starts nothing.

    Raises:
        UsageError: The name is missing, unknown, or given twice and differently.
        TaskError: The data is malformed.
    """
    if args.env and args.env_option and args.env != args.env_option:
        raise UsageError(f"which environment: {args.env!r} or {args.env_option!r}?")
    name = args.env or args.env_option
    if not name:
        raise UsageError(f"name an environment: {', '.join(names())}")
    if name not in names():
        raise UsageError(f"there is no environment {name!r}; known: {', '.join(names())}")
    return name, datasets.load(args.data or name)


def prepare(args: argparse.Namespace, name: str, dataset: Dataset, tasks: list[Task]) -> Setting:
    """Find or build the images of these tasks, and say what the environment is.

    Raises:
        UsageError: There is no such image, or the environment does not take these options.
        ImageError: An image cannot be built.
        SandboxUnavailableError: This machine permits no sandbox.
    """
    provider = provider_that_tells()
    limits = _options.limits(args)
    options: dict[str, Any] = {"data": dataset, "image": args.image, "limits": limits}
    if args.max_turns is not None:
        options["max_turns"] = args.max_turns
    if args.protocol == "default":
        options["cache_gold"] = GoldCache()  # one for all workers

    def make() -> InterCodeEnv[Any]:
        return cast("InterCodeEnv[Any]", create(name, protocol=args.protocol, **options))

    with closing(make()) as env:  # refuses what it cannot take, now and not in every worker
        images = sorted({env.image(task) for task in tasks})
    try:
        for image in images:  # all names, before the first is built
            check(image)
    except ImageError as error:
        raise UsageError(str(error)) from error
    digests = {image: provider.digest(image) for image in images}
    facts = {
        "env": name,
        "protocol": args.protocol,
        "image": args.image,
        "images": digests,
        "max_turns": args.max_turns,
        "limits": asdict(limits),
    }
    return Setting(make, facts)


def provider_that_tells() -> Provider:
    """The sandbox provider; what it builds, which may take minutes, it says on standard error."""
    provider = get_provider()
    if hasattr(provider, "progress"):
        provider.progress = lambda text: print(safe(text), file=sys.stderr, flush=True)
    return provider
