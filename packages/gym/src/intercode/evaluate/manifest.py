"""The facts of a run's ``run.json``: dataset, environment, agent, versions and machine.

`describe` builds the manifest of a new run. `session` and `finish` record a session: one call or
command that runs some of the run's episodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode import __version__
from intercode.manifest import FORMAT
from intercode.task import Dataset
from intercode_sandbox.lazy_imports import PROJECT_MODULES

DISTRIBUTION = "intercode-gym"
_PACKAGES = tuple(
    Path(spec.origin).parent
    for name in sorted(PROJECT_MODULES)
    if (spec := find_spec(name)) and spec.origin
)
_SOURCE = ("packages", "gym", "src", "intercode")
"""The path of the package `intercode` in a checkout of InterCode's repository."""
_SECONDS = 10.0


def describe(
    *,
    dataset: Mapping[str, Any],
    env: Mapping[str, Any],
    agent: Mapping[str, Any],
    needs_gold: bool,
    seed: int,
    excluded_tasks: Mapping[str, str],
) -> dict[str, Any]:
    """Return the first ``run.json`` of a run, with its identifying facts and no session.

    Args:
        dataset: The dataset's facts, from `dataset_facts`.
        env: The environment's facts.
        agent: The agent's facts.
        needs_gold: Whether the agent receives its tasks with gold.
        seed: The run's seed.
        excluded_tasks: Task id → the reason why the run excludes the task.
    """
    return {
        "format": FORMAT,
        "dataset": dict(dataset),
        "env": dict(env),
        "agent": dict(agent),
        "needs_gold": needs_gold,
        "seed": seed,
        "excluded": dict(excluded_tasks),
        "sessions": [],
    }


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the facts that identify a dataset."""
    version = {} if dataset.version is None else {"version": dataset.version}
    return {
        "name": dataset.name,
        "source": None if dataset.source is None else str(dataset.source),
        "digest": dataset.digest,
        "tasks": len(dataset),
        **version,
    }


def session(context: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """Return the record of one session: start time, machine, versions and settings.

    Args:
        context: Further facts about the session: options, sandboxes, and the tools of images.
        settings: Options that do not identify the run.
    """
    return {
        **(context or {}),
        "started": _now(),
        "finished": None,
        "settings": settings,
        "versions": _versions(),
        "host": {
            "system": os.uname().sysname,
            "release": os.uname().release,
            "machine": os.uname().machine,
            "cpus": os.cpu_count(),
            "root": os.geteuid() == 0,
        },
    }


def finish(session: dict[str, Any], *, episodes: int, seconds: float, interrupted: bool) -> None:
    """Record the end of a session.

    Args:
        session: The session's record; this function changes it.
        episodes: Number of episodes that ended in the session.
        seconds: Wall time of the session.
        interrupted: Whether an interrupt cut the session short.
    """
    session.update(
        finished=_now(), episodes=episodes, seconds=round(seconds, 3), interrupted=interrupted
    )


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested objects into one object with dotted keys."""
    entries: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            entries.update(flatten(value, f"{prefix}{key}."))
        else:
            entries[prefix + key] = list(value) if isinstance(value, tuple) else value
    return entries


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), **package_versions()}
    return versions | {name: version(name) for name in ("gymnasium", "numpy")}


def version(name: str) -> str:
    """Return the version of an installed distribution, or ``unknown``."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # the module is imported from a folder without metadata
        return "unknown"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@cache
def package_versions() -> dict[str, str]:
    """Return InterCode's version, the digest of its code and, if known, the commit of its code.

    The keys are ``intercode``, ``code`` and ``commit``. Equal digests of the source files prove
    equal code, even after uncommitted changes. The commit is the one from which the code can be
    restored.
    """
    versions = {"intercode": __version__, "code": _code()}
    commit = _checkout_commit() or _installed_commit()
    return versions | ({"commit": commit} if commit else {})


def _code() -> str:
    """Return a digest of the packages' files, without Python's compiled files."""
    hasher = hashlib.blake2b(digest_size=16)
    files = ((package, path) for package in _PACKAGES for path in sorted(package.rglob("*")))
    for package, path in files:
        name = path.relative_to(package.parent)
        # A process that imports InterCode at the same time creates temporary files in __pycache__.
        if path.suffix != ".pyc" and "__pycache__" not in name.parts and path.is_file():
            source = path.read_bytes()
            hasher.update(f"{name}\0{len(source)}\0".encode())
            hasher.update(source)
    return hasher.hexdigest()


def _checkout_commit() -> str:
    """Return the commit of the checkout that contains this package; empty: no checkout.

    A ``+`` at the end shows that files have changed since the commit. If InterCode is installed
    inside another project's repository, the result is empty, because that repository's commit
    identifies other code.
    """
    package = _PACKAGES[0]
    if package.parts[-len(_SOURCE) :] != _SOURCE:
        return ""
    root = package.parents[len(_SOURCE) - 1]
    if not (root / ".git").exists() or not _git(root, "ls-files", "--", str(package)):
        return ""
    commit = _git(root, "rev-parse", "HEAD")
    changes = commit and _git(root, "status", "--porcelain", "--", *map(str, _PACKAGES))
    return f"{commit}+" if changes else commit


def _git(root: Path, *arguments: str) -> str:
    """Return the output of a git command; "" if git is missing or refuses the folder `root`."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    return read_output(["git", "-C", str(root), *arguments], env)


def read_output(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> str:
    """Return a program's output without surrounding whitespace.

    The result is "" if the program is missing, fails, or runs longer than 10 seconds.
    """
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _installed_commit() -> str:
    """Return the commit that ``pip install git+https://…`` recorded; empty: none was recorded."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(text) if text else {}
    return str(origin.get("vcs_info", {}).get("commit_id", ""))
