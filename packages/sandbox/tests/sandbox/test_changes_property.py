"""Random work on a tree: `changes()` must be the difference of two walks, made inside by perl."""

from __future__ import annotations

import io
import os
import re
import tarfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode_sandbox import Limits, Provider, SandboxBackend
from intercode_sandbox.docker.provider import DockerProvider

pytestmark = pytest.mark.ordinary

EXAMPLES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "10"))
# d and e are folders of the image, f and g its files, the others are not there.
NAMES = [b"d", b"e", b"f", b"g", b"new\nline", b"\xff\xfe", b"-x y"]
WALK = r"""
use Fcntl ':mode';
sub walk {
    my $path = shift;
    my ($m, $uid, $gid) = (lstat $path)[2, 4, 5] or return;
    my $type = S_ISREG($m) ? 'file' : S_ISDIR($m) ? 'dir' : S_ISLNK($m) ? 'symlink'
        : S_ISFIFO($m) ? 'fifo' : 'other';
    my $data = '';
    if ($type eq 'symlink') { $data = readlink $path }
    if ($type eq 'file') {
        chmod 0600, $path if !($m & 0400);
        open my $file, '<', $path or die "$path: $!";
        local $/; $data = <$file> // '';
        close $file; chmod S_IMODE($m), $path if !($m & 0400);
    }
    print join "\0", map { unpack 'H*', $_ } $path, $type, S_IMODE($m), $uid, $gid, $data;
    print "\n";
    return if $type ne 'dir';
    chmod 0700, $path if ($m & 0700) != 0700;
    opendir my $dir, $path or die "$path: $!";
    walk("$path/$_") for sort grep { $_ ne '.' && $_ ne '..' } readdir $dir;
    chmod S_IMODE($m), $path if ($m & 0700) != 0700;
}
walk('/t');
"""
WORK = r"""
sub tree { my $p = shift; if (-d $p && !-l $p) { chmod 0700, $p; opendir my $d, $p;
    tree("$p/$_") for grep { $_ ne '.' && $_ ne '..' } readdir $d; rmdir $p } else { unlink $p } }
sub put { my ($p, $mode, $data) = @_; return if -p $p; open my $f, $mode, $p or return;
    print $f $data; close $f }
sub step { my ($op, $p, $q, $n) = @_;
    if ($op eq 'write') { put($p, '>', "data$n\n") }
    if ($op eq 'append') { put($p, '>>', "more\n") }
    if ($op eq 'open') { put($p, '+<', '') }
    if ($op eq 'delete') { tree($p) }
    if ($op eq 'mkdir') { mkdir $p, 0755 }
    if ($op eq 'rename') { system 'mv', '-fT', '--', $p, $q }
    if ($op eq 'to_file') { tree($p); put($p, '>', "data\n") }
    if ($op eq 'to_dir') { tree($p); mkdir $p, 0755 }
    if ($op eq 'chmod') { chmod 0640 + $n, $p if !-l $p }
    if ($op eq 'closed') { chmod 0, $p if !-l $p }
    if ($op eq 'touch') { utime 1e9, 1e9, $p }
    if ($op eq 'link') { link $p, $q }
    if ($op eq 'symlink') { symlink $p, $q }
    if ($op eq 'fifo') { system 'mkfifo', '--', $p }
}
"""
OPERATIONS = re.findall(r"'(\w+)'\) \{", WORK)

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
operations = st.tuples(st.sampled_from(OPERATIONS), paths, paths, st.integers(0, 2))


@dataclass(frozen=True)
class Entry:
    type: str
    mode: int
    uid: int
    gid: int
    data: bytes


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("image") / "tree.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("t", "t/d", "t/d/d", "t/d/d/e", "t/d/e", "t/e"):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name in ("t/f", "t/g", "t/d/f", "t/d/d/f", "t/d/d/g", "t/e/g"):
            member = tarfile.TarInfo(name)
            member.size, member.mode = 6, 0o644
            tar.addfile(member, io.BytesIO(b"data0\n"))
        for name, kind, target in (("t/e/d", tarfile.SYMTYPE, "../f"),
                                   ("t/e/f", tarfile.LNKTYPE, "t/g")):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    return f"host+{path}"


def perl(sandbox: SandboxBackend, script: str) -> bytes:
    done = sandbox.exec(["perl", "-"], stdin=script.encode(), output_limit=16 << 20)
    assert done.ok, done
    return done.stdout


def walk(sandbox: SandboxBackend) -> dict[str, Entry]:
    tree = {}
    for line in perl(sandbox, WALK).splitlines():
        path, kind, mode, uid, gid, data = (bytes.fromhex(f.decode()) for f in line.split(b"\0"))
        name = path.decode("utf-8", "surrogateescape")
        tree[name] = Entry(kind.decode(), int(mode), int(uid), int(gid), data)
    return tree


def difference(before: dict[str, Entry], after: dict[str, Entry]) -> list[tuple[object, ...]]:
    """(path, kind, type, content changed), sorted."""
    found: list[tuple[object, ...]] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if new is None:
            assert old is not None
            found.append((path, "deleted", old.type, True))
        elif old is None:
            found.append((path, "added", new.type, True))
        elif old != new:
            content = (old.type, old.data) != (new.type, new.data)
            found.append((path, "modified", new.type, content))
    return found


@pytest.mark.timeout(1200)
def test_changes_are_the_difference_of_two_walks(provider: Provider, image: str) -> None:
    # To compare with a snapshot, a provider of containers starts one more.
    most = min(EXAMPLES, 3) if isinstance(provider, DockerProvider) else EXAMPLES

    @given(steps=st.lists(operations, min_size=1, max_size=12))
    @settings(max_examples=most, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    def agree(steps: list[tuple[str, bytes, bytes, int]]) -> None:
        changes_are_the_difference(provider, image, steps)

    agree()


def changes_are_the_difference(
    provider: Provider, image: str, steps: list[tuple[str, bytes, bytes, int]]
) -> None:
    work = "".join(
        f"step('{op}', map {{ pack 'H*', $_ }} '{(b'/t/' + p).hex()}', '{(b'/t/' + q).hex()}', "
        f"'{str(n).encode().hex()}');\n"
        for op, p, q, n in steps
    )
    sandbox = provider.start(image, Limits())
    try:
        before = walk(sandbox)
        perl(sandbox, WORK + work)
        told = sandbox.changes()
        after = walk(sandbox)
        found = [(c.path, c.kind, c.type, c.content_changed) for c in told]
        assert found == difference(before, after)
        for change in told:
            if change.kind != "deleted":
                entry = after[change.path]
                facts = (change.mode, change.uid, change.gid)
                assert facts == (entry.mode, entry.uid, entry.gid)
                if change.type in ("file", "symlink"):
                    assert change.size == len(entry.data)
        snapshot = sandbox.snapshot()
        copy = provider.start(snapshot, Limits())
        try:
            assert walk(copy) == after
            assert copy.changes() == []
        finally:
            copy.close()
            snapshot.delete()
    finally:
        sandbox.close()
