"""Attacks on frozen files: those who share a layer have it for as long as they run, unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intercode_sandbox import SandboxBackend
from intercode_sandbox.base import Snapshot, SupportsFork
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.linux_capabilities import CAPABILITIES
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.privileges import is_root
from waiting import becomes_readable

from . import Start
from .test_changes_random import image, walk  # noqa: F401 - a fixture
from .test_freeze import native

pytestmark = pytest.mark.ordinary
SOURCE = """
mkdir -p /data; cd /data; mkdir -p deep/er; for n in a b c; do echo $n > $n; echo $n > deep/$n; done
ln a hard; ln -s /data/b sym; mkfifo pipe; cp /usr/bin/id id; chmod 6755 id; chmod 600 c
"""
WRITE = r"""
import ctypes, fcntl, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/data")
tried = []
def attempt(work):
    try:
        work()
        tried.append(work.__name__)
    except OSError as error:
        print(work.__name__, error)
reading = [os.open(path, os.O_RDONLY) for path in ("a", "b", "deep/a", "deep/b")]
def opened_for_reading_then_written():
    for fd in reading:
        with open(f"/proc/self/fd/{fd}", "r+") as file: file.write("evil")
def mapped_for_reading_then_written():
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, 4096, 1, 1, reading[3], 0)
    if libc.mprotect(ctypes.c_void_p(at), 4096, 3): raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memset(at, 120, 2)
def by_another_root():
    for root in ("/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/thread-self/root"):
        try:
            with open(f"{root}/data/b", "a") as file: file.write("evil")
        except OSError as error: print(root, error)
def by_hard_links():
    os.link("a", "new"); os.link("deep/a", "/tmp/new")
    for name in ("new", "/tmp/new", "hard"):
        with open(name, "w") as file: file.write("evil")
def by_a_file_without_a_name():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b"evil"); os.unlink("deep/b")
    os.link(f"/proc/self/fd/{fd}", "deep/b", follow_symlinks=True)
def by_its_memory():
    at = libc.mmap(None, 4096, 1, 1, reading[1], 0)
    with open("/proc/self/mem", "r+b", 0) as memory:
        memory.seek(at)
        memory.write(b"evil")
def by_attributes():
    os.chmod("c", 0o777); os.utime("c", (0, 0)); os.truncate("c", 0); os.chmod("deep", 0o777)
    os.chown("deep/er", os.getuid(), os.getgid())
def by_extended_attributes():
    overlay = [f"{kind}.overlay.{name}" for kind in ("user", "trusted") for name in ("opaque", "x")]
    for name in (*overlay, "user.x"):
        for path in ("deep", "b"):
            try: os.setxattr(path, name, b"y")
            except OSError as error: print(name, error)
def by_flags():
    fcntl.ioctl(reading[0], 0x40086602, struct.pack("L", 0x10))
def by_cloning_over():
    with open("b", "r+b", 0) as file: os.copy_file_range(reading[0], file.fileno(), 2)
def by_a_lease():
    fcntl.fcntl(reading[2], fcntl.F_SETLEASE, fcntl.F_RDLCK)
def by_names():
    os.rename("b", "deep/c"); os.rmdir("deep/er"); os.unlink("sym"); os.unlink("pipe")
    os.mkdir("sym"); os.mknod("pipe")
def by_a_mount():
    if libc.mount(b"/data", b"/tmp", None, 4096, None): raise OSError(ctypes.get_errno(), "mount")
def by_a_handle():
    place = ctypes.create_string_buffer(struct.pack("Ii128x", 128, 0)); number = ctypes.c_int()
    if libc.name_to_handle_at(-100, b"/data/id", place, ctypes.byref(number), 0):
        raise OSError(ctypes.get_errno(), "handle")
    fd = libc.open_by_handle_at(reading[0], place, os.O_RDWR)
    if fd < 0: raise OSError(ctypes.get_errno(), "handle")
    os.write(fd, b"evil")
for work in [value for value in list(globals().values()) if callable(value)]:
    if getattr(work, "__module__", "") == "__main__" and work is not attempt: attempt(work)
print("tried", *tried)
"""
LEFT_IN_FLIGHT = """
import mmap, os, socket
file = os.open("/data/a", os.O_RDWR)
shared = mmap.mmap(file, 2)
for _ in range(9):  # each pair is held by nothing but a message to itself, with the open file
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [file, ours.fileno(), theirs.fileno()])
os.unlink("/data/b"); os.open("/data/c", os.O_RDWR | os.O_CREAT); os.open("/tmp", os.O_TMPFILE | 2)
print("ready", flush=True)
while True:
    shared[0] ^= 1; os.pwrite(file, b"x", 1)
