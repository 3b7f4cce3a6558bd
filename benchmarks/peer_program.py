"""Bash episodes of the 2023 release, and of a new container for each episode.

    PYTHON benchmarks/peer_program.py IMAGE TASKS

PYTHON is that of an environment with ``intercode-bench``, whose Docker SDK both contenders use. For
each line ``release COUNT`` or ``containers COUNT`` of its input, the program plays as many episodes
and prints the median times of their parts in milliseconds, as a line of JSON. `peers` starts the
program. It imports no other module of this folder: ``intercode`` is the 2023 release here.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import docker

from intercode.envs import BashEnv

Times = dict[str, list[float]]


def timed(times: Times, part: str, call: Callable[[], Any]) -> Any:
    """Call a function, and note its time in milliseconds."""
    start = time.perf_counter()
    result = call()
    times[part].append(1e3 * (time.perf_counter() - start))
    return result


class Release:
    """Episodes of the 2023 release: two containers that all episodes share."""

    def __init__(self, image: str, tasks: str) -> None:
        self._env = BashEnv(image, data_path=tasks, verbose=False)

    def play(self, times: Times) -> None:
        """Complete one episode."""
        timed(times, "reset", lambda: self._env.reset(0))
        timed(times, "first action", lambda: self._env.step("echo hello"))
        _, reward, _, _ = timed(times, "submit", lambda: self._env.step("submit"))
        if reward < 0.99:
            raise SystemExit(f"the release gave a reward of {reward}")


class Containers:
    """Episodes of a new container each, without a network, that a command scores."""

    def __init__(self, image: str) -> None:
        self._client = docker.from_env()
        self._image = image
        self._container: Any = None

    def close(self) -> None:
        """Remove the container."""
        if self._container is not None:
            self._container.remove(force=True)
            self._container = None

    def _reset(self) -> None:
        self.close()
        self._container = self._client.containers.run(
            self._image, ["sleep", "infinity"], network_mode="none", detach=True
        )

    def play(self, times: Times) -> None:
        """Complete one episode."""
        timed(times, "reset", self._reset)
        echo, score = ["bash", "-c", "echo hello"], ["test", "-d", "/tmp"]
        output = timed(times, "first action", lambda: self._container.exec_run(echo)).output
        exit_code = timed(times, "submit", lambda: self._container.exec_run(score)).exit_code
        if (output, exit_code) != (b"hello\n", 0):
            raise SystemExit(f"a container gave {output!r} and exit code {exit_code}")


def main() -> None:
    """Play as the input says."""
    image, tasks = sys.argv[1:]
    containers = Containers(image)
    contenders = {"release": Release(image, tasks), "containers": containers}
    for contender in contenders.values():
        contender.play(defaultdict(list))
    print("{}", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        times: Times = defaultdict(list)
        for _ in range(int(count)):
            contenders[name].play(times)
        print(json.dumps({part: median(values) for part, values in times.items()}), flush=True)
    containers.close()


if __name__ == "__main__":
    main()
