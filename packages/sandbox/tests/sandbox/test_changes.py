"""What `changes()` tells: every row of the table of what overlayfs leaves, and forgeries."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from intercode_sandbox import Change, SandboxBackend
from waiting import eventually

from . import Run, Start

pytestmark = pytest.mark.ordinary


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``/t`` over the host image: two folders, files, a link."""
    path = tmp_path_factory.mktemp("image") / "tree.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("t", "t/d", "t/d/e", "t/empty"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name in ("t/f", "t/g", "t/d/x", "t/d/y", "t/d/e/z"):
            member = tarfile.TarInfo(name)
            member.size, member.mode = 5, 0o644
            tar.addfile(member, io.BytesIO(b"data\n"))
        member = tarfile.TarInfo("t/link")
        member.type, member.linkname = tarfile.SYMTYPE, "f"
        tar.addfile(member)
        member = tarfile.TarInfo("t/hard")
        member.type, member.linkname = tarfile.LNKTYPE, "t/g"
        tar.addfile(member)
    return f"host+{path}"


@pytest.fixture
def sandbox(start: Start, image: str) -> SandboxBackend:
    return start(image)


def short(changes: list[Change]) -> list[str]:
    """``+file /t/x``; ``*`` for a change of mode or owner only."""
    kinds = {"added": "+", "deleted": "-", "modified": "~"}
    return [(kinds[c.kind] if c.content_changed else "*") + f"{c.type} {c.path}" for c in changes]


TABLE = {
    "": [],
    "cat t/f; ls -lR t; test -e t/d/x": [],
    "echo x > t/new": ["+file /t/new"],
    "echo x > t/d/e/new": ["+file /t/d/e/new"],
    "mkdir t/n; echo > t/n/f": ["+dir /t/n", "+file /t/n/f"],
    "echo more >> t/f": ["~file /t/f"],
    "printf 'DATA\\n' > t/f": ["~file /t/f"],
    "printf 'data\\n' > t/f": [],
    "touch t/f t/d; touch -d '1 Jan 2001' t/d/x": [],
    ": >> t/f": [],
    "perl -e 'open F, \"+<\", \"t/f\"'": [],
    "chmod 600 t/f": ["*file /t/f"],
    "chmod 600 t/f; chmod 644 t/f": [],
    "chmod 700 t/d": ["*dir /t/d"],
    "chmod 4755 t/f": ["*file /t/f"],
    "chmod 1777 t/empty": ["*dir /t/empty"],
    "rm t/f": ["-file /t/f"],
    "rm -r t/d": ["-dir /t/d", "-dir /t/d/e", "-file /t/d/e/z", "-file /t/d/x", "-file /t/d/y"],
    "rmdir t/empty; mkdir t/empty": [],
    "rm -r t/d; mkdir t/d": [
        "-dir /t/d/e", "-file /t/d/e/z", "-file /t/d/x", "-file /t/d/y"
    ],
    "rm -r t/d; mkdir -p t/d/e; echo data > t/d/x": ["-file /t/d/e/z", "-file /t/d/y"],
    "rm -r t/d; mkdir t/d; mkdir t/d/x; echo > t/d/x/n": [
        "-dir /t/d/e", "-file /t/d/e/z", "~dir /t/d/x", "+file /t/d/x/n", "-file /t/d/y"
    ],
    "rm -r t/d; echo > t/d": [
        "~file /t/d", "-dir /t/d/e", "-file /t/d/e/z", "-file /t/d/x", "-file /t/d/y"
    ],
    "rm t/f; mkdir t/f; echo > t/f/n": ["~dir /t/f", "+file /t/f/n"],
    "rm t/f; ln -s g t/f": ["~symlink /t/f"],
    "mv t/f t/n": ["-file /t/f", "+file /t/n"],
    "mv t/f t/n; mv t/n t/f": [],
    "mv t/empty t/n": ["-dir /t/empty", "+dir /t/n"],
    "mv t/d t/n": [
        "-dir /t/d", "-dir /t/d/e", "-file /t/d/e/z", "-file /t/d/x", "-file /t/d/y",
        "+dir /t/n", "+dir /t/n/e", "+file /t/n/e/z", "+file /t/n/x", "+file /t/n/y",
    ],
    "mv t/d t/n; mv t/n t/d": [],
    "mv t/f t/d/x": ["~file /t/d/x", "-file /t/f"][1:],
    "echo x > t/n; rm t/n": [],
    "mkdir -p t/n/m; rm -r t/n": [],
    "cp -p t/f t/n; mv t/n t/f": [],
    "ln t/f t/n": ["+file /t/n"],
    "ln t/f t/n; echo x > t/n": ["~file /t/f", "+file /t/n"],
    "echo x > t/g": ["~file /t/g"],
    "ln -sfn g t/link": ["~symlink /t/link"],
    "ln -sfn f t/link": [],
    "echo x > t/link": ["~file /t/f"],
    "rm t/link; cp t/f t/link": ["~file /t/link"],
    "mkfifo t/n": ["+fifo /t/n"],
    "perl -MSocket -e 'socket S,AF_UNIX,SOCK_STREAM,0; bind S,sockaddr_un(\"t/n\")'": [
        "+socket /t/n"
    ],
    "truncate -s 5 t/n": ["+file /t/n"],
    "mkdir t/n; chmod 0 t/n": ["+dir /t/n"],
    "mkdir t/n; echo x > t/n/f; chmod 0 t/n/f t/n": ["+dir /t/n", "+file /t/n/f"],
    "chmod 0 t/d": ["*dir /t/d"],
    "rm -r t/*; mkdir t/d": [
        "-dir /t/d/e", "-file /t/d/e/z", "-file /t/d/x", "-file /t/d/y",
        "-dir /t/empty", "-file /t/f", "-file /t/g", "-file /t/hard", "-symlink /t/link",
    ],
    "rm t/f; mv t/g t/f; mv t/d/x t/g": ["-file /t/d/x"],
}  # fmt: skip


