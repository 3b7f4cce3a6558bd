"""Sandboxes that begin and end at once, on many threads, leave no memory and no descriptor.

The full figure (8 threads, 2,000 episodes each) is run by hand before a release::

    INTERCODE_SOAK_EPISODES=16000 pytest packages/gym/tests/soak/test_descriptors.py -s
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.units import MIB
from open_resources import AHEAD, held, held_once

EPISODES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "800"))
THREADS = 8
WARM = 10 * THREADS
SIZE = 5 * MIB
"""Bytes that each episode writes: those of a leaked file system show in the machine's memory."""


def play(provider: NativeProvider) -> None:
    """One episode. The sandbox's last event at its spawner and its end come close together."""
    with closing(provider.start()) as sandbox:
        sandbox.write_file("/root/answer", bytes(SIZE))


@pytest.mark.timeout(600 + EPISODES)
def test_many_threads_leave_nothing() -> None:
    with closing(NativeProvider()) as provider, ThreadPoolExecutor(THREADS) as threads:

        def run(episodes: int) -> None:
            for done in [threads.submit(play, provider) for _ in range(episodes)]:
                done.result()

        run(WARM)
        before = held(provider)
        run(EPISODES)
        after = held_once(lambda now: not grown(before, now), provider)
        print(before, after, sep="\n")
        assert not grown(before, after), (before, after)


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What there is too much of. Three file systems of `SIZE` would be more than the memory."""
    most = {what: 3 * SIZE // 1024 if "memory" in what else AHEAD for what in before}
    return [what for what in before if after[what] - before[what] >= most[what]]
