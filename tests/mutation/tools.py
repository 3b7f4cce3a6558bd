"""What probes are made with."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from intercode_sandbox import Completed, Limits, SandboxBackend, get_provider
from waiting import eventually


class SkippedError(Exception):
    """This machine cannot tell."""


class ProbeError(Exception):
    """What the probe needs does not work: that says nothing about the defence."""


def start(**limits: object) -> SandboxBackend:
    return get_provider().start("host", Limits(**limits))  # type: ignore[arg-type]


def run(script: str, sandbox: SandboxBackend | None = None, **limits: object) -> Completed:
    return (sandbox or start(**limits)).exec(["bash", "-c", script])


def say(script: str, sandbox: SandboxBackend | None = None, **limits: object) -> str:
    """What a script prints that must succeed."""
    done = run(script, sandbox, **limits)
    if not done.ok:
        raise ProbeError(f"{script!r}: {done}")
    return done.stdout.decode().strip()


def perl(script: str, **limits: object) -> str:
    done = start(**limits).exec(["perl", "-e", "$| = 1; " + script])
    if not done.ok:
        raise ProbeError(f"{script!r}: {done}")
    return done.stdout.decode().strip()


def one_of(found: str, holds: str, gone: str) -> bool:
    """Whether it is the one, and no third thing."""
    if found not in (holds, gone):
        raise ProbeError(f"neither {holds!r} nor {gone!r}: {found!r}")
    return found == holds


def spawner() -> int:
    return get_provider()._running_spawner().process.pid  # type: ignore[attr-defined]


def host_pid(marker: str) -> int | None:
    """The process, as seen from outside, that has this among its arguments."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if marker.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
    return None


def wait_for(marker: str) -> int:
    if not eventually(lambda: host_pid(marker)) or (pid := host_pid(marker)) is None:
        raise ProbeError("the program did not start")
    return pid


def ends(pid: int, looks: int = 250) -> bool:
    """Whether a process ends soon. On a busy machine, so many looks take longer."""
    for _ in range(looks):
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return True
        if stat.rpartition(b")")[2][1:2] in b"ZX":
            return True
        time.sleep(0.02)  # allow sleep: where the defence is gone, it never ends
    return False


def status(key: str) -> str:
    return say(f"grep '^{key}:' /proc/self/status").split()[1]


def mount_options(target: str, **limits: object) -> set[str]:
    lines = say("cat /proc/self/mounts", **limits).split("\n")
    found = [line.split()[3] for line in lines if line.split()[1] == target]
    if not found:
        raise ProbeError(f"nothing is mounted at {target}")
    return set(found[-1].split(","))
