"""A Ray cluster of three nodes on this machine, against threads of one process on the same cores.

The time in which the first episodes begin is left out: processes start once for a run. It needs the
package ray: ``.venv-integrations/ray/bin/python benchmarks/bench.py --only cluster``. `scale.py`
computes from these figures what larger clusters give.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from intercode.episode import Episode
from intercode.evaluate import Progress, evaluate
from intercode.models.limits import SpendingAmounts
from intercode.spec import RunSpec
from intercode_integrations.ray import Ray, driver
from intercode_integrations.ray.cluster import cluster_connection
from intercode_integrations.ray.shared_limits import (
    SharedBudget,
    SharedLimitsActor,
    SharedLimitsConnection,
    SharedRateLimit,
)
from intercode_integrations.testing import Fault, Line, ScriptedServer
from rows import Row

NODES, WORKERS = 3, 2
THOUGHT = 0.2
"""Seconds that the model takes for an answer."""
SKIPPED = 0.2
"""The share of the episodes that are left out at the beginning."""
FREE = Path(__file__).with_name("free")
"""A project whose episodes cost nothing."""
WAITING = 10_000
"""Calls under way, at which a driver looks."""
LONG = 50_000
"""Bytes of an answer in a long record."""
CALLS = 500
"""Calls of a model that a process tells the ledger of."""


class Pace(Progress):
    """Measures how many episodes end in a second, but for the first ones."""

    size = 0.0
    """Bytes of a record."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []

    def episode(self, episode: Episode) -> None:
        assert episode.status != "error", episode.error
        self._ends.append((time.monotonic(), time.thread_time()))

    def _each(self, clock: int) -> float:
        first = int(SKIPPED * len(self._ends))
        return (self._ends[-1][clock] - self._ends[first - 1][clock]) / (len(self._ends) - first)

    @property
    def rate(self) -> float:
        return 1 / self._each(0)

    @property
    def thread(self) -> float:
        """Seconds of CPU time that this thread, the driver's, takes for an episode."""
        return self._each(1)


@contextmanager
def cluster() -> Iterator[Ray]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    found = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(NODES):
            found.add_node(num_cpus=1, include_dashboard=False)
        yield Ray(found.address)
    finally:
        found.shutdown()