@pytest.mark.parametrize("script", TABLE)
def test_each_way_to_change_something(sandbox: SandboxBackend, sh: Run, script: str) -> None:
    sh(f"cd /; {script}")
    assert short(sandbox.changes()) == TABLE[script]


def test_what_is_told_of_a_change(sandbox: SandboxBackend, sh: Run) -> None:
    sh("cd /t; umask 077; echo new > n; ln -s target s; echo x >> f; rm g; cp n n2")
    found = {change.path: change for change in sandbox.changes()}
    new, link, more, gone = (found[f"/t/{name}"] for name in "nsfg")
    assert (new.kind, new.type, new.mode, new.size) == ("added", "file", 0o600, 4)
    assert (new.uid, new.gid) == (0, 0)
    assert (link.type, link.size) == ("symlink", 6)
    assert (more.kind, more.size, more.mode) == ("modified", 7, 0o644)
    assert (gone.kind, gone.size, gone.mode, gone.digest) == ("deleted", 0, 0, "")
    assert new.digest == found["/t/n2"].digest
    assert len({new.digest, link.digest, more.digest, ""}) == 4


def test_the_names_of_a_file_are_counted(sandbox: SandboxBackend, sh: Run) -> None:
    sh("cd /t; echo 1 > one; echo 2 > two; ln two d/two; ln -s one s; mkdir n; rm f; chmod 600 g")
    links = {change.path.removeprefix("/t/"): change.links for change in sandbox.changes()}
    copied_up = int(sh("stat -c %h /t/g").stdout)  # differs between sandboxes
    assert links == {"one": 1, "two": 2, "d/two": 2, "s": 0, "n": 0, "f": 0, "g": copied_up}


def test_a_change_is_the_same_with_another_name(sandbox: SandboxBackend, sh: Run) -> None:
    sh("echo 1 > /t/one")
    (before,) = sandbox.changes()
    sh("ln /t/one /t/two")
    after, _ = sandbox.changes()
    assert (before.links, after.links) == (1, 2) and before == after


@pytest.mark.case(57)
def test_odd_names(sandbox: SandboxBackend) -> None:
    names = [b"new\nline", b"\xff\xfe", b" ", b"-rf", b"$(x)`\"'\\", b"n" * 255, b".wh.f"]
    for name in names:
        assert sandbox.exec(["touch", "--", b"/t/" + name]).ok
    found = [change.path.encode("utf-8", "surrogateescape") for change in sandbox.changes()]
    assert sorted(found) == sorted(b"/t/" + name for name in names)


@pytest.mark.case(64)
@pytest.mark.defends("host DoS")
def test_a_sparse_file_of_terabytes_costs_what_it_holds(start: Start, image: str) -> None:
    sandbox = start(image, disk=64 << 40)
    script = "truncate -s 8T /t/n; printf x | dd of=/t/n bs=1 seek=4T conv=notrunc; cp -p /t/f /t/z"
    assert sandbox.exec(["bash", "-c", script]).ok
    big = sandbox.changes()[0]
    assert (big.path, big.size) == ("/t/n", 8 << 40)
    assert sandbox.exec(["truncate", "-s", "64M", "/t/z"]).ok
    digest = sandbox.changes()[1].digest
    zeros = "head -c $((2**26-5)) /dev/zero | dd of=/t/z bs=1M oflag=seek_bytes seek=5 conv=notrunc"
    assert sandbox.exec(["bash", "-c", zeros]).ok
    assert sandbox.changes()[1].digest == digest, "a hole and zeros are the same content"


@pytest.mark.case(77)
@pytest.mark.defends("escape")
@pytest.mark.parametrize(
    "forgery",
    [
        "mknod /t/f2 c 0 0",
        "rm /t/f; mknod /t/f c 0 0",
        'perl -e \'syscall(188, "/t/d", "user.overlay.opaque", "y", 1, 0)\'',
        "setfattr -n user.overlay.opaque -v y /t/d",
        "setfattr -n trusted.overlay.opaque -v y /t/d",
        "setfattr -n user.overlay.whiteout -v y /t/g",
        "setfattr -n user.overlay.redirect -v /etc /t/d",
    ],
)
def test_marks_of_the_overlay_cannot_be_forged(
    sandbox: SandboxBackend, sh: Run, forgery: str
) -> None:
    """Whatever they do, changes are what a walk of the file system would find."""
    sh(forgery)
    seen = sh("cd /t; find . -printf '%p\\n' | sort").stdout.decode().split()
    told = {change.path: change.kind for change in sandbox.changes()}
    for name in ("f", "g", "d", "d/x", "d/y", "d/e", "d/e/z"):
        assert (told.get(f"/t/{name}") == "deleted") == (f"./{name}" not in seen), name
    assert "/t/f2" not in told


