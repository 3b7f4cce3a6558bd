"""Freezing: a sandbox and those started from what was frozen have the same files, and go apart."""

from __future__ import annotations

import os
import weakref

import pytest

from intercode_sandbox import SandboxBackend
from intercode_sandbox.base import SupportsFork
from intercode_sandbox.docker.sandbox import DockerSandbox
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native import frozen_layers as frozen_layers
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.units import MIB
from waiting import eventually

from . import Start
from .test_changes_random import image, walk  # noqa: F401 - a fixture
from .test_snapshot import STEPS, run


@pytest.fixture
def box(start: Start, image: str) -> SandboxBackend:  # noqa: F811 - the fixture
    return start(image)


def frozen(sandbox: SandboxBackend) -> SupportsFork:
    assert isinstance(sandbox, SupportsFork)
    return sandbox


@pytest.mark.ordinary
def test_forks_and_source_are_equal_and_go_apart(start: Start, box: SandboxBackend) -> None:
    for name, step in STEPS.items():
        run(box, f"cp -a /data '/x {name}'; cd '/x {name}'\n{step}")
    run(box, STEPS["opaque"])
    run(box, "echo x > /dev/shm/x; truncate -s 500M /hole; chmod 000 bare")
    before, seen = box.changes(), walk(box)
    snapshot = frozen(box).freeze()
    fork = start(snapshot)
    assert walk(fork) == walk(box) == seen
    assert fork.changes() == box.changes() == before
    run(fork, "rm -r dir; mkdir -p dir/sub; echo fork > dir/sub/a; rm file; chmod 755 bare")
    changed = fork.changes()
    assert changed != before
    assert box.changes() == before, "the source sees nothing of it"
    run(box, "echo source > file")
    assert run(start(snapshot), "cat file") == b"content\n"
    again = start(frozen(fork).freeze())
    assert again.changes() == fork.changes() == changed
    assert run(again, "cat dir/sub/a; ls dir; ls file 2>&1 || true").startswith(b"fork\nsub\n")


def test_nothing_is_told_that_has_become_as_it_was(start: Start, box: SandboxBackend) -> None:
    run(box, "mv file away; rm -r dir/sub; echo > new")
    fork = start(frozen(box).freeze())
    run(fork, "mv away file; rm new")
    assert [(c.path, c.kind) for c in fork.changes()] == [
        (f"/data/dir/sub{name}", "deleted") for name in ("", "/a", "/sub")
    ]
    assert len(start(fork.snapshot()).changes()) == 0


def test_all_that_runs_is_ended_and_nothing_runs_until_it_is_asked_for(box: SandboxBackend) -> None:
    box.popen(["sleep", "1000"], channels={})
    frozen(box).freeze()
    assert (frozen(box).programs(), box.processes(), box.kill()) == ([], [], 0)
    assert run(box, "echo $$") != b""
    frozen(box).freeze()
    box.close()


def test_programs_are_listed_with_their_descriptors(box: SandboxBackend) -> None:
    script = "exec 7< /data/file 2> '/data/new\nline'; sleep 1000 & echo; wait"
    process = box.popen(["bash", "-c", script], channels={1: "w"}, merge_stderr=False)
    with open(process.fds[1], "rb", closefd=False) as out:
        out.readline()
    bash, sleep = frozen(box).programs()
    assert (bash.name, sleep.pid) == ("bash", max(bash.pid, sleep.pid))
    assert bash.descriptors[7] == sleep.descriptors[7] == "/data/file"
    assert bash.descriptors[2] == "/data/new\nline"
    assert bash.descriptors[1].startswith("pipe:")


def native(start: Start, **limits: object) -> NativeSandbox:
    sandbox = start("host", **limits)
    if not isinstance(sandbox, NativeSandbox) or isinstance(sandbox, DockerSandbox):
        pytest.skip("not for docker: containers are saved by a copy")
    return sandbox


def test_who_can_still_write_keeps_files_from_being_frozen(start: Start) -> None:
    """They are copied then: a frozen layer that somebody writes to would change its forks."""
    box = native(start)
    _, [fd] = box._request({"op": "create", "path": "/file", "mode": 0o644})
    try:
        fork = start(box.freeze())
        os.write(fd, b"late")
    finally:
        os.close(fd)
    assert fork.read_file("/file") == box.read_file("/file") == b""


