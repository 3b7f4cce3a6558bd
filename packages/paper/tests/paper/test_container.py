"""Our ``git status --short``, against git itself over random trees and random changes."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode_paper.container_images import (
    IGNORED_NAMES,
    TrackedFileIndex,
    format_short,
    is_visible_to_git,
    parse_pairs,
    quote_path,
    status,
)
from intercode_sandbox.base import Change

NAMES = ["a", "b.txt", "c d", "é", 'q"', "-x", "new\nline", "usr", "back\\slash", "tab\t", "\udcff"]
names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
steps = st.tuples(
    st.sampled_from(["write", "append", "delete", "mkdir", "symlink", "chmod", "fifo", "rename"]),
    paths,
    paths,
)


def kind_of(mode):
    for test, kind in (
        (stat.S_ISDIR, "dir"),
        (stat.S_ISLNK, "symlink"),
        (stat.S_ISREG, "file"),
        (stat.S_ISFIFO, "fifo"),
    ):
        if test(mode):
            return kind
    raise AssertionError(mode)


def tree(root):
    """Path → (type, mode, content), of all below `root` but the repository's own files."""
    found = {}
    for folder, directories, files in os.walk(root):
        if Path(folder) == root:
            directories.remove(".git")
        for name in directories + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            kind = kind_of(status.st_mode)
            content = b""
            if kind == "file":
                content = Path(path).read_bytes()
            elif kind == "symlink":
                content = os.fsencode(os.readlink(path))
            key = "/" + os.path.relpath(path, root)
            found[key] = (kind, stat.S_IMODE(status.st_mode), content)
    return found


def changes_between(before, after):
    """What a sandbox would say."""
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            yield Change(path, "deleted", before[path][0])
        elif path not in before:
            yield Change(path, "added", after[path][0], after[path][1])
        elif before[path] != after[path]:
            (_, _, one), (kind, mode, two) = before[path], after[path]
            replaced = one != two or before[path][0] != kind
            yield Change(path, "modified", kind, mode, content_changed=replaced)


def apply(root, step):
    verb, first, second = step
    path, other = os.path.join(root, first), os.path.join(root, second)
    try:
        if verb in ("write", "append"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            how = os.O_APPEND if verb == "append" else os.O_TRUNC
            # Not to wait for a pipe's reader.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how, 0o644)
            os.write(file, second.encode("utf-8", "surrogateescape"))
            os.close(file)
        elif verb == "delete":
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(
                path
            )
        elif verb == "mkdir":
            os.makedirs(path, exist_ok=True)
        elif verb == "symlink":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(second, path)
        elif verb == "chmod" and not os.path.islink(path):
            os.chmod(path, 0o755 if len(second) % 2 else 0o644)
        elif verb == "fifo":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkfifo(path)
        elif verb == "rename":
            os.rename(path, other)
    except OSError:
        pass  # not every random step can be done


def git(root, *words):
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C"}
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *words]
    return subprocess.run(
        command, cwd=root, env=environment, check=True, capture_output=True
    ).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the reference")
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(steps, max_size=8), st.lists(steps, max_size=10))
def test_as_git_says(tmp_path_factory, made, done):
    root = tmp_path_factory.mktemp("tree")
    git(root, "init", "-q")
    # As in the images, with the names of the system's directories ignored at the top.
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/exclude").write_text("".join(f"/{n}\n" for n in IGNORED_NAMES))
    for step in made:
        apply(root, step)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "x")
    before = tree(root)
    for step in done:
        apply(root, step)
    after = tree(root)

    index = TrackedFileIndex(
        {
            path[1:]: (kind, kind == "file" and bool(mode & 0o100))
            for path, (kind, mode, _) in before.items()
            if kind in ("file", "symlink") and is_visible_to_git(path[1:])
        }
    )
    ours = format_short(status(index, changes_between(before, after)))
    assert ours == git(root, "status", "--short").decode("ascii")
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("plain-name_1.txt", "plain-name_1.txt"),
        ("a b", '"a b"'),
        ('a"b', r'"a\"b"'),
        ("a\\b", r'"a\\b"'),
        ("Icon\r", r'"Icon\r"'),
        ("é", r'"\303\251"'),
        ("\udcff", r'"\377"'),
        ("\x01", r'"\001"'),
    ],
)
def test_quoted(path, written):
    assert quote_path(path) == written


def test_a_path_with_a_space_puts_the_rest_out_of_step():
    assert parse_pairs("") == []
    assert parse_pairs(" M a\n?? b/\n") == [("a", "M"), ("b/", "??")]
    assert parse_pairs('?? "a b"\n?? c\n') == [('"a', "??"), ("??", 'b"')]
