"""The agent's files with nothing of the agent's running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from intercode.episode import Episode
from intercode.sandbox.base import Provider, Sandbox, Snapshot


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

    with _started(provider, network, sandbox, sandbox.at_rest(save)) as copy:
        yield copy


@contextmanager
def copied(provider: Provider, network: bool, sandbox: Sandbox) -> Iterator[Sandbox]:
    """A copy of the files of a sandbox in which nothing runs that could change them.

    Args:
        provider: Starts the copy.
        network: Whether it reaches the network.
        sandbox: The sandbox.
    """
    with _started(provider, network, sandbox, sandbox.snapshot()) as copy:
        yield copy


@contextmanager
def _started(
    provider: Provider, network: bool, sandbox: Sandbox, snapshot: Snapshot
) -> Iterator[Sandbox]:
    try:
        with closing(provider.start(snapshot, sandbox.limits, network)) as copy:
            yield copy
    finally:
        snapshot.delete()
