"""The Docker provider against what the 2023 release did, on the same engine in the same run.

The engine is the tests' own: it needs root and docker.io, and touches no other engine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from floors import median_ms
from intercode.envs.bash import BashEnv
from intercode.task import Dataset, Task
from intercode_sandbox import Limits
from intercode_sandbox.docker.provider import DockerProvider
from rows import Row, below

sys.path.append(str(Path(__file__).parents[1] / "packages/sandbox/tests"))
from private_engine import PrivateEngine

TASKS = Dataset([Task("echo", "Print hello.", gold=("echo hello > /tmp/x",))], "bench")
ENTRY = ["/bin/bash", "-c", "cd /; git init -q; git add -A etc root; git -c user.name=x "
         "-c user.email=x commit -qm x; exec sleep 9999"]  # fmt: skip


def measure() -> list[Row]:
    """All rows."""
    with (
        tempfile.TemporaryDirectory(prefix="intercode-bench-") as folder,
        PrivateEngine(Path(folder)) as engine,
    ):
        return [*_provider(engine.url), *_theirs(engine.url)]


def _provider(url: str) -> list[Row]:
    with closing(DockerProvider(url=url)) as provider:
        provider.start("host").close()  # which gives the engine the image
        return [*_cold(provider), *_episodes(provider), *_many(provider)]


def _cold(provider: DockerProvider) -> list[Row]:
    """A container that is begun when it is asked for."""
    times = []
    for megabytes in range(1, 8):  # limits of their own, so that none waits
        began = time.perf_counter()
        provider.start("host", Limits(memory=megabytes << 30)).close()
        times.append((time.perf_counter() - began) * 1000)
    return [Row("Docker: a new container, its process 1 ready", times, "ms")]


def _episodes(provider: DockerProvider) -> list[Row]:
    env: Any = BashEnv(TASKS, sandbox=provider, max_turns=10**9)
    with closing(env):
        env.reset()
        builtin = median_ms(lambda: env.step("true"), 500)
        env.step("echo hello > /tmp/x")
        env._score_end()
        score = median_ms(env._score_end, 50)
        waited, hurried = _resets(env, 0.6), _resets(env, 0.0)
    return [
        below("Docker: reset, a container ready", waited, 20, "ms"),
        Row("Docker: reset, episodes one after the other", hurried, "ms"),
        below("Docker: step of a shell builtin", builtin, 1, "ms"),
        below("Docker: score, one changed file, gold cached", score, 20, "ms"),
    ]


def _resets(env: Any, pause: float) -> float:
    """The median time of a reset after an episode that wrote a file, and after a pause."""
    times = []
    for _ in range(15):
        env.step("echo hello > /tmp/x")
        time.sleep(pause)
        times.append(median_ms(env.reset, 1))
    return median(times[3:])


def _many(provider: DockerProvider, count: int = 32) -> list[Row]:
    began = time.perf_counter()
    with ThreadPoolExecutor(8) as threads:
        sandboxes = list(threads.map(lambda _: provider.start("host"), range(count)))
    opened = time.perf_counter() - began
    good = sum(sandbox.exec(["true"]).ok for sandbox in sandboxes)
    for sandbox in sandboxes:
        sandbox.close()
    note = f"{good} of {count} answer"
    return [Row(f"Docker: {count} containers at once", opened, "s", "", good == count, note)]


@contextmanager
def _container(url: str) -> Iterator[Any]:
    """As in 2023: a container whose state is a git repository, spoken to by `exec_run`."""
    import docker

    client = docker.DockerClient(base_url=url)
    image = client.images.list("intercode")[0]
    options = {path: {"bind": path, "mode": "ro"} for path in ("/usr",)}
    container = client.containers.run(image.id, ENTRY, detach=True, network_mode="none",
                                      volumes=options)  # fmt: skip
    try:
        while b"x" not in container.exec_run("git -C / log --format=%s").output:
            time.sleep(0.05)
        yield container
    finally:
        container.remove(force=True)
        client.close()


def _theirs(url: str) -> list[Row]:
    with _container(url) as container:

        def run(command: str) -> None:
            container.exec_run(["/bin/bash", "-c", command])

        step = median_ms(lambda: run("true"), 20)
        reset = median_ms(lambda: run("cd /; git reset --hard; git clean -fd"), 20)
        score = median_ms(lambda: [run("cd /; git status --short") for _ in range(3)], 10)
    return [
        Row("the way of 2023: a step by exec_run", step, "ms"),
        Row("the way of 2023: git reset", reset, "ms"),
        Row("the way of 2023: three exec_runs of a score", score, "ms"),
    ]
