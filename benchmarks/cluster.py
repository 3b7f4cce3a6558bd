"""A Ray cluster of three nodes on this machine, against threads of one process on the same cores.

The time in which the first episodes begin is left out: processes start once for a run. It needs the
package ray: ``.venv-integrations/ray/bin/python benchmarks/bench.py --only cluster``.
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
from intercode.integrations.ray import Ray
from intercode.spec import RunSpec
from intercode.testing import Fault, Line, ScriptedServer
from rows import Row

NODES, WORKERS = 3, 2
THOUGHT = 0.2
"""Seconds that the model takes for an answer."""
SKIPPED = 0.2
"""The share of the episodes that are left out at the beginning."""
FREE = """
from dataclasses import replace
from intercode.envs.elsewhere import Elsewhere, Reply
from intercode.envs.traits import SHELL

class Free(Elsewhere):
    name = "free"
    traits = replace(SHELL, elsewhere=True)

    def _begin(self, task, seed):
        return task.query

    def _take(self, action):
        return Reply(action)

    def _submit(self, answer):
        return Reply("", 1.0)
"""
"""An environment whose episodes cost nothing."""


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
        (folder / "free.py").write_text(FREE)
        (folder / "intercode.toml").write_text('env = "free.py:Free"\ntasks = "tasks.json"\n')
        tasks = [
            {"task_id": f"t{n}", "query": "Say hi.", "gold": f"echo {n} > file"} for n in range(20)
        ]
        (folder / "tasks.json").write_text(json.dumps(tasks))

        def rate(on: Ray | None, env: str, count: int, workers: int, **more: Any) -> float:
            asked = {"env": env, "data": folder / "tasks.json", "epochs": max(1, count // 20)}
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
        here = rate(None, str(folder), 10 * episodes, 1)
        one, many = (rate(place, str(folder), 20 * episodes, n) for n in (1, NODES))
        rows += [
            Row("free episodes, one process with one worker", here, "/s"),
            Row("what the cluster adds to an episode", 1000 * (1 / one - 1 / here), "ms"),
            Row("free episodes that a driver takes and writes", many, "/s"),
        ]
        return rows


if __name__ == "__main__":
    for row in measure(200):
        print(row)
