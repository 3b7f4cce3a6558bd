"""A Ray cluster of several nodes on this machine, whose nodes can be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from waiting import eventually

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

KEY = "sk-the-key-of-the-nodes-0123456789"
"""The nodes' key to a model; nobody else has it."""
# Our own filter forbids namespaces, as Docker's default profile does.
UNDER_SECCOMP = """
import os, sys
from intercode_sandbox.native import seccomp, syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.set_seccomp(seccomp.build())
os.execv(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", *sys.argv[1:]])
"""


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
        variables = {"OPENAI_API_KEY": KEY, **more.pop("env_vars", {})}
        options = {"num_cpus": 1, "include_dashboard": False, "env_vars": variables, **more}
        with suppress(Exception):  # Ray's own 30 seconds, which a busy machine exceeds
            return self.cluster.add_node(**options)
        return self.cluster.add_node(**options)

    @contextmanager
    def forbidding(self) -> Iterator[None]:
        """A node more, that has no namespaces for sandboxes."""
        command = ["start", "--address", self.cluster.address, "--num-cpus", "1", "--block"]
        process = subprocess.Popen([sys.executable, "-c", UNDER_SECCOMP, *command])
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def kill(self, node: Any) -> None:
        """Kill a node's raylet; all that it has started ends with it."""
        (started,) = node.all_processes["raylet"]
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait()

    def replace(self, number: int) -> None:
        self.kill(self.nodes[number])
        self.nodes[number] = self.join()

    def intercode(self, *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*arguments), env=self.environment, **more)

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "intercode.cli", *map(str, arguments)]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    found = Nodes(3)
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
        key = (episode["epoch"], episode["task_id"])
        assert key not in found
        found[key] = episode
    return found


def wait_for_lines(run: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    assert eventually(lambda: lines(run) >= count or process.poll() is not None)


def held(driver: int) -> dict[str, int]:
    """The MiB that a run's driver and each of its stations hold."""
    found = {"driver": driver}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::Station"):
                found[f"station {folder.name}"] = int(folder.name)
    return {name: _rss(pid) for name, pid in found.items()}


def _rss(pid: int) -> int:
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) // 1024
