"""What an agent leaves on the machine's disk, and who walks over its files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode.errors import OutputLimitError, SandboxError
from intercode.sandbox import Provider, Sandbox
from intercode.sandbox.docker.sandbox import DockerSandbox
from intercode.sandbox.native import archive
from intercode.sandbox.native.provider import NativeProvider
from ordinary import ordinary_user
from waiting import PATIENCE

from . import Run, Start, not_for_docker
from .test_worker import MODULE, Ask, ask  # noqa: F401 - a fixture

pytestmark = pytest.mark.ordinary

SPECIAL = stat.S_ISUID | stat.S_ISGID


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of one's own in a place that every user of the machine can enter."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        monkeypatch.setenv("INTERCODE_CACHE", f"{name}/cache")
        yield Path(name, "cache")


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
            assert not stat.S_IMODE(folder.stat().st_mode) & 0o077
        if os.geteuid() == 0:
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
    with closing(NativeProvider()) as provider:
        provider.start().snapshot().delete()
    assert {p.name for p in cache.iterdir() if p.stat().st_mode & 0o077} == {"locks", "users"}


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
    assert int(two.exec(count).stdout) in (254, 298)
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


@pytest.mark.attack(38)
@pytest.mark.skipif(os.geteuid() != 0, reason="to mount is for root: once is enough")
def test_a_cache_for_reading_only(cache: Path) -> None:
    with closing(NativeProvider()) as provider:
        provider.start().close()
    program = (
        "from intercode.errors import InterCodeError\n"
        "from intercode.sandbox import get_provider\n"
        "try:\n    get_provider().start()\n"
        "except InterCodeError as error: print('told:', error)"
    )
    read_only = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", read_only, "-", str(cache), sys.executable, program],
        capture_output=True,
        text=True,
    )
    assert "told: cannot keep images in" in done.stdout, done.stderr


# -- who walks over it ---------------------------------------------------------------------------

DEEP = """
for (1 .. 290) { mkdir "x" x 250; chdir "x" x 250 or die }
for (1 .. 600) { open my $f, ">", $_ or die }
"""


@pytest.mark.attack(31)
@pytest.mark.defends("host DoS")
def test_long_paths_are_bounded(sandbox: Sandbox) -> None:
    assert sandbox.exec(["perl", "-e", DEEP], cwd="/tmp").ok
    with pytest.raises(OutputLimitError, match="MiB"):
        sandbox.changes()
    if isinstance(sandbox, DockerSandbox):  # saves what it has compared
        with pytest.raises(OutputLimitError, match="MiB"):
            sandbox.snapshot()
    else:
        sandbox.snapshot().delete()  # leaves out what has too long a name
    assert sandbox.exec(["rm", "-r", "/tmp"]).exit_code in (0, 1)


def test_many_paths_in_a_snapshot_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each could be named."""
    for backend in ("native", "docker"):  # a slow machine reaches the limit of time first
        monkeypatch.setattr(f"intercode.sandbox.{backend}.sandbox._FILES_SECONDS", PATIENCE)
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


@pytest.mark.attack(35)
def test_a_socket_with_two_names(start: Start, sandbox: Sandbox) -> None:
    script = "socket S, AF_UNIX, SOCK_STREAM, 0; bind S, sockaddr_un('s') or die; link 's', 'a'"
    assert sandbox.exec(["perl", "-MSocket", "-e", script], cwd="/root").ok
    again = start(sandbox.snapshot())
    assert again.exec(["ls", "/root"]).stdout == b""


@pytest.mark.parametrize(
    "members",
    [
        [("link", b"2", "/etc"), ("link/x", b"0", "")],
        [("x", b"0", ""), ("x", b"0", "")],
        [("../x", b"0", "")],
        [("/tmp/x", b"0", "")],
        [("d", b"5", ""), ("d/..", b"5", "")],
        [("link", b"2", "/etc/passwd"), ("x", b"1", "nothing")],
        [("x", b"1", "/etc/passwd")],
        [(".", b"5", "")],
    ],
)
def test_a_stream_leads_nowhere_else(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    """Whoever should have made it: what is there before is not written to."""
    folder = tmp_path / "layer"
    folder.mkdir()
    reader, writer = os.pipe()
    with open(writer, "wb") as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for name, kind, target in [(".", b"5", ""), *members]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    try:
        with pytest.raises((tarfile.TarError, OSError)):
            archive.extract(reader, folder, "user.overlay.opaque")
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


# -- links of /proc, and what a worker knows ------------------------------------------------------


def refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except OSError:
        return True
    return False


@pytest.mark.attack(30)
@pytest.mark.defends("host leak")
def test_no_link_leads_to_what_process_1_has(sandbox: Sandbox, sh: Run) -> None:
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


def test_a_mode_that_no_file_has(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="mode"):
        sandbox.write_file("/tmp/x", b"", 1 << 40)


def test_a_closed_sandbox_saves_nothing(start: Start) -> None:
    sandbox = start()
    sandbox.close()
    with pytest.raises(SandboxError):
        sandbox.snapshot()
