"""Probes of containers. They need an engine, at ``DOCKER_HOST``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from intercode.errors import SandboxUnavailableError
from intercode_sandbox import Completed, Limits, SandboxBackend, get_provider
from intercode_sandbox.docker.mounted_runtime import SHARED_ROOT
from waiting import new_marker

from .tools import ProbeError, ends, one_of, wait_for

CALLER = """
import ctypes, os, time
from intercode_sandbox import get_provider
sandbox = get_provider("docker").start("host")
sandbox.popen(["sleep", os.environ["MARKER"]], channels={})
child = ctypes.PyDLL(None).fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def _start(**limits: object) -> SandboxBackend:
    return get_provider("docker").start("host", Limits(**limits))  # type: ignore[arg-type]


def _bash(script: str, **limits: object) -> Completed:
    return _start(**limits).exec(["bash", "-c", script])


def docker_owner() -> bool:
    """A caller is killed while a fork of its holds all that it had open."""
    marker = new_marker()
    argv = [sys.executable, "-c", CALLER]
    env = {**os.environ, "MARKER": marker}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as caller:
        assert caller.stdout is not None
        child = int(caller.stdout.readline())
        sleeper = wait_for(marker)
        caller.kill()
    try:
        return ends(sleeper)
    finally:
        os.kill(child, signal.SIGKILL)


def docker_close() -> bool:
    """Process 1 is stopped, and hears of no hang-up."""
    sandbox, marker = _start(), new_marker()
    sandbox.popen(["sleep", marker], channels={})
    sleeper = wait_for(marker)
    first = int(Path(f"/proc/{sleeper}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(first, signal.SIGSTOP)
    sandbox.close()
    ended = not Path(f"/proc/{sleeper}").exists()
    os.kill(first, signal.SIGKILL) if not ended else None
    return ended


def docker_filter() -> bool:
    lease = "open F, '>', '/tmp/f'; print fcntl(F, 1024, 1) ? 'lease' : 'none'"
    done = _start().exec(["perl", "-e", lease])
    return one_of(done.stdout.decode(), holds="none", gone="lease")


def docker_written_and_set_back() -> bool:
    """A file of the image is written to, without a change of its size or its times."""
    sandbox = _start()
    edit = "cp -p passwd /tmp/p; sed s/root/toor/ /tmp/p > passwd; touch -r /tmp/p passwd"
    done = sandbox.exec(["bash", "-ec", edit], cwd="/etc")
    if not done.ok:
        raise ProbeError(f"not written: {done}")
    return any(change.path == "/etc/passwd" for change in sandbox.changes())


def docker_processes() -> bool:
    count = "for i in {1..60}; do sleep 600 & done 2>/dev/null; jobs -p | wc -l"
    done = _bash(f"({count}) 2>/dev/null", processes=40)
    return one_of(str(b"60" not in done.stdout), holds="True", gone="False")


def docker_shared_root() -> bool:
    """The engine of the tests shares root, and is asked for by name."""
    del os.environ[SHARED_ROOT]
    try:
        _start().close()
    except SandboxUnavailableError:
        return True
    return False
