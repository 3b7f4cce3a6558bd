"""What an agent leaves on the machine's disk, and who walks over its files."""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.base import FreeSpace, SupportsFreeSpace
from intercode_sandbox.docker.sandbox import DockerSnapshot
from intercode_sandbox.errors import OutputLimitError, SandboxError
from intercode_sandbox.native import change_stream
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.snapshot import NativeSnapshot
from intercode_sandbox.privileges import is_root, needs_stand_in
from intercode_sandbox.units import MIB
from ordinary import ordinary_user
from restless import ENDING, RESTLESS
from sandbox import rootfs
from waiting import PATIENCE, eventually

from . import Run, Start, not_for_docker
from .test_worker import MODULE, Ask, ask  # noqa: F401 - a fixture
from .walk_oracle import END_OF_STREAM, packed

pytestmark = pytest.mark.ordinary

SPECIAL = stat.S_ISUID | stat.S_ISGID
OF_OTHERS = 0o067 if needs_stand_in() else 0o077


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of one's own in a place that every user of the machine can enter."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        monkeypatch.setenv("INTERCODE_CACHE", f"{name}/cache")
        yield Path(name, "cache")


# -- free space ----------------------------------------------------------------------------------


def test_free_space_is_what_programs_may_write(sandbox: SandboxBackend, sh: Run) -> None:
    """Whatever program of the name ``stat`` the sandbox has."""
    assert isinstance(sandbox, SupportsFreeSpace)

    def by_program() -> FreeSpace:
        blocks, size, files, free = map(int, sh("stat -f -c '%a %S %c %d' /").stdout.split())
        return FreeSpace(blocks * size, free if files else None)

    before = sandbox.free_space()
    sh("head -c 64M /dev/urandom > /x; sync")
    after = sandbox.free_space()
    assert before.bytes - after.bytes > 32 * MIB
    # Beside a container, others write to the same disk.
    assert eventually(lambda: sandbox.free_space() == by_program())
    sh("printf '#!/bin/sh\necho 1 1 1 1' > /usr/local/bin/stat; chmod 755 /usr/local/bin/stat")
    assert sandbox.free_space().bytes > MIB


# -- other users ---------------------------------------------------------------------------------


@pytest.mark.attack(2)
@pytest.mark.defends("escape")
def test_nobody_else_reaches_what_is_saved(cache: Path) -> None:
    with closing(NativeProvider()) as provider:
        sandbox = provider.start()
        script = "cp /bin/true /t; chmod 6755 /t; chmod 0777 /; mkdir -m 2777 /d; echo x > /d/f"
        assert sandbox.exec(["bash", "-c", script]).ok
        saved = sandbox.snapshot()
        layer = saved.image.layers[-1]
        kept = [path for path in layer.rglob("*") if path.is_file()]
        assert {path.name for path in kept} == {"t", "f"}
        assert not any(path.lstat().st_mode & SPECIAL for path in kept)
        for folder in (cache / "images", cache / "snapshots", layer.parent):
            assert not stat.S_IMODE(folder.stat().st_mode) & OF_OTHERS
        if is_root():
            with ordinary_user() as user:
                look = [*user.prefix, "cat", str(layer / "d/f")]
                done = subprocess.run(look, env=user.env, capture_output=True, text=True)
            assert "Permission denied" in done.stderr
        again = provider.start(saved)
        assert again.exec(["stat", "-c", "%a", "/t", "/d"]).stdout == b"6755\n2777\n"
        assert again.changes() == []


@pytest.mark.attack(2)
def test_a_cache_of_before_is_closed(cache: Path) -> None:
    for name in ("images", "snapshots"):
        (cache / name).mkdir(parents=True, mode=0o755)
    with closing(NativeProvider()) as provider, closing(provider.start()) as sandbox:
        sandbox.snapshot().delete()
    assert {p.name for p in cache.iterdir() if p.stat().st_mode & OF_OTHERS} == {"locks", "users"}


