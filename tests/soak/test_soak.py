"""Many episodes in one run leave nothing and grow nothing.

The full figure (10,000) is run by hand before a release::

    INTERCODE_SOAK_EPISODES=10000 pytest tests/soak/test_soak.py -s --timeout 3600
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import intercode
from intercode.agents.base import AgentFactory
from intercode.episode import Turn
from intercode.evaluate import evaluate
from intercode.sandbox import get_provider
from intercode.sandbox.images import cache_root
from intercode.sandbox.native import cgroup
from intercode.task import Dataset, Task

EPISODES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "400"))
WARM = max(100, EPISODES // 10)
ACTIONS = [
    "echo hello > /root/f; mkdir -p /data/d; (sleep 60 &) ; setsid sleep 60 &",
    "rm -rf /root/f; exec true",
    "head -c 100000 /dev/urandom | base64 -w 0",
    "exit 3",
    "submit",
]


class Busy:
    """Writes, forks, floods, and makes its shell restart."""

    def act(self, observation: str, history: list[Turn]) -> str:
        return ACTIONS[len(history)]


def kilobytes(pid: int) -> int:
    """Private and shared memory of a process, by its share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))


def children(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)


def state() -> dict[str, int]:
    """All that could grow."""
    spawner = get_provider()._spawner.process.pid  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while list(children(spawner)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the last sandboxes are on their way out
    # What lives is measured, not what the allocator keeps for the next time.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    own = os.getpid()
    pattern = f"{cgroup.PREFIX}{own}-*/*/"
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "spawner descriptors": len(os.listdir(f"/proc/{spawner}/fd")),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "spawner mounts": len(Path(f"/proc/{spawner}/mountinfo").read_text().splitlines()),
        "sandboxes": len(list(children(spawner))),
        "cgroups": sum(len(list(Path(p).glob(pattern))) for _, p in cgroup.parents()),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
        "snapshots": len(os.listdir(cache_root() / "snapshots")),
        "memory": kilobytes(own),
        "spawner memory": kilobytes(spawner),
    }


def test_nothing_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    dataset = Dataset(
        [Task(f"t{n}", "Say hello.", gold=("echo hello",)) for n in range(20)], "soak"
    )
    busy: AgentFactory = lambda task: Busy()  # noqa: E731

    def run(episodes: int, name: str) -> None:
        result = evaluate(
            dataset,
            busy,
            lambda: intercode.make("bash", data=dataset).unwrapped,
            workers=8,
            out=tmp_path / name,
            epochs=max(1, episodes // len(dataset)),
        )
        failed = [episode.error for episode in result.episodes() if episode.error]
        assert result.complete, (len(failed), failed[:3])
        print(f"{result.ran} episodes in {result.seconds:.0f} s")

    run(WARM, "warm")
    before = state()
    run(EPISODES, "run")
    after = state()
    print(before, after, sep="\n")
    for name in before:
        if "memory" in name:
            # In KiB. Interpreters' heaps breathe; a leak of 1 KiB an episode would show.
            assert after[name] - before[name] < 4096 + EPISODES // 2, (name, before, after)
        else:
            assert after[name] <= before[name], (name, before, after)
