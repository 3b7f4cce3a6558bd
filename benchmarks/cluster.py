"""A Ray cluster of three nodes on this machine, against threads of one process on the same cores.

The time in which the first episodes begin is left out: processes start once for a run. It needs the
package ray: ``.venv-integrations/ray/bin/python benchmarks/bench.py --only cluster``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from intercode.episode import Episode
from intercode.evaluate import Progress, evaluate
from intercode.integrations.ray import Ray, driver
from intercode.integrations.ray.cluster import connected
from intercode.spec import RunSpec
from intercode.testing import Fault, Line, ScriptedServer
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


class Pace(Progress):
    """Measures how many episodes end in a second, but for the first ones."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def episode(self, episode: Episode) -> None:
        assert episode.status != "error", episode.error
        self._ends.append(time.monotonic())

    @property
    def rate(self) -> float:
        first = int(SKIPPED * len(self._ends))
        return (len(self._ends) - first) / (self._ends[-1] - self._ends[first - 1])


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

        def rate(on: Ray | None, env: str, count: int, workers: int, **more: Any) -> float:
            asked = {"env": env, "data": FREE / "tasks.json", "epochs": max(1, count // 20)}
            out = folder / f"run-{time.monotonic_ns()}"
            pace = Pace()
            spec = RunSpec.of({"agent": "oracle", **asked, "workers": workers, "out": out, **more})
            evaluate(spec, progress=pace, executor=on)
            return pace.rate

        here = rate(None, "bash", episodes, WORKERS)
        there = rate(place, "bash", episodes, NODES)
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
            here = rate(None, "bash", episodes // 2, WORKERS, **model)
            there = rate(place, "bash", episodes, NODES * WORKERS, **model)
        times = there / here
        rows += [
            Row("episodes, 200 ms of thought, 2 workers", here, "/s"),
            Row("episodes, 200 ms of thought, 6 on three nodes", there, "/s", ">= 2.7 x 2 workers",
                times >= 2.7, f"{times:.2f} x"),
        ]  # fmt: skip
        free = str(FREE)
        here = rate(None, free, 10 * episodes, 1)
        one, many = (rate(place, free, 20 * episodes, n) for n in (1, NODES))
        driver.LARGEST = 1
        alone = rate(place, free, 5 * episodes, NODES)
        rows += [
            Row("free episodes, one process with one worker", here, "/s"),
            Row("what the cluster adds to an episode", 1000 * (1 / one - 1 / here), "ms"),
            Row("free episodes that a driver takes and writes", many, "/s"),
            Row("the same, one in a batch", alone, "/s"),
            Row("a driver's look at a call under way", 1e6 * look(place) / WAITING, "us"),
        ]
        record = min(folder.glob("*/episodes.jsonl")).read_bytes()
        rows.append(Row("the record of an episode", len(record) / record.count(b"\n"), "B"))
        return [*rows, Row("the disk, written and synced", disk(folder) / 1e6, "MB/s")]


def look(place: Ray) -> float:
    """Seconds in which a driver looks for answers among many calls."""
    with connected(place.address) as ray:
        never = ray.remote(num_cpus=1000)(lambda: None)
        calls = [never.remote() for _ in range(WAITING)]
        began = time.monotonic()
        ray.wait(calls, num_returns=len(calls), timeout=0)
        return time.monotonic() - began


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
