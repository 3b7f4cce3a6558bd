"""Freezing: a sandbox and those started from what was frozen have the same files, and go apart."""

from __future__ import annotations

import pytest

from intercode.sandbox import Sandbox
from intercode.sandbox.base import Freezes

from . import Start
from .test_changes_random import image, walk  # noqa: F401 - a fixture
from .test_snapshot import STEPS, run


@pytest.fixture
def box(start: Start, image: str) -> Sandbox:  # noqa: F811 - the fixture
    return start(image)


def frozen(sandbox: Sandbox) -> Freezes:
    assert isinstance(sandbox, Freezes)
    return sandbox


def test_forks_and_source_are_equal_and_go_apart(start: Start, box: Sandbox) -> None:
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


def test_nothing_is_told_that_has_become_as_it_was(start: Start, box: Sandbox) -> None:
    run(box, "mv file away; rm -r dir/sub; echo > new")
    fork = start(frozen(box).freeze())
    run(fork, "mv away file; rm new")
    assert [(c.path, c.kind) for c in fork.changes()] == [
        (f"/data/dir/sub{name}", "deleted") for name in ("", "/a", "/sub")
    ]
    assert len(start(fork.snapshot()).changes()) == 0


def test_all_that_runs_is_ended_and_nothing_runs_until_it_is_asked_for(box: Sandbox) -> None:
    box.popen(["sleep", "1000"], channels={})
    frozen(box).freeze()
    assert (frozen(box).programs(), box.processes(), box.kill()) == ([], [], 0)
    assert run(box, "echo $$") != b""
    frozen(box).freeze()
    box.close()


def test_programs_are_listed_with_their_descriptors(box: Sandbox) -> None:
    script = "exec 7< /data/file 2> '/data/new\nline'; sleep 1000 & echo; wait"
    process = box.popen(["bash", "-c", script], channels={1: "w"}, merge_stderr=False)
    with open(process.fds[1], "rb", closefd=False) as out:
        out.readline()
    bash, sleep = frozen(box).programs()
    assert (bash.name, sleep.pid) == ("bash", max(bash.pid, sleep.pid))
    assert bash.descriptors[7] == sleep.descriptors[7] == "/data/file"
    assert bash.descriptors[2] == "/data/new\nline"
    assert bash.descriptors[1].startswith("pipe:")