"""


def python(sandbox: SandboxBackend, script: str) -> str:
    done = sandbox.exec(["python3", "-c", script], merge_stderr=True)
    assert done.ok, done.stdout
    return done.stdout.decode()


def furnished(start: Start, **limits: object) -> tuple[SandboxBackend, Snapshot]:
    source = native(start, **limits)
    assert source.exec(["bash", "-c", SOURCE]).ok
    assert isinstance(source, SupportsFork)
    return source, source.freeze()


@pytest.mark.defends("lateral")
@pytest.mark.parametrize("rights", [(), tuple(CAPABILITIES)], ids=["plain", "granted"])
def test_no_fork_writes_where_others_read(start: Start, rights: tuple[str, ...]) -> None:
    source, snapshot = furnished(start, capabilities=rights)
    one, other = (start(snapshot, capabilities=rights) for _ in range(2))
    seen = walk(other)
    said = python(one, WRITE).splitlines()[-1].split()
    expected = {"opened_for_reading_then_written", "by_hard_links", "by_attributes", "by_names"}
    assert expected <= {*said}, "it changes its own copies"
    never = {"by_a_mount", "by_a_handle", "mapped_for_reading_then_written", "by_its_memory"}
    assert not never & {*said}
    assert walk(one) != seen
    fresh = start(snapshot, capabilities=rights)
    assert walk(other) == walk(source) == walk(fresh) == seen
    assert other.changes() == source.changes() == fresh.changes()


@pytest.mark.defends("lateral")
def test_what_is_still_open_when_files_are_frozen(start: Start) -> None:
    """Descriptors in flight outlive their senders, until the kernel finds that nobody has them."""
    source, _ = furnished(start)
    program = source.popen(["python3", "-c", LEFT_IN_FLIGHT], channels={})
    assert becomes_readable(program.fds[1]) and os.read(program.fds[1], 9) == b"ready\n"
    snapshot = source.freeze()  # type: ignore[attr-defined]
    program.close()
    one = start(snapshot)
    seen = walk(one)
    assert "b" not in seen and walk(start(snapshot)) == walk(source) == seen
    assert one.exec(["bash", "-c", "echo one > /data/a"]).ok
    assert walk(source) == walk(start(snapshot)) == seen


@pytest.mark.defends("escape")
def test_set_user_id_files_of_a_frozen_layer(start: Start) -> None:
    _, snapshot = furnished(start)
    fork = start(snapshot)
    assert fork.exec(["stat", "-c", "%a", "/data/id"]).stdout == b"6755\n"
    assert "nosuid" in fork.exec(["grep", " / ", "/proc/mounts"]).stdout.decode()
    if is_root():
        assert fork.exec(["/data/id", "-u"], user="1234").stdout == b"1234\n"


@pytest.mark.defends("host leak")
def test_frozen_files_are_nowhere_on_the_machine(start: Start, provider: object) -> None:
    _, snapshot = furnished(start)
    fork = start(snapshot)
    assert isinstance(provider, NativeProvider)
    spawner = provider._spawner.process.pid  # type: ignore[union-attr]
    paths = "".join(Path(f"/proc/{pid}/mountinfo").read_text() for pid in ("self", spawner))
    assert "/f0" not in paths and "/u " not in paths
    assert not Path("/data/deep").exists()
    shown = fork.exec(["cat", "/proc/self/mountinfo"]).stdout.decode()
    assert str(cache_root()) not in shown and "/proc/" not in shown.split("lowerdir=")[-1]


@pytest.mark.skipif(not is_root(), reason="not for ordinary users: they have one id")
@pytest.mark.defends("lateral", "escape")
def test_frozen_files_belong_to_who_has_them(start: Start) -> None:
    """Each sandbox has ids of its own; frozen files have those of each fork in it, and no other."""
    source = native(start, capabilities=("chown",))
    own = "cd /srv; touch a b c; chown 7:8 a; chown 65534 b"
    assert source.exec(["bash", "-c", own]).ok
    forks = [start(source.freeze(), capabilities=("chown",)) for _ in range(2)]
    listed = ["stat", "-c", "%n %u %g", "/srv/a", "/srv/b", "/srv/c"]
    ranges = {one.exec(["cat", "/proc/self/uid_map"]).stdout for one in (source, *forks)}
    assert len(ranges) == 3
    for one in (source, *forks):
        assert one.exec(listed).stdout == b"/srv/a 7 8\n/srv/b 65534 0\n/srv/c 0 0\n"
    assert forks[0].exec(["chown", "9:9", "/srv/a", "/srv/c"]).ok
    assert forks[1].exec(listed).stdout.startswith(b"/srv/a 7 8\n")
