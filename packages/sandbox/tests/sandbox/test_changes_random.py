"""`changes()` and snapshots after random operations, against walks (find, SHA-256) from inside.

Two generations: a sandbox, and one from its snapshot, so that layers lie over layers.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from intercode_sandbox import Change, Limits, Provider, SandboxBackend
from intercode_sandbox.docker.provider import DockerProvider

from . import Start

EXAMPLES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "12"))
TREE: list[tuple[str, bytes, str, int]] = [
    # path, type, content or target, mode
    ("data", tarfile.DIRTYPE, "", 0o755),
    ("data/file", tarfile.REGTYPE, "content\n", 0o644),
    ("data/other", tarfile.REGTYPE, "content\n", 0o600),
    ("data/empty", tarfile.REGTYPE, "", 0o644),
    ("data/one", tarfile.REGTYPE, "linked\n", 0o644),
    ("data/two", tarfile.LNKTYPE, "data/one", 0o644),
    ("data/link", tarfile.SYMTYPE, "file", 0o777),
    ("data/way", tarfile.SYMTYPE, "dir", 0o777),
    ("data/dir", tarfile.DIRTYPE, "", 0o755),
    ("data/dir/a", tarfile.REGTYPE, "a\n", 0o644),
    ("data/dir/b", tarfile.REGTYPE, "b\n", 0o644),
    ("data/dir/sub", tarfile.DIRTYPE, "", 0o750),
    ("data/dir/sub/a", tarfile.REGTYPE, "c\n", 0o644),
    ("data/dir/sub/sub", tarfile.DIRTYPE, "", 0o1777),
    ("data/bare", tarfile.DIRTYPE, "", 0o755),
]
WALK = r"""
cd /data
find . -printf '%p\0%y\0%m\0%U\0%G\0%s\0%l\0'
find . -type f -print0 | xargs -0r sha256sum -bz >&2
"""
TYPES = {"f": "file", "d": "dir", "l": "symlink", "p": "fifo"}

Node = tuple[str, int, int, int, int, str, str]
"""type, mode, uid, gid, size, target, SHA-256."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host's programs, and the tree at /data."""
    path = tmp_path_factory.mktemp("image") / "tree.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind, text, mode in TREE:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            if kind == tarfile.REGTYPE:
                info.size = len(text)
            else:
                info.linkname = text
            tar.addfile(info, io.BytesIO(text.encode()))
    return f"host+{path}"


def walk(sandbox: SandboxBackend) -> dict[str, Node]:
    done = sandbox.exec(["bash", "-c", WALK], timeout=60)
    assert done.ok and not done.truncated, done
    digests = {line[66:]: line[:64] for line in done.stderr.decode().split("\0") if line}
    fields = done.stdout.decode().split("\0")[:-1]
    found: dict[str, Node] = {}
    for path, kind, mode, uid, gid, size, target in zip(*[iter(fields)] * 7, strict=True):
        length = int(size) if kind in "fl" else 0
        digest = digests.get(path, "")
        found[path] = (TYPES[kind], int(mode, 8), int(uid), int(gid), length, target, digest)
    return found


def expected(before: dict[str, Node], after: dict[str, Node]) -> set[tuple[object, ...]]:
    found: set[tuple[object, ...]] = set()
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if new is None and old is not None:
            found.add((path, "deleted", old[0], 0, 0, 0, 0, True))
        elif new is not None and old != new:
            kind = "added" if old is None else "modified"
            content = old is None or (old[0], *old[4:]) != (new[0], *new[4:])
            found.add((path, kind, *new[:5], content))
    return found


def told(change: Change) -> tuple[object, ...]:
    path = f".{change.path.removeprefix('/data')}"
    rest = (change.mode, change.uid, change.gid, change.size, change.content_changed)
    return (path, change.kind, change.type, *rest)


def check(sandbox: SandboxBackend, script: str) -> None:
    """Run the script: `changes` and a walk must agree about it."""
    before = walk(sandbox)
    assert not sandbox.exec(["bash", "-c", script], cwd="/data", timeout=60).timed_out
    after = walk(sandbox)
    found = sandbox.changes()
    assert found == sorted(found)
    assert len({change.path for change in found}) == len(found)
    assert {told(change) for change in found} == expected(before, after)
    # Same content, same digest; other content, another digest.
    by_content: dict[str, set[str]] = defaultdict(set)
    for change in found:
        if change.type == "file" and change.kind != "deleted":
            by_content[after[str(told(change)[0])][6]].add(change.digest)
    digests = [digest for group in by_content.values() for digest in group]
    assert len(digests) == len(set(digests)) == len(by_content)


