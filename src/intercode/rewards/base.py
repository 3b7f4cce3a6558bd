"""The contract of a reward, and the agent's files with none of its programs running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Protocol, TypeVar

from intercode.episode import Episode, Score
from intercode.sandbox.base import Limits, Provider, Sandbox, Snapshot
from intercode.task import Task

PlaceT = TypeVar("PlaceT", contravariant=True)


class Reward(Protocol[PlaceT]):
    """A function of what was asked, what was done, and the place as it was left.

    The place is where the environment's actions run: a sandbox, or a database's session.
    """

    def __call__(self, task: Task, episode: Episode, place: PlaceT, /) -> Score:
        """The score.

        Raises:
            RewardError: Gold or the verification could not be run.
            CausedInsideError: What the agent ran has left nothing that could be scored.
            SandboxError: The place was lost otherwise.
        """


@contextmanager
def quiesced(
    provider: Provider,
    network: bool,
    episode: Episode,
    sandbox: Sandbox,
    look: Callable[[], object] = lambda: None,
) -> Iterator[Sandbox]:
    """The sandbox of an episode that has ended; of one that goes on, a copy of its files.

    Args:
        provider: Starts the copy.
        network: Whether it reaches the network.
        episode: The episode.
        sandbox: Where it happens.
        look: Called while no program can change a file. To look later, at the sandbox or the copy,
            would be too late: a program could have undone meanwhile what was copied.
    """
    if episode.status != "running":
        sandbox.kill()
        look()
        yield sandbox
        return

    def save() -> Snapshot:
        look()
        return sandbox.snapshot()

    snapshot = sandbox.at_rest(save)
    with copied(provider, network, sandbox.limits, snapshot) as copy:
        yield copy


@contextmanager
def copied(
    provider: Provider, network: bool, limits: Limits, snapshot: Snapshot
) -> Iterator[Sandbox]:
    """A sandbox begun from a snapshot that nobody else needs.

    Args:
        provider: Starts it.
        network: Whether it reaches the network.
        limits: What it may use.
        snapshot: The snapshot, which is deleted afterwards.
    """
    try:
        with closing(provider.start(snapshot, limits, network)) as copy:
            yield copy
    finally:
        snapshot.delete()