def test_a_fork_bomb_and_a_tree_deeper_than_any_copy(start: Start) -> None:
    box = native(start)
    deep = "perl -e 'for (1..4096) { mkdir q(d); chdir q(d) } open F, q(>), q(end)'"
    assert box.exec(["bash", "-c", f"mkdir /deep; cd /deep; {deep}"]).ok
    box.write_file("/log", b"")
    bomb = "while :; do echo >> /log; done & f() { f | f & }; f"
    box.popen(["bash", "-c", bomb], channels={})
    assert eventually(lambda: box.read_file("/log"))  # with no process, of which none may be left
    fork = start(box.freeze())
    assert fork.processes() == box.processes() == []
    size = "wc -c < /log; find /deep | wc -l"
    same = [one.exec(["bash", "-c", size]).stdout for one in (fork, box, fork)]
    assert same[0] == same[1] == same[2] and same[0].endswith(b"\n4098\n")


@pytest.mark.ordinary
def test_frozen_files_count_for_the_disk_of_who_has_them(start: Start) -> None:
    box = native(start, disk=8 * MIB, files=400)
    assert not box.exec(["bash", "-c", "cat /dev/zero > /a; cat /dev/zero > /b"]).ok  # it is full
    fork = start(box.freeze(), disk=8 * MIB, files=400)
    script = "head -c 1M /dev/zero > /c"
    assert [one.exec(["bash", "-c", script]).ok for one in (fork, box)] == [False, False]
    many = "cd /tmp; for n in {1..300}; do : > $n || exit 1; done"
    box = native(start, files=400)
    assert box.exec(["bash", "-c", many]).ok
    box.freeze()
    assert not box.exec(["bash", "-c", f"mkdir /two; {many.replace('/tmp', '/two')}"]).ok


def test_many_generations_are_flattened(start: Start) -> None:
    box, layers = native(start), []
    for number in range(33):
        assert box.exec(["bash", "-c", f"echo {number} >> /log; rm -f /f*; : > /f{number}"]).ok
        snapshot = box.freeze()
        layers.append(len(box.files.frozen_layers))
    # Where a killed program lets go late, a copy is made earlier.
    assert max(layers) <= 30 and 0 in layers
    assert {change.path for change in start(snapshot).changes()} == {"/log", "/f32"}
    assert box.read_file("/log") == b"".join(b"%d\n" % number for number in range(33))


def test_a_process_has_a_bound(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    box = native(start)
    box.write_file("/x", b"x" * MIB)
    monkeypatch.setenv(frozen_layers.MAX_BYTES_VARIABLE, str(MIB // 2))
    with pytest.raises(
        SandboxError, match=f"Close or delete some, or set {frozen_layers.MAX_BYTES_VARIABLE}"
    ):
        box.freeze()
    assert box.read_file("/x", 2 * MIB) == b"x" * MIB
    monkeypatch.setenv(frozen_layers.MAX_BYTES_VARIABLE, "much")
    with pytest.raises(SandboxError, match="must be a number of bytes, not 'much'"):
        box.freeze()


def test_a_frozen_layer_goes_with_its_last_user() -> None:
    provider = NativeProvider()
    try:
        box = provider.start()
        box.write_file("/x", b"x")
        snapshot = box.freeze()
        fork = provider.start(snapshot)
        held = weakref.ref(box.files.frozen_layers[0])
        snapshot.delete()
        box.close()
        assert fork.read_file("/x") == b"x" and held() is not None
        again = fork.freeze()
        fork.close()
        assert held() is not None
        again.delete()
        assert held() is None
        with pytest.raises(SandboxError, match="was deleted"):
            provider.start(again)
    finally:
        provider.close()


def test_files_that_went_with_their_spawner_are_missed(start: Start) -> None:
    provider = NativeProvider()
    try:
        box = provider.start()
        snapshot = box.freeze()
        provider.close()
        with pytest.raises(SandboxError, match="a spawner that has ended"):
            provider.start(snapshot)
    finally:
        provider.close()