def test_modes_that_a_disk_must_not_have_are_given_back(start: Start) -> None:
    """Also through layers over layers, and but for those of too many files."""
    sandbox = start()
    make = "for i in {1..300}; do echo $i > /root/$i; done; chmod 4711 /root/*; chown 5:6 /root/1"
    chown = (os.geteuid() == 0 and "chmod 4711 /root/1") or ":"
    assert sandbox.exec(["bash", "-c", f"{make} 2>/dev/null; {chown}"]).ok
    count = ["bash", "-c", "find /root -perm 4711 | wc -l"]
    one = start(sandbox.snapshot())
    assert int(one.exec(count).stdout) in (256, 300)  # a container's are kept in a stream
    assert one.changes() == []
    assert one.exec(["bash", "-c", "rm /root/1; chmod 755 /root/2; stat -c %a /root"]).ok
    two = start(one.snapshot())
    assert not two.exec(["ls", "/root/1"]).ok
    assert two.exec(["stat", "-c", "%a", "/root/2", "/root"]).stdout == b"755\n700\n"
    assert int(two.exec(count).stdout) in (254, 255, 256, 298)  # whether 1 and 2 were kept
    assert two.changes() == []


def test_such_files_are_no_reason_not_to_start(start: Start) -> None:
    """However many, large, or hard to get to they are."""
    sandbox = start(disk=8 << 20, files=600)
    pipe = "mkdir /a; cd /a; mkfifo p; chmod 6755 p"
    make = f"{pipe}; for i in {{1..400}}; do echo > $i; chmod 4711 $i; done; chmod 0 /a"
    big = "for i in {1..6}; do head -c 1000000 /dev/zero > /root/$i; chmod 4755 /root/$i; done"
    odd = "mkdir /root/$'\\xff'; echo > /root/$'\\xff'/$'\\n'; chmod 2755 /root/$'\\xff'/$'\\n'"
    assert sandbox.exec(["bash", "-c", f"{make}; {big}; {odd}"]).ok
    again = start(sandbox.snapshot(), disk=8 << 20, files=600)
    assert again.exec(["bash", "-c", "chmod 700 /a; ls /a | wc -l"]).stdout == b"401\n"
    count = int(
        again.exec(["find", "/root", "-type", "f", "-size", "1000000c"]).stdout.count(b"\n")
    )
    assert count == 6


def test_closed_folders_are_removed_with_their_snapshot(start: Start, cache: Path) -> None:
    sandbox = start()
    make = "mkdir -p /tmp/a/b; echo x > /tmp/a/b/c; chmod 000 /tmp/a/b/c /tmp/a/b /tmp/a /tmp"
    assert sandbox.exec(["bash", "-c", make]).ok
    sandbox.snapshot().delete()
    assert not list((cache / "snapshots").iterdir())


@pytest.mark.attack(38)
@pytest.mark.skipif(not is_root(), reason="to mount is for root: once is enough")
def test_a_cache_for_reading_only(cache: Path) -> None:
    with closing(NativeProvider()) as provider:
        provider.start().close()
    program = (
        "from intercode_sandbox.errors import InterCodeError\n"
        "from intercode_sandbox import get_provider\n"
        "try:\n    get_provider().start()\n"
        "except InterCodeError as error: print('told:', error)"
    )
    read_only = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", read_only, "-", str(cache), sys.executable, program],
        capture_output=True,
        text=True,
    )
    assert "told: cannot store images in" in done.stdout, done.stderr


# -- who walks over it ---------------------------------------------------------------------------

DEEP = """
for (1 .. 290) { mkdir "x" x 250; chdir "x" x 250 or die }
for (1 .. 600) { open my $f, ">", $_ or die }
"""


@pytest.mark.attack(31)
@pytest.mark.defends("host DoS")
def test_long_paths_are_bounded(sandbox: SandboxBackend) -> None:
    assert sandbox.exec(["perl", "-e", DEEP], cwd="/tmp").ok
    with pytest.raises(OutputLimitError, match="MiB"):
        sandbox.changes()
    with pytest.raises(OutputLimitError, match="3072 bytes"):
        sandbox.snapshot()
    assert sandbox.exec(["rm", "-r", "/tmp"]).exit_code in (0, 1)


