"""The agent's files with nothing of the agent's running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from intercode.episode import Episode
from intercode.sandbox.base import Provider, Sandbox


@contextmanager
def at_rest(
    provider: Provider, network: bool, episode: Episode, sandbox: Sandbox
) -> Iterator[Sandbox]:
    """The sandbox of an episode that has ended; of one that goes on, a copy of its files.

    Args:
        provider: Starts the copy.
        network: Whether it reaches the network.
        episode: The episode.
        sandbox: Where it happens.
    """
    if episode.status != "running":
        sandbox.kill()
        yield sandbox
        return
    snapshot = sandbox.snapshot()
    try:
        with closing(provider.start(snapshot, sandbox.limits, network)) as copy:
            yield copy
    finally:
        snapshot.delete()
