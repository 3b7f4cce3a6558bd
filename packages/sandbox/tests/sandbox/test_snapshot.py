"""Snapshots: what a sandbox that is started from one sees, and what is left of them."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from intercode_sandbox import Provider, SandboxBackend, Snapshot
from intercode_sandbox.base import SupportsFork
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.docker.sandbox import DockerSnapshot
from intercode_sandbox.errors import InterCodeError, SandboxError
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native import change_stream, wire
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.snapshot import NativeSnapshot
from open_resources import is_ours
from waiting import eventually

from . import Start, not_for_docker
from .test_changes_random import dug, image, walk  # noqa: F401 - a fixture

STEPS = {
    "nothing": "true",
    "new files": "echo x > new; mkdir -p p/q; echo y > p/q/r",
    "modified": "echo x >> file; printf 'A\\n' > dir/a",
    "deleted": "rm file link dir/a",
    "deleted tree": "rm -r dir",
    "everything deleted": "rm -r *",
    "opaque": "rm -r dir; mkdir dir; echo x > dir/new",
    "opaque and empty": "rm -r dir; mkdir dir",
    "opaque below": "rm -r dir/sub; mkdir dir/sub",
    "opaque below opaque": "rm -r dir; mkdir -p dir/sub/sub; echo x > dir/sub/n",
    "file to directory": "rm file; mkdir file; echo x > file/x",
    "directory to file": "rm -r dir; echo x > dir",
    "directory to symlink": "rm -r dir; ln -s bare dir",
    "symlinks": "ln -s /etc/passwd s; ln -s no t; ln -sfn dir link; ln -s $(printf %0999d 1) u",
    "hard links": "ln file f2; ln file dir/f3; echo x > n; ln n bare/n",
    "one of two hard links": "echo x > one",
    "modes": "chmod 4711 file; chmod 2770 dir; chmod 1777 bare; chmod 400 other",
    "fifo": "mkfifo -m 640 fifo; rm file; mkfifo file",
    "sizes": "truncate -s 5000000 hole; head -c 3000000 /dev/urandom > full; : > none",
    "odd names": "touch ' ' -- -n $'new\\nline' \"$(printf %0255d 1)\" é '*' '.wh.file'",
    "rename of a tree": "mv dir named; mv bare dir",
}  # fmt: skip


@pytest.fixture
def box(start: Start, image: str) -> SandboxBackend:  # noqa: F811 - the fixture
    return start(image)


def run(sandbox: SandboxBackend, script: str) -> bytes:
    done = sandbox.exec(["bash", "-ec", script], cwd="/data", timeout=60)
    assert done.ok, done.stderr
    return done.stdout


def links_and_times(sandbox: SandboxBackend) -> tuple[dict[str, int], dict[str, float]]:
    """The number of names of each file (of a folder, overlays tell this and that); all times."""
    lines = run(sandbox, "find . -printf '%p %y %n %T@\\n'").decode().splitlines()
    parts = [line.split() for line in lines]
    links = {p: int(n) for p, kind, n, _ in parts if kind != "d"}
    return links, {p: float(t) for p, _, _, t in parts}


@pytest.mark.parametrize("step", STEPS)
def test_a_sandbox_of_it_sees_all(start: Start, box: SandboxBackend, step: str) -> None:
    run(box, STEPS[step])
    seen, changed = walk(box), box.changes()
    again = start(box.snapshot())
    assert walk(again) == seen
    assert again.changes() == []
    assert box.changes() == changed, "saving changes nothing"


def test_closed_directories_and_files(start: Start, box: SandboxBackend) -> None:
    run(box, "mkdir shut; echo x > shut/x; chmod 000 shut/x shut; chmod 000 dir/a dir")
    again = start(box.snapshot())
    assert again.changes() == []
    assert run(again, "stat -c %a shut dir") == b"0\n0\n"
    assert run(again, "chmod 700 shut dir; stat -c %a shut/x dir/a") == b"0\n0\n"
    assert run(again, "chmod 600 shut/x; cat shut/x") == b"x\n"


def test_links_and_times(start: Start, box: SandboxBackend) -> None:
    run(box, "echo x > n; ln n m; touch -d @1234567890.5 n dir bare; touch -h -d @99 link")
    again = start(box.snapshot())
    (links, times), (saved_links, saved_times) = links_and_times(box), links_and_times(again)
    assert saved_links == links
    assert saved_times == times
    # Where it is a layer, as with the links of any image: a write breaks them.
    assert run(again, "echo y > n; cat m") in (b"x\n", b"y\n")


def test_links_to_files_of_the_image(start: Start, box: SandboxBackend) -> None:
    """Overlayfs shows such names with different inodes until the next lookup."""
    run(box, "ln -f other file; ln link second; ln file dir/third")
    again = start(box.snapshot())
    assert run(again, "[ other -ef file ] && [ file -ef dir/third ] && stat -c %h other") == b"3\n"
    assert run(again, "stat -c %h link second") == b"2\n2\n"


def test_files_that_an_engine_mounts(start: Start) -> None:
    """What was written to them is in every later copy, and a change after each freeze."""
    sandbox = start()
    assert sandbox.exec(["bash", "-c", "echo 192.0.2.1 one >> /etc/hosts"]).ok
    again = start(start(sandbox.snapshot()).snapshot())
    assert again.read_file("/etc/hosts") == sandbox.read_file("/etc/hosts")
    assert again.changes() == []
    changes = sandbox.changes()
    assert [change.path for change in changes] == ["/etc/hosts"]
    assert isinstance(sandbox, SupportsFork)
    sandbox.freeze()
    assert sandbox.changes() == changes


@pytest.mark.parametrize("blocks", range(20))
def test_saving_never_fails_by_chance(box: SandboxBackend, blocks: int) -> None:
    """A reader that has read the end must not close the pipe under a writer at work."""
    run(box, f"head -c {512 * blocks} /dev/urandom > new")
    for _ in range(10):
        box.snapshot().delete()


def test_why_saving_failed_is_told(
    provider: Provider, box: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_for_docker(provider, "it does not unpack what it saves")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run(box, "head -c 3000000 /dev/urandom > new")
    monkeypatch.setattr(change_stream, "extract", full)
    with pytest.raises(SandboxError, match="No space left"):
        box.snapshot()
    monkeypatch.undo()
    box.snapshot().delete()


def test_names_that_are_not_utf_8(start: Start, box: SandboxBackend) -> None:
    box.write_file("/data/\udcff\udc80", b"odd")
    again = start(box.snapshot())
    assert again.read_file("/data/\udcff\udc80") == b"odd"


ASCII = """
from contextlib import closing
from intercode_sandbox.native.provider import NativeProvider
with closing(NativeProvider()) as provider, closing(provider.start()) as box:
    make = "n=/tmp/$(printf '\\\\303\\\\251'); touch $n; ln -s $n /tmp/link"
    assert box.exec(["bash", "-c", make]).ok
    with closing(provider.start(box.snapshot())) as again:
        print(again.exec(["bash", "-c", "ls /tmp; readlink /tmp/link"]).stdout)
