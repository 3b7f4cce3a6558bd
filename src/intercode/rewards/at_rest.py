"""The agent's files with nothing of the agent's running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from intercode.episode import Episode
from intercode.sandbox.base import Limits, Provider, Sandbox, Snapshot


@contextmanager
def at_rest(
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