NAMES = ["file", "dir", "one", "link", "bare", "sub", "a", "n"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join) | st.sampled_from(
    [name.removeprefix("data/") for name, *_ in TREE[1:]]
)
WORDS = st.sampled_from(["content\\n", "a\\n", "x", ""])
MODES = st.sampled_from(["700", "755", "750", "2777", "1755"])
# A FIFO is never opened for writing: that would wait for a reader.
ONE = [
    "rm -rf {p}", "rm -rf {p}; mkdir {p}", "rm -rf {p}; printf x > {p}", "mkdir -p {p}",
    "mkfifo {p}", "touch -h -d @1 {p}", "[ -p {p} ] || truncate -s 70000 {p}",
    "[ -p {p} ] || printf '{w}' > {p}", "[ -p {p} ] || printf '{w}' >> {p}", "chmod {m} {p}",
]  # fmt: skip
TWO = [
    "ln -sfn {p} {q}", "rm -rf {q}; ln -s {p} {q}", "ln {p} {q}", "mv -fT {p} {q}",
    "rm -rf {q}; mv -T {p} {q}", "cp -aT {p} {q}", "mv {p} x; mv {q} {p}; mv x {q}",
]  # fmt: skip
OPERATIONS = st.builds(
    lambda template, p, q, w, m: template.format(p=p, q=q, w=w, m=m),
    st.sampled_from(ONE + TWO), PATHS, PATHS, WORDS, MODES,
)  # fmt: skip


@pytest.mark.timeout(1200 + EXAMPLES)
def test_two_generations_agree_with_walks(provider: Provider, image: str) -> None:
    # To compare with a snapshot, a provider of containers starts one more.
    most = 2 if isinstance(provider, DockerProvider) else EXAMPLES

    @settings(max_examples=most, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        first=st.lists(OPERATIONS, max_size=12).map("\n".join),
        second=st.lists(OPERATIONS, max_size=12).map("\n".join),
    )
    @example(
        first="rm -r dir; mkdir -p dir/sub/sub; printf 'a\\n' > dir/a; chmod 750 dir/sub",
        second="mv dir x; mv bare dir; mv x bare; rm -r bare/sub; mkdir bare/sub; mv bare/sub dir",
    )
    @example(
        first="rm -r dir; ln -s bare dir; printf x > way/n; rm dir; mkdir dir; mkdir dir/sub",
        second="printf x > one; rm two; ln one two; rm file; mkfifo file; rm file; mkdir file",
    )
    @example(first="rm -r dir; mkdir dir", second="mkdir dir/sub; rm -r dir; mkdir dir")
    @example(first="rm -r dir file", second="mkdir file dir; printf x > dir/a")
    def agree(first: str, second: str) -> None:
        two_generations(provider, image, first, second)

    agree()


def two_generations(provider: Provider, image: str, first: str, second: str) -> None:
    one = provider.start(image, Limits())
    try:
        check(one, first)
        seen = walk(one)
        saved = one.snapshot()
    finally:
        one.close()
    two = provider.start(saved, Limits())
    try:
        assert walk(two) == seen
        assert two.changes() == []
        check(two, second)
    finally:
        two.close()
        saved.delete()


def dug(start: Start, image: str, depth: int) -> SandboxBackend:
    """Folders within folders, with a file at the bottom."""
    sandbox = start(image)
    dig = f"for (1..{depth}) {{ mkdir 'n' or die; chdir 'n' or die }} open F, '>', 'leaf'"
    assert sandbox.exec(["perl", "-e", dig], cwd="/data/bare").ok
    return sandbox


@pytest.mark.parametrize("depth", [250, 900, 3000])
def test_deep_nesting_does_not_end_the_sandbox(start: Start, image: str, depth: int) -> None:
    sandbox = dug(start, image, depth)
    found = sandbox.changes()
    assert {change.kind for change in found} == {"added"}
    assert len(found) == depth + 1 if depth < 290 else 290 <= len(found) <= depth + 1
    assert sandbox.exec(["rm", "-r", "/data/bare/n"]).ok
    assert sandbox.changes() == []


def test_sparse_and_dense_have_one_digest(start: Start, image: str) -> None:
    sandbox = start(image)
    script = (
        "truncate -s 3000001 s1; head -c 3000001 /dev/zero > d1;"
        "truncate -s 2000000 s2; printf mid | dd of=s2 bs=1 seek=1000000 conv=notrunc status=none;"
        "cp --sparse=never s2 d2; cp --sparse=always s2 t2; truncate -s 3000000 s3; : > zero"
    )
    check(sandbox, script)
    digests = {change.path.removeprefix("/data/"): change.digest for change in sandbox.changes()}
    assert digests["s1"] == digests["d1"]
    assert digests["s2"] == digests["d2"] == digests["t2"]
    assert len(set(digests.values())) == 4
