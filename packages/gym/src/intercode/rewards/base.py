"""The contract of a reward, and the agent's files with none of its programs running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

from intercode.episode import Episode, Score
from intercode.task import Task
from intercode_sandbox.base import (
    Freezes,
    Limits,
    Provider,
    SandboxBackend,
    Snapshot,
    SupportsPrivacy,
)
from intercode_sandbox.network import Network

PlaceT = TypeVar("PlaceT", contravariant=True)


class Reward(Protocol[PlaceT]):
    """A function of a task, an episode, and the place as the episode left it.

    The place is where the environment's actions run: a sandbox, or a database's session.
    """

    def __call__(self, task: Task, episode: Episode, place: PlaceT, /) -> Score:
        """Return the score of an episode.

        Raises:
            RewardError: Gold or the verification could not be run.
            CausedInsideError: The agent's programs have left nothing that could be scored.
            SandboxError: The place was lost otherwise.
        """


@contextmanager
def quiesce_sandbox(
    provider: Provider,
    network: Network,
    episode: Episode,
    sandbox: SandboxBackend,
    on_quiet: Callable[[], object] = lambda: None,
    private: bool = False,
) -> Iterator[SandboxBackend]:
    """Yield the sandbox with nothing running in it; of an episode that still runs, a copy of it.

    Args:
        provider: The provider that starts the copy.
        network: What it reaches.
        episode: The episode.
        sandbox: The sandbox of the episode.
        on_quiet: Called while no program can change a file. To look later, at the sandbox or the
            copy, would be too late: a program could have undone meanwhile what was copied.
        private: Whether programs there can be hidden from each other, where the provider can do
            that: of a sandbox in which they cannot, a copy.
    """
    limits = replace(sandbox.limits, private=True) if private else sandbox.limits
    is_fit = limits == sandbox.limits or not isinstance(sandbox, SupportsPrivacy)
    if episode.status != "running":
        sandbox.kill()
        on_quiet()
        if is_fit:
            yield sandbox
            return

    def save() -> Snapshot:
        on_quiet()
        return sandbox.snapshot()

    if episode.status == "running":
        snapshot = sandbox.at_rest(save)
    else:  # frozen, where that can be: also files that cannot be copied are judged
        snapshot = sandbox.freeze() if isinstance(sandbox, Freezes) else sandbox.snapshot()
    with start_copy(provider, network, limits, snapshot) as copy:
        yield copy


@contextmanager
def start_copy(
    provider: Provider, network: Network, limits: Limits, snapshot: Snapshot
) -> Iterator[SandboxBackend]:
    """Start a sandbox from a snapshot, and delete that afterwards.

    Args:
        provider: The provider that starts it.
        network: What it reaches.
        limits: The limits of the copy.
        snapshot: The snapshot.
    """
    try:
        with closing(provider.start(snapshot, limits, network)) as copy:
            yield copy
    finally:
        snapshot.delete()