def test_many_paths_in_a_snapshot_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each could be named."""
    for backend in ("native", "docker"):  # a slow machine reaches the limit of time first
        monkeypatch.setattr(f"intercode_sandbox.{backend}.sandbox._FILES_SECONDS", PATIENCE)
    sandbox = start(files=20_000)
    script = """
    for (1 .. 11) { mkdir "x" x 250; chdir "x" x 250 or die }
    for (1 .. 15_000) { open my $f, ">", $_ or die }
    """
    assert sandbox.exec(["perl", "-e", script], cwd="/tmp").ok
    with pytest.raises(OutputLimitError, match="MiB"):
        sandbox.snapshot()
    with pytest.raises(OutputLimitError, match="MiB"):
        sandbox.changes()


@pytest.mark.defends("self DoS")
def test_a_file_with_many_names_is_read_once(start: Start) -> None:
    sandbox = start()
    make = "head -c 200M /dev/urandom > a; perl -e 'link q(a), $_ or die for 1 .. 2000'"
    assert sandbox.exec(["bash", "-c", make], cwd="/root", timeout=PATIENCE).ok
    found = [change for change in sandbox.changes() if change.type == "file"]
    assert len(found) == 2001
    assert len({change.digest for change in found}) == 1


HOLED = """
for my $n (1 .. 20) {
    open my $f, ">", $n or die;
    for (0 .. 11) { sysseek $f, ($_ << 20) + 5000, 0; syswrite $f, $n or die }
}
"""


@pytest.mark.defends("host DoS")
def test_holes_take_no_room(start: Start) -> None:
    """Neither where a sandbox's files are saved, nor on the way there."""
    sandbox = start(disk=16 << 20)
    assert sandbox.exec(["perl", "-e", HOLED], cwd="/root").ok
    assert sandbox.exec(["bash", "-c", "truncate -s 16M /root/big{1..3000}"]).ok
    saved = sandbox.snapshot()
    if isinstance(saved, NativeSnapshot):
        files = saved.image.layers[-1].rglob("*")
        assert sum(file.lstat().st_blocks * 512 for file in files if file.is_file()) < 4 << 20
    else:
        assert (cast(DockerSnapshot, saved).layer.folder / "layer").stat().st_size < 4 << 20
    look = "cat /root/{1..20} | md5sum; ls /root | wc -l; stat -c %s /root/big3000"
    assert start(saved, disk=16 << 20).exec(["bash", "-c", look]) == sandbox.exec(
        ["bash", "-c", look]
    )


@pytest.mark.parametrize(
    "entries",
    [
        [("link", "symlink", "/etc"), ("link/x", "file", "")],
        [("x", "fifo", ""), ("x", "fifo", "")],
        [("../x", "fifo", "")],
        [("/tmp/x", "fifo", "")],
        [("d", "dir", ""), ("d/..", "dir", "")],
        [("link", "symlink", "/etc/passwd"), ("x", "link", "nothing")],
        [("x", "link", "/etc/passwd")],
        [(".", "dir", "")],
        [("x", "device", "")],
    ],
)
def test_a_stream_leads_nowhere_else(tmp_path: Path, entries: list[tuple[str, str, str]]) -> None:
    """Whoever should have made it: what is there before is not written to."""
    named = [
        change_stream.ChangeStreamEntry(path, kind, target=to)
        for path, kind, to in [(".", "dir", ""), *entries]
    ]
    stream = b"".join(map(packed, named)) + END_OF_STREAM
    with pytest.raises((change_stream.ChangeStreamError, OSError)):
        extracted(stream, tmp_path / "layer")
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


def extracted(stream: bytes, folder: Path) -> None:
    folder.mkdir()
    fd = os.memfd_create("stream")
    try:
        os.pwrite(fd, stream, 0)
        change_stream.extract(fd, folder, "user.overlay.opaque")
    finally:
        os.close(fd)


def pieces(*parts: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("=QQ", at, len(data)) + data for at, data in parts)