def measure(episodes: int) -> list[Row]:
    """All of it.

    Args:
        episodes: Those of each kind.
    """
    with TemporaryDirectory() as name, cluster() as place:
        folder = Path(name)

        def run(on: Ray | None, env: str, count: int, workers: int, **more: Any) -> Pace:
            asked = {"env": env, "data": FREE / "tasks.json", "epochs": max(1, count // 20)}
            out = folder / f"run-{time.monotonic_ns()}"
            pace = Pace()
            asked |= {"agent": "oracle", "workers": workers, "out": out, **more}
            evaluate(RunSpec.from_layers(asked), progress=pace, executor=on)
            record = (out / "episodes.jsonl").read_bytes()
            pace.size = len(record) / record.count(b"\n")
            return pace

        here = run(None, "bash", episodes, WORKERS).rate
        there = run(place, "bash", episodes, NODES).rate
        share = there / here
        rows = [
            Row("episodes, one process with 2 workers", here, "/s"),
            Row("episodes, three nodes", there, "/s", ">= 0.9 x one process", share >= 0.9,
                f"{share:.2f} x"),
        ]  # fmt: skip
        slow = Fault("slow", delay=THOUGHT)
        script = Line("```bash\nsubmit\n```")
        with ScriptedServer(lambda _: script, plan=lambda _: slow) as server:
            model = {"agent": "try-again", "model": "openai-compatible/any", "base_url": server.url}
            here = run(None, "bash", episodes // 2, WORKERS, **model).rate
            there = run(place, "bash", episodes, NODES * WORKERS, **model).rate
        times = there / here
        rows += [
            Row("episodes, 200 ms of thought, 2 workers", here, "/s"),
            Row("episodes, 200 ms of thought, 6 on three nodes", there, "/s", ">= 2.7 x 2 workers",
                times >= 2.7, f"{times:.2f} x"),
        ]  # fmt: skip
        free = str(FREE)
        here = run(None, free, 10 * episodes, 1).rate
        one, many = (run(place, free, 20 * episodes, n) for n in (1, NODES))
        tasks = json.loads((FREE / "tasks.json").read_text())
        tasks = [{**task, "gold": "echo " + "word " * (LONG // 5)} for task in tasks]
        (folder / "long.json").write_text(json.dumps(tasks))
        long = run(place, free, 10 * episodes, NODES, data=folder / "long.json")
        driver.MAX_BATCH_JOBS, largest = 1, driver.MAX_BATCH_JOBS
        call, alone = (run(place, free, 5 * episodes, n) for n in (1, NODES))
        driver.MAX_BATCH_JOBS = largest
        byte = (long.thread - many.thread) / (long.size - many.size)
        return [
            *rows,
            Row("free episodes, one process with one worker", here, "/s"),
            Row("what the cluster adds to an episode", 1000 * (1 / one.rate - 1 / here), "ms"),
            Row("what a call of its own adds to that", 1000 * (1 / call.rate - 1 / one.rate), "ms"),
            Row("free episodes that a driver takes and writes", many.rate, "/s"),
            Row("the same, one in a batch", alone.rate, "/s"),
            Row("the driver's thread, for each of many", 1e6 * many.thread, "us"),
            Row("the same, one in a batch", 1e6 * alone.thread, "us"),
            Row("the driver's thread, for a longer record", 1e9 * byte, "ns/B"),
            Row("a driver's look at a call under way", 1e6 * look(place) / WAITING, "us"),
            Row("the ledger's CPU time for a call of a model", 1000 * ledger(place), "ms"),
            Row("the record of an episode", many.size, "B"),
            Row("the disk, written and synced", disk(folder) / 1e6, "MB/s"),
            Row("a small record, written and synced", 1000 * sync(folder), "ms"),
        ]


def look(place: Ray) -> float:
    """Seconds in which a driver looks for answers among many calls."""
    with cluster_connection(place.address) as ray:
        never = ray.remote(num_cpus=1000)(lambda: None)
        calls = [never.remote() for _ in range(WAITING)]
        began = time.monotonic()
        ray.wait(calls, num_returns=len(calls), timeout=0)
        return time.monotonic() - began


class Watched(SharedLimitsActor):
    """A ledger that tells its process's CPU time."""

    def cpu(self) -> float:
        return time.process_time()


def ledger(place: Ray) -> float:
    """Seconds of CPU time that the ledger takes for a call of a model."""

    def calls(ledger: Any, name: str) -> None:
        outbox = SharedLimitsConnection(ledger, name)
        budget, pace = SharedBudget(outbox, None, None), SharedRateLimit(outbox)
        for _ in range(CALLS):
            started = pace.acquire(1000)
            budget.reserve(1000, 0.001).release()
            pace.release(started)

    with cluster_connection(place.address) as ray:
        kept = ray.remote(Watched).options(num_cpus=0, max_concurrency=2 * NODES + 8)
        asked = kept.remote(None, None, SpendingAmounts(), None)
        before = ray.get(asked.cpu.remote())
        ray.get([ray.remote(calls).remote(asked, f"process {n}") for n in range(NODES)])
        return float(ray.get(asked.cpu.remote()) - before) / (NODES * CALLS)


def sync(folder: Path, count: int = 100) -> float:
    """Seconds."""
    with (folder / "synced").open("ab", buffering=0) as file:
        began = time.monotonic()
        for _ in range(count):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        return (time.monotonic() - began) / count


def disk(folder: Path) -> float:
    """Bytes a second."""
    piece, count = os.urandom(1 << 20), 64
    began = time.monotonic()
    with (folder / "written").open("wb") as file:
        for _ in range(count):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return count * len(piece) / (time.monotonic() - began)


if __name__ == "__main__":
    for row in measure(200):
        print(row)
