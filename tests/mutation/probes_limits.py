"""Probes of what is limited for a sandbox as a whole."""

from __future__ import annotations

import resource
import socket

from groups import groups_of, told
from intercode.sandbox import Limits, Sandbox, get_provider

from .tools import ProbeError, SkippedError, one_of, say, start

MIB = 1 << 20


def _limited(version: int = 0, **limits: object) -> Sandbox:
    """A sandbox with cgroups, of this version or of any."""
    sandbox = start(**limits)
    has = get_provider().facts()["cgroup"]  # type: ignore[attr-defined]
    if has == 0 or version not in (0, has):
        raise SkippedError(f"needs cgroup v{version or 1}, writable")
    return sandbox


def programs_are_ended_first() -> bool:
    score = int(say("cat /proc/self/oom_score_adj"))
    return one_of(str(score > 0), holds="True", gone="False")


def started_programs_are_ended_first() -> bool:
    look = "read score < /proc/self/oom_score_adj; [ $score = 1000 ] && break"
    return one_of(say(f"for i in {{1..9999}}; do {look}; done; echo $score"), "1000", gone="500")


def memory_of_sockets() -> bool:
    sandbox = _limited(1, memory=64 * MIB, disk=16 * MIB)
    limit = told(groups_of(sandbox)["memory"], "memory.kmem.tcp.limit_in_bytes")
    return one_of(str(limit < 64 * MIB), holds="True", gone="False")


def room_beside_shared_memory() -> bool:
    pages = int(say("cat /proc/sys/kernel/shmall", memory=64 * MIB))
    return one_of(str(pages * resource.getpagesize() < 64 * MIB), holds="True", gone="False")


def pids_controller() -> bool:
    groups = groups_of(_limited(processes=40))
    if not groups:
        raise ProbeError("its cgroups were not found")
    return one_of(str("pids" in groups), holds="True", gone="False")


def equal_weights() -> bool:
    first, _ = _limited(), _limited()
    groups = groups_of(first)
    if "cpu" not in groups:
        raise SkippedError("needs cgroup v1, writable, with CPU")
    name, one = ("cpu.weight", 100) if (groups["cpu"] / "cpu.weight").exists() else (
        "cpu.shares", 1024
    )  # fmt: skip
    return one_of(str(told(groups["cpu"].parent, name) >= 2 * one), holds="True", gone="False")


def _core_limit(before: str = "true") -> str:
    return say(f"{before}; awk '/core file/ {{print $5}}' /proc/self/limits")


def no_core_by_a_pipe() -> bool:
    return one_of(_core_limit(), holds="1", gone="0")


def seccomp_core_limit() -> bool:
    return one_of(_core_limit("ulimit -S -c 0"), holds="1", gone="0")


def abstract_sockets() -> bool:
    name = f"intercode-{id(object())}"
    script = (
        "socket S, AF_UNIX, SOCK_STREAM, 0; "
        f"print connect(S, pack('Sa*', AF_UNIX, qq(\\0{name}))) ? 'there' : 'not'"
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        sandbox = get_provider().start("host", Limits(), network=True)
        found = sandbox.exec(["perl", "-MSocket", "-e", script]).stdout.decode()
        return one_of(found, holds="not", gone="there")