def test_shared_memory_is_files_too(start: Start, sandbox: SandboxBackend, sh: Run) -> None:
    sh("echo 1 > /dev/shm/a; mkdir /dev/shm/d; echo 2 > /dev/shm/d/b; chmod 700 /dev/shm")
    told = {change.path: change.kind for change in sandbox.changes()}
    assert told == dict.fromkeys(["/dev/shm/a", "/dev/shm/d", "/dev/shm/d/b"], "added")
    again = start(sandbox.snapshot())
    assert again.changes() == []
    assert again.read_file("/dev/shm/d/b") == b"2\n"
    assert again.exec(["rm", "-r", "/dev/shm/d"]).ok
    kinds = {change.path: change.kind for change in again.changes()}
    assert kinds == dict.fromkeys(["/dev/shm/d", "/dev/shm/d/b"], "deleted")


@pytest.mark.case(78)
@pytest.mark.defends("host leak", "host DoS")
def test_traps_in_the_upper_layer(sandbox: SandboxBackend, sh: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    sh(
        f"cd /t; rm -r d; ln -s {tmp_path} d; ln -s /proc/self/root loop; mkfifo fifo; "
        "mkdir deep; chmod 0 deep; rm f; mkfifo f; ln -s / g2"
    )
    told = {change.path: change.type for change in sandbox.changes()}
    assert told["/t/d"] == "symlink"
    assert told["/t/f"] == told["/t/fifo"] == "fifo"
    assert not [path for path in told if "secret" in path]


@pytest.mark.case(78)
@pytest.mark.defends("host DoS")
def test_deep_and_wide(sandbox: SandboxBackend, sh: Run) -> None:
    done = sh(
        "cd /t; perl -e 'for (1..2000) { mkdir \"n\" or die; chdir \"n\" or die }'; "
        "mkdir /t/wide; cd /t/wide; seq 3000 | xargs touch", timeout=60
    )  # fmt: skip
    assert done.ok, done
    told = sandbox.changes()
    assert sum(change.path.startswith("/t/wide/") for change in told) == 3000
    assert sum(change.path.startswith("/t/n") for change in told) >= 299


def test_a_writer_at_work_is_stopped_meanwhile(sandbox: SandboxBackend, sh: Run) -> None:
    sh("(while :; do echo x >> /t/f; done) >/dev/null 2>&1 &")
    grows = "until [ $(stat -c %s /t/f) -gt {} ]; do sleep 0.01; done"
    assert sh(grows.format(5), timeout=60).ok
    first, second = sandbox.changes(), sandbox.changes()
    assert short(first) == short(second) == ["~file /t/f"]
    size = sandbox.changes()[0].size
    assert sh(grows.format(size), timeout=60).ok, "it goes on afterwards"


def test_a_write_that_has_begun_is_told_of_when_it_is_done(sandbox: SandboxBackend) -> None:
    script = "my $x = 'x' x (32 << 20); open F, '>', '/t/n'; syswrite STDOUT, 'y'; syswrite F, $x"
    writer = sandbox.popen(["perl", "-e", script], channels={})
    assert os.read(writer.fds[1], 1) == b"y"
    found = sandbox.changes()
    assert eventually(lambda: writer.poll() is not None)
    writer.close()
    (done,) = sandbox.changes()
    assert done.size == 32 << 20
    assert found[0].size == 0 or found == [done], "there is nothing between"


def test_changes_outside_of_the_overlay_do_not_count(sandbox: SandboxBackend, sh: Run) -> None:
    sh("echo x > /dev/y; echo x > /proc/self/comm")
    assert sandbox.changes() == []


def test_attributes_are_neither_changes_nor_saved(
    start: Start, sandbox: SandboxBackend, sh: Run
) -> None:
    """As docs/sandbox/use.md says: a file that has an attribute is copied, and no change."""
    code = "import os; os.setxattr('/t/f', 'user.x', b'y'); os.setxattr('/t/g', 'user.x', b'y')"
    done = sh(f'echo new > /t/new; python3 -c "{code}"')
    if b"Operation not supported" in done.stderr:
        pytest.skip("not for this kernel: it has no such attributes in memory")
    assert done.ok, done.stderr
    assert short(sandbox.changes()) == ["+file /t/new"]
    look = ["python3", "-c", "import os; print(os.listxattr('/t/f'))"]
    assert sandbox.exec(look).stdout == b"['user.x']\n"
    snapshot = sandbox.snapshot()
    assert start(snapshot).exec(look).stdout == b"[]\n"
    snapshot.delete()
