"""Probes of what is limited for a sandbox as a whole."""

from __future__ import annotations

import io
import os
import resource
import socket
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from groups import groups_of, told
from intercode.databases import find
from intercode.databases.convert.build import as_sqlite
from intercode.episode import Episode
from intercode.errors import ImageError, SandboxError, TaskError, UsageError
from intercode.rewards.base import quiesce_sandbox
from intercode_integrations.trl.control_tokens import split_text
from intercode_sandbox import Limits, SandboxBackend, get_provider, host_files
from intercode_sandbox.images import resolve
from intercode_sandbox.native.sandbox import NativeSandbox
from restless import RESTLESS

from .tools import ProbeError, SkippedError, one_of, say, start

MIB = 1 << 20


def _limited(version: int = 0, **limits: object) -> SandboxBackend:
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


def limits_of_those_before() -> bool:
    following = _limited(memory=64 * MIB)
    groups = groups_of(following)
    for _ in range(99):
        following.close()
        following = _limited(memory=96 * MIB, disk=32 * MIB)
        if groups_of(following) == groups:
            group = groups["memory"]
            name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
            return told(group, name) == 128 * MIB
    raise SkippedError("needs cgroup v1, or v2 of Linux 6.12, writable")


def memory_of_those_before() -> bool:
    first = _limited(memory=64 * MIB, disk=64 * MIB)
    say("dd if=/dev/zero of=/root/f bs=1M count=32", first)
    assert isinstance(first, NativeSandbox)
    groups, snapshot = groups_of(first), first.freeze()
    for _ in range(9):
        with closing(_limited()) as following:
            if groups_of(following) == groups:
                return False
    return snapshot.files.frozen_layers != ()


def room_beside_shared_memory() -> bool:
    pages = int(say("cat /proc/sys/kernel/shmall", memory=64 * MIB))
    return one_of(str(pages * resource.getpagesize() < 64 * MIB), holds="True", gone="False")


def empty_cores() -> bool:
    return one_of(say("cat /proc/self/coredump_filter"), holds="00000000", gone="00000021")


def room_beside_files() -> bool:
    inodes = say("stat -f -c %c /dev/shm", memory=64 * MIB, disk=64 * MIB)
    return one_of(inodes, holds="16384", gone="200000")


def standing_still() -> bool:
    sandbox = start(timeout=60)
    program = sandbox.popen(["python3", "-c", RESTLESS], channels={})
    if os.read(program.fds[1], 100) != b"ready\n":
        raise SkippedError("needs a Python in the image")
    sandbox.exec(["bash", "-c", "head -c 100M /dev/zero > /tmp/big"])
    for _ in range(20):  # it goes on by chance
        sandbox.changes()
        if sandbox.processes() == []:  # it was found out, and ended
            return True
    return False


def only_what_runs_is_killed() -> bool:
    sandbox = start()
    program = sandbox.popen(["sleep", "60"], channels={})
    sandbox._kill_started(99999)  # type: ignore[attr-defined]
    return sandbox.processes() == [program.pid]


def one_moment() -> bool:
    """Whether a program that undoes its tampering when it is let go on again is found out."""
    provider = get_provider()
    with closing(start(timeout=60)) as sandbox:
        undo = "rmdir '/sbin'; symlink 'usr/sbin', '/sbin'; print 'undone'"
        program = f"unlink '/sbin'; mkdir '/sbin'; $SIG{{CONT}} = sub {{ {undo} }}"
        script = f"$| = 1; {program}; print 'ready'; sleep 60 while 1"
        running = sandbox.popen(["perl", "-e", script], channels={})
        if os.read(running.fds[1], 100) != b"ready":
            raise ProbeError("it did not start")
        found: list[str] = []

        def look() -> None:
            state = sandbox.read_file(f"/proc/{running.pid}/stat").rpartition(b") ")[2][:1]
            if state != b"T":
                os.read(running.fds[1], 100)  # it has been let go on: until all is undone
            found.extend(change.path for change in sandbox.changes())

        with quiesce_sandbox(
            provider, False, Episode("t", "q", "bash", status="running"), sandbox, look
        ):
            return any(path.startswith("/sbin") for path in found)


def looked_at_again() -> bool:
    try:
        return standing_still()
    except SandboxError:
        return False


def few_to_remove() -> bool:
    return one_of(say("awk '{print $4}' /proc/sys/kernel/sem"), holds="128", gone="9999")


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


def archive_of_zeros() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder, "a.tar")
        with tarfile.open(tar, "w") as archive:
            # Another each time: a layer without the defence may be in the cache.
            member = tarfile.TarInfo(f"zeros-{os.urandom(8).hex()}")
            member.size = 4 << 20
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        resolve("host")
        host_files.free_space = lambda _: (4 << 20, 1000)
        try:
            resolve(f"host+{tar}")
        except ImageError as error:
            return "more than half" in str(error)
    return False


def script_of_a_database() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INTERCODE_CACHE"] = folder
        script = Path(folder, "x.sql")
        script.write_text("CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(4000000));")
        host_files.free_space = lambda _: (4 << 20, 1000)
        try:
            as_sqlite(find(script))
        except TaskError as error:
            return "more than half" in str(error)
    return False


def private_places() -> bool:
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-test-") as folder:
        Path(folder).chmod(0o755)
        secret = Path(folder, "secret")
        secret.write_text("secret")
        secret.chmod(0o600)
        done = start().exec(["cat", str(secret)])
        return one_of(done.stdout.decode(), holds="", gone="secret")


def cache_of_others() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INTERCODE_CACHE"] = folder
        os.chown(folder, 12345, 12345)
        try:
            host_files.cache_root()
        except UsageError:
            return True
    return False


def tokens_of_data() -> bool:
    parts = split_text("a<|im_end|>", {"<|im_end|>"})
    return one_of(" ".join(parts), holds="a< |im_end|>", gone="a<|im_end|>")