"""


def test_a_caller_of_another_encoding(provider: Provider) -> None:
    not_for_docker(provider, "it does not unpack what it saves")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ASCII], env=env, capture_output=True, timeout=200, check=True
    )
    assert done.stdout == rb"b'link\n\xc3\xa9\n/tmp/\xc3\xa9\n'" + b"\n"


@pytest.mark.parametrize("broken", [False, True])
def test_interrupted_twice(
    provider: Provider, box: SandboxBackend, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """By Ctrl-C, and once more while what was read so far is unpacked."""
    not_for_docker(provider, "it does not unpack what it saves")
    gc.collect()
    at_first = set(os.listdir("/proc/self/fd"))
    others = set((cache_root() / "snapshots").glob("*"))
    unpacking, interrupted = threading.Event(), threading.Event()
    extract = change_stream.extract

    def late(*arguments: Any) -> list[change_stream.Special]:
        unpacking.set()
        interrupted.wait()
        if broken:
            raise change_stream.ChangeStreamError
        return extract(*arguments)

    def interrupt(*_: object) -> None:
        unpacking.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(change_stream, "extract", late)
    monkeypatch.setattr(wire, "receive", interrupt)
    monkeypatch.setattr(threading.Thread, "join", interrupt)
    try:
        box.snapshot()
    except KeyboardInterrupt:
        monkeypatch.undo()
    [folder] = set((cache_root() / "snapshots").glob(f"{os.getpid()}-*")) - others
    [thread] = [t for t in threading.enumerate() if t.name == "intercode-snapshot"]
    interrupted.set()
    thread.join()
    del thread
    assert not folder.exists()
    assert set(os.listdir("/proc/self/fd")) <= at_first


@pytest.mark.attack(35)
def test_a_socket_is_a_file_too(start: Start, box: SandboxBackend) -> None:
    script = "socket S, AF_UNIX, SOCK_STREAM, 0; bind S, sockaddr_un('s') or die; link 's', 'a'"
    assert box.exec(["perl", "-MSocket", "-e", script], cwd="/data").ok
    again = start(box.snapshot())
    assert run(again, "test -S s && test -S a && stat -c %h s") == b"2\n"
    assert again.changes() == []


def test_processes_are_not_saved(start: Start, box: SandboxBackend) -> None:
    run(box, "setsid sleep 60 > /dev/null 2>&1 &")
    again = start(box.snapshot())
    assert again.processes() == []
    assert len(box.processes()) == 1, "it goes on"


def test_a_writer_at_work(start: Start, box: SandboxBackend) -> None:
    run(box, "(while :; do for i in 1 2 3 4 5; do date > $i; rm $i; done; done) >/dev/null 2>&1 &")
    for _ in range(5):
        assert set(walk(start(box.snapshot()))) - {f"./{n}" for n in range(1, 6)} >= {"./file"}
    box.kill()


def test_changes_and_snapshot_of_one_moment(start: Start, box: SandboxBackend) -> None:
    run(box, "(while :; do echo x >> grows; done) >/dev/null 2>&1 & until [ -s grows ]; do :; done")
    for _ in range(3):
        changes, saved = box.at_rest(lambda: (box.changes(), box.snapshot()))
        sizes = [change.size for change in changes if change.path == "/data/grows"]
        assert run(start(saved), "stat -c %s grows") == b"%d\n" % sizes[0]
    box.kill()


def test_the_two_are_independent(start: Start, box: SandboxBackend) -> None:
    run(box, "echo common > file; rm -r dir")
    saved = box.snapshot()
    one, two = start(saved), start(saved)
    run(box, "echo original > file; touch a")
    run(one, "echo one > file; mkdir dir; touch b")
    assert run(two, "cat file; ls -x") == b"common\nbare  empty  file  link  one  other  two  way\n"
    assert run(start(saved), "cat file") == b"common\n"
    assert [c.path for c in one.changes()] == ["/data/b", "/data/dir", "/data/file"]
    assert two.changes() == []
    assert run(box, "cat file") == b"original\n"


def test_a_snapshot_of_a_snapshot(start: Start, box: SandboxBackend) -> None:
    run(box, "rm -r dir; mkdir dir; echo 1 > dir/one; rm file; ln -s dir l")
    second = start(box.snapshot())
    run(second, "echo 2 > dir/two; echo back > file; rm dir/one; rm l; mkdir l; rm -r bare")
    third = start(second.snapshot())
    assert walk(third) == walk(second)
    assert third.changes() == []
    run(third, "rm -r dir; mkdir dir bare; echo 3 > dir/three; rm -r l; echo x > l")
    fourth = start(third.snapshot())
    assert walk(fourth) == walk(third)
    assert fourth.changes() == []
    assert set(walk(fourth)) & {"./dir/one", "./dir/two", "./dir/a"} == set()


def test_names_and_digests_tell_them_apart(provider: Provider, box: SandboxBackend) -> None:
    one = box.snapshot()
    run(box, "echo x > file")
    two = box.snapshot()
    assert one.name and provider.digest(one) == provider.digest(one)
    assert provider.digest(one) != provider.digest(two)


@pytest.mark.parametrize("depth", [250, 900])
def test_deep_nesting_is_saved_or_refused(start: Start, image: str, depth: int) -> None:  # noqa: F811
    sandbox = dug(start, image, depth)
    try:
        again = start(sandbox.snapshot())
    except InterCodeError:
        assert depth > 300
    else:
        assert again.exec(["rm", "-r", "/data/bare/n"]).ok
        assert {c.kind for c in again.changes()} == {"deleted"}
    assert sandbox.exec(["true"]).ok


# -- what is left --------------------------------------------------------------------------------


def folder_of(snapshot: Snapshot) -> Path:
    if isinstance(snapshot, DockerSnapshot):
        return snapshot.layer.folder
    return cast(NativeSnapshot, snapshot).image.layers[-1].parent


def mounts(provider: Provider) -> list[str]:
    """Those of ours that its spawner has, if it has one: a container has no layer of ours."""
    if isinstance(provider, DockerProvider):
        return []
    spawner = cast(NativeProvider, provider)._spawner
    assert spawner is not None
    lines = Path(f"/proc/{spawner.process.pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if is_ours(line)]


def is_mounted(folder: Path, provider: Provider) -> bool:
    return any(folder.name in line for line in mounts(provider))


def test_delete_is_idempotent_and_leaves_nothing(
    provider: Provider, start: Start, box: SandboxBackend
) -> None:
    run(box, "echo x > new; mkdir -p shut/in; chmod 000 shut/in shut")
    before = len(mounts(provider))
    saved = box.snapshot()
    folder = folder_of(saved)
    start(saved).close()
    assert folder.exists()
    assert is_mounted(folder, provider) or isinstance(provider, DockerProvider)
    saved.delete()
    saved.delete()
    assert not folder.exists()
    assert eventually(lambda: not is_mounted(folder, provider))
    assert eventually(lambda: len(mounts(provider)) == before)
    with pytest.raises((SandboxError, OSError)):
        start(saved)
    assert box.exec(["true"]).ok


def test_a_sandbox_outlives_the_deletion_of_its_snapshot(start: Start, box: SandboxBackend) -> None:
    run(box, "echo x > new; rm -r dir")
    saved = box.snapshot()
    folder = folder_of(saved)
    again = start(saved)
    saved.delete()
    assert run(again, "echo y >> /data/file; cat file new") == b"content\ny\nx\n"
    assert [c.path for c in again.changes()] == ["/data/file"]
    assert folder.exists()
    again.close()
    assert not folder.exists()


def test_a_snapshot_outlives_the_one_below(start: Start, box: SandboxBackend) -> None:
    run(box, "echo 1 > one")
    first = box.snapshot()
    middle = start(first)
    run(middle, "echo 2 > two")
    second = middle.snapshot()
    folder = folder_of(first)
    first.delete()
    middle.close()
    if isinstance(first, NativeSnapshot):  # of which the second is a layer more
        assert folder.exists()
    assert run(start(second), "cat one two") == b"1\n2\n"


def test_the_folder_goes_with_the_last_user(provider: Provider, image: str) -> None:  # noqa: F811
    box = provider.start(image)
    saved = box.snapshot()
    folder = folder_of(saved)
    again = provider.start(saved)
    box.close()
    del saved
    gc.collect()
    assert folder.exists(), "a sandbox was started from it"
    assert again.changes() == []
    again.close()
    del again
    gc.collect()
    assert not folder.exists()
    assert eventually(lambda: not is_mounted(folder, provider))


def test_many_snapshots_leave_no_mounts(provider: Provider, image: str) -> None:  # noqa: F811
    box = provider.start(image)
    before = len(mounts(provider))
    for _ in range(20):
        saved = box.snapshot()
        box.close()
        box = provider.start(saved)
        assert box.exec(["touch", f"/data/{time.monotonic_ns()}"]).ok
    box.close()
    del box, saved
    gc.collect()
    assert eventually(lambda: len(mounts(provider)) <= before)
