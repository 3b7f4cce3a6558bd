"""What the machine itself can do: the physical limits that everything is held against.

Measured in a small process of its own (`measure_apart`): a fork costs what its parent's memory
map costs, and a limit should be as low as it can be.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

SYSCALLS = Path(__file__).parents[1] / "src/intercode/sandbox/native/syscalls.py"


def load_syscalls() -> ModuleType:
    """The module alone, without the package, which is large."""
    spec = importlib.util.spec_from_file_location("syscalls", SYSCALLS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """The median time of a call, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def fork_exec(*argv: str) -> None:
    """Fork, exec, wait; with nothing of Python's `subprocess` in between."""
    pid = os.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    os.waitpid(pid, 0)


def overlay_mount_ms(repeats: int = 200) -> float | None:
    """One overlay mount and its removal, in a child with namespaces of its own."""
    sc = load_syscalls()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            flags = sc.CLONE_NEWNS | (0 if os.geteuid() == 0 else sc.CLONE_NEWUSER)
            sc.unshare(flags)
            sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
            sc.mount("tmpfs", "/dev/pts", "tmpfs")
            os.chdir("/dev/pts")
            for name in "lumw":
                os.mkdir(name)

            def once() -> None:
                sc.mount("overlay", "m", "overlay", 0, "lowerdir=l,upperdir=u,workdir=w")
                sc.umount("m")

            os.write(write, str(median_ms(once, repeats)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return float(text) if text else None


def docker_ms(repeats: int = 5) -> dict[str, float] | None:
    """``docker run`` and ``docker exec`` of `true`; None where no engine or image answers."""
    if not shutil.which("docker"):
        return None

    def docker(*args: str) -> str:
        done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise OSError(done.stderr.strip())
        return done.stdout.strip()

    try:
        image = docker("images", "-q").split()[0]
        container = docker("run", "-d", "--rm", image, "sleep", "600")
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None
    try:
        return {
            "docker run": median_ms(lambda: docker("run", "--rm", image, "true"), repeats),
            "docker exec": median_ms(lambda: docker("exec", container, "true"), repeats),
        }
    finally:
        docker("rm", "-f", container)


def measure() -> dict[str, float]:
    """All of them, in milliseconds."""
    found = {
        "fork + exec of /bin/true": median_ms(lambda: fork_exec("/bin/true"), 300),
        "fork + exec of bash -c true": median_ms(lambda: fork_exec("/bin/bash", "-c", "true"), 300),
    }
    if (overlay := overlay_mount_ms()) is not None:
        found["one overlay mount"] = overlay
    return found | (docker_ms() or {})


def measure_apart() -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-I", "-S", __file__]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
