"""A Ray cluster of several nodes on this machine, whose nodes can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import eventually

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

from ray.cluster_utils import Cluster


class Nodes:
    """Nodes of one processor each, beside a head that has none."""

    def __init__(self, count: int) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "dashboard_port": 0},
        )
        self.nodes = [self.join() for _ in range(count)]
        self.environment = {**os.environ, "RAY_ADDRESS": self.cluster.address}

    def join(self, **more: Any) -> Any:
        return self.cluster.add_node(num_cpus=1, include_dashboard=False, **more)

    def kill(self, node: Any) -> None:
        """Kill a node's raylet; all that it has started ends with it."""
        (started,) = node.all_processes["raylet"]
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait()

    def replace(self, number: int) -> None:
        self.kill(self.nodes[number])
        self.nodes[number] = self.join()

    def intercode(self, *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "intercode.cli", *map(str, arguments)]
        return subprocess.Popen(command, env=self.environment, **more)


@contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    found = Nodes(count)
    try:
        yield found
    finally:
        found.cluster.shutdown()


def lines(run: Path) -> int:
    """The episodes that a run has recorded."""
    log = run / "episodes.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def recorded(run: Path) -> dict[tuple[int, str], Any]:
    """A run's episodes, without times; none is there twice."""
    found: dict[tuple[int, str], Any] = {}
    for line in (run / "episodes.jsonl").read_text().splitlines():
        episode = json.loads(line)
        assert episode.pop("started") > 0 and episode.pop("seconds") > 0
        for turn in episode["turns"]:
            assert turn.pop("seconds") >= 0
        assert (key := (episode["epoch"], episode["task_id"])) not in found
        found[key] = episode
    return found


def wait_for_lines(run: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    assert eventually(lambda: lines(run) >= count or process.poll() is not None)