START = packed(change_stream.ChangeStreamEntry(".", "dir", 0o755))
FILE = packed(change_stream.ChangeStreamEntry("f", "file", mode=0o644, size=8))
END = bytes(16) + END_OF_STREAM


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        START,
        START + FILE,
        START + FILE + pieces((0, b"1234"))[:-1],
        START + FILE + pieces((0, b"1234")),
        START + FILE + pieces((0, b"1234"), (2, b"34")) + END,
        START + FILE + pieces((4, b"12345")) + END,
        START + FILE + struct.pack("=QQ", 0, 1 << 60) + END,
        START + b"\1" + FILE[1:-1],
        START + b"\5" + FILE[1:] + END,
        START
        + change_stream.HEAD.pack(0, 0o100644, 0, 0, 0, 0, 0, 1 << 20, 0)
        + bytes(1 << 20)
        + END,
        START
        + change_stream.HEAD.pack(0, 0o120777, 0, 0, 0, 0, 0, 1, 1 << 20)
        + bytes(1 << 20)
        + END,
        START + packed(change_stream.ChangeStreamEntry("f", "unknown", size=8)) + END,
        b"x" * 200_000,
    ],
)
def test_a_broken_stream_is_told(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(change_stream.ChangeStreamError):
        extracted(stream, tmp_path / "layer")


def test_a_whole_stream(tmp_path: Path) -> None:
    extracted(START + FILE + pieces((0, b"12"), (4, b"56")) + END, tmp_path / "layer")
    assert (tmp_path / "layer/f").read_bytes() == b"12\0\x0056\0\0"


TIMES = """
my $n = `uname -m` =~ /x86/ ? 280 : 88;
sub at { my ($path, $s) = @_; $path .= ""; syscall($n, -100, $path, pack("qqqq", 5, 0, $s, 0), 0) }
at("/tmp/w/m", (1 << 63) - 1); at("/tmp/w/d", (1 << 63) - 1); at("/tmp/w/n", -(1 << 62));
"""


def test_times_that_nobody_else_has(start: Start) -> None:
    sandbox = start()
    make = "mkdir -p /tmp/w/d; cd /tmp/w; touch a m n z d/f; chmod 751 d; chmod 4755 d/f"
    assert sandbox.exec(["bash", "-c", make]).ok
    assert sandbox.exec(["perl", "-e", TIMES]).ok
    again = start(sandbox.snapshot())
    found = again.exec(
        ["stat", "-c", "%n %a", *(f"/tmp/w/{n}" for n in ("a", "m", "z", "d", "d/f"))]
    )
    assert found.stdout.split()[1::2] == [b"644", b"644", b"644", b"751", b"4755"]


def test_whatever_fails_a_snapshot_is_not_whole(
    start: Start, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_for_docker(provider, "its containers keep the stream")

    def fail(*_: object) -> None:
        raise OverflowError

    sandbox = start()
    sandbox.write_file("/x", b"")
    monkeypatch.setattr("intercode_sandbox.native.change_stream._LayerExtractor.set", fail)
    with pytest.raises(SandboxError, match="could not be saved"):
        sandbox.snapshot()


def test_more_names_than_a_disk_can_hold(
    start: Start, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on ext4 has 65,000 at most, one in memory as many as one likes."""
    not_for_docker(provider, "its containers keep the stream")

    def full(*_: object, **options: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    sandbox = start()
    assert sandbox.exec(["bash", "-c", "echo x > /root/a; ln /root/a /root/b"]).ok
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OutputLimitError, match="more hard links"):
        sandbox.snapshot()


def beside(start: Start, program: str, size: str) -> SandboxBackend:
    """A sandbox in which a program runs, and with a file that takes a while to be read."""
    sandbox = start()
    running = sandbox.popen(["python3", "-c", program], channels={})
    assert os.read(running.fds[1], 100) == b"ready\n"
    assert sandbox.exec(["bash", "-c", f"head -c {size} /dev/zero > /tmp/big"]).ok
    return sandbox


def test_a_program_that_does_not_stand_still(start: Start) -> None:
    sandbox = beside(start, RESTLESS, "100M")
    found = []
    assert eventually(lambda: found.append(sandbox.changes()) or sandbox.processes() == [])
    for changes in found:  # whether it went on is chance: then it was ended
        assert [change.path for change in changes] == ["/tmp/big", "/tmp/n"]


def test_programs_that_end_while_they_stand_still(start: Start) -> None:
    """Ended by timers of theirs, of which some are always due."""
    sandbox = beside(start, ENDING, "50M")
    for _ in range(3):
        assert [change.path for change in sandbox.changes()] == ["/tmp/big"]
        sandbox.snapshot().delete()


# -- links of /proc, and what a worker knows ------------------------------------------------------


def refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except OSError:
        return True
    return False


@pytest.mark.attack(30)
@pytest.mark.defends("host leak")
def test_no_link_leads_to_what_process_1_has(sandbox: SandboxBackend, sh: Run) -> None:
    names = ("fd", "cwd", "root", "exe", "maps", "mem", "environ", "cmdline", "task/1/fd")
    for name in names:
        assert sh(f"ln -s /proc/self/{name} /tmp/{name.replace('/', '-')}").ok
    for place in ("/tmp/fd", "/proc/self/fd", "/tmp/task-1-fd"):
        for number in range(32):
            path = f"{place}/{number}"
            assert refused(lambda path=path: sandbox.read_file(path))
            assert refused(lambda path=path: sandbox.read_file(f"{path}/etc/passwd"))
            assert refused(lambda path=path: sandbox.write_file(f"{path}/f/f", b"x"))
            assert refused(lambda path=path: sandbox.exec(["true"], cwd=path))
    for name in ("maps", "environ", "cmdline", "exe", "mem"):
        assert refused(lambda name=name: sandbox.read_file(f"/tmp/{name}"))
        assert refused(lambda name=name: sandbox.write_file(f"/tmp/{name}", b"x"))
    assert refused(lambda: sandbox.write_file("/tmp/cwd/tmp/f", b"x"))
    assert b"MemTotal" in sandbox.read_file("/proc/meminfo")
    with pytest.raises(OSError, match="denied"):  # the reader's own, who is outside
        sandbox.read_file("/proc/sys/kernel/hostname")
    sh("mkdir /tmp/real; ln -s /tmp/real /tmp/link")
    sandbox.write_file("/tmp/link/new/folder/f", b"x")
    assert sh("cat /tmp/real/new/folder/f").stdout == b"x"
    assert sandbox.exec(["pwd"], cwd="/tmp/link").stdout == b"/tmp/real\n"


@pytest.mark.attack(30)
@pytest.mark.defends("host leak")
def test_a_worker_knows_no_path_of_the_hosts(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Ask,  # noqa: F811
) -> None:
    """Neither by its objects nor by the frames that it was called from."""
    path = (str(Path(__file__).parent),)
    with tempfile.TemporaryDirectory(dir=cache.parent) as work:
        monkeypatch.chdir(work)
        with closing(NativeProvider(preload=(MODULE,), path=path)) as provider:
            for _ in range(3):  # one may be ready ahead
                sandbox = provider.start()
                probe = ask(sandbox)
                for name in (cache.parent.name, Path(work).name):
                    assert probe(f"mentions({name[:-2]!r}, {name[-2:]!r})") == []


def test_a_worker_is_asked_well(provider: Provider, ask: Ask) -> None:  # noqa: F811
    """Or the test above would find nothing in any case."""
    not_for_docker(provider, "it is about the probe")
    with closing(NativeProvider(preload=(MODULE,), path=(str(Path(__file__).parent),))) as own:
        probe = ask(own.start())
        assert probe("[globals().update(hidden={1: ['found-it']}), mentions('foun', 'd-it')][1]")


def test_a_mode_that_no_file_has(sandbox: SandboxBackend) -> None:
    with pytest.raises(ValueError, match="mode"):
        sandbox.write_file("/tmp/x", b"", 1 << 40)


def test_a_closed_sandbox_saves_nothing(start: Start) -> None:
    sandbox = start()
    sandbox.close()
    with pytest.raises(SandboxError):
        sandbox.snapshot()


def test_scripts_of_linkers_beside_special_modes_in_a_private_sandbox(tmp_path: Path) -> None:
    """The names of both kinds of copies differ, whatever the number of a layer is."""
    folders = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib/i386-linux-gnu")
    script = "GROUP ( /lib/x.so.6  AS_NEEDED ( /lib64/ld-linux-x86-64.so.2 ) )"
    scripts = {f"usr/{name}/libc.so": script for name in (*folders, "lib64", "lib", "lib32")}
    with tarfile.open(rootfs.write(tmp_path / "root.tar", more=scripts)) as archive:
        archive.extractall(tmp_path / "root", filter="fully_trusted")
    with (
        closing(NativeProvider()) as provider,  # the numbers of its layers begin at 1
        closing(provider.start(str(tmp_path / "root"))) as sandbox,
    ):
        assert sandbox.exec(["sh", "-c", "echo > /root/a; chmod 4711 /root/a"]).ok
        snapshot = sandbox.snapshot()
        with closing(provider.start(snapshot, Limits(private=True))) as copy:
            assert copy.exec(["find", "/root", "-perm", "4711"]).stdout == b"/root/a\n"
            for path in scripts:
                assert b"/dev/loader0" in copy.read_file(f"/{path}")
        snapshot.delete()
