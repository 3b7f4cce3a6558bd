"""The walks of the static process 1 against those of Python: of any trees, and of overlays."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode_sandbox.native import change_stream, syscalls as sc, wire
from intercode_sandbox.privileges import is_root

from . import walk_oracle

EXAMPLES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "60"))
STATIC = Path(change_stream.__file__).parent / "static"
DRIVER = Path(__file__).parent / "static" / "driver.c"
MODULES = ("walk.c", "archive.c", "container.c", "blake2b.c", "wire.c", "sys.c", "text.c")
COMMON = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-sign-conversion", f"-I{STATIC}")
TRAPS = ("-ffreestanding", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
# The checked copies must be the C library's, which the sanitizer watches.
OWN = [f"-D{name}=own_{name}" for name in ("memcpy", "memmove", "memset", "memcmp")]
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TIMEOUT = 60.0
MANY_FILES = 4096
LAYERS = ("upper", "merged")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

Failure = tuple[str, int, str]
Open = Callable[..., "Trees"]


@dataclass
class Trees:
    uppers: list[int]
    lower: int
    merged: int


class Driver:
    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, what: str, trees: Trees, timeout: float, out: int) -> Failure | None:
        fds = [trees.lower, trees.merged, *trees.uppers]
        command = [str(self.program), what, str(int(timeout * 1000)), *map(str, fds)]
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, pass_fds=fds, restore_signals=False,
            env={"ASAN_OPTIONS": "detect_leaks=0"}, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            assert done.stderr == b""
            return None
        assert done.returncode == 1, done
        number, message = done.stderr.decode().split("\n")
        return "failed", int(number), message or os.strerror(int(number))

    def changes(self, trees: Trees, timeout: float = TIMEOUT) -> list[tuple[Any, ...]] | Failure:
        with tempfile.TemporaryFile() as out:
            failure = self.run("changes", trees, timeout, out.fileno())
            out.seek(0)
            return failure or sorted(map(tuple, wire.unpack(out.read())))

    def archive(self, trees: Trees, timeout: float = TIMEOUT) -> bytes | Failure:
        with tempfile.TemporaryFile() as out:
            failure = self.run("archive", trees, timeout, out.fileno())
            out.seek(0)
            return failure or out.read()


def build(folder: Path, name: str, flags: Sequence[str], text_flags: Sequence[str] = ()) -> Driver:
    objects = []
    for source in (DRIVER, *(STATIC / module for module in MODULES)):
        made = folder / f"{name}-{source.stem}.o"
        more = text_flags if source.name == "text.c" else ()
        run = ["gcc", *COMMON, *flags, *more, "-c", "-o", str(made), str(source)]
        subprocess.run(run, check=True)
        objects.append(str(made))
    program = folder / name
    subprocess.run(["gcc", *flags, "-o", str(program), *objects], check=True)
    return Driver(program)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return build(tmp_path_factory.mktemp("driver"), "plain", ["-O2", *TRAPS])


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if request.param == "plain":
        made: Driver = request.getfixturevalue("plain")
        return made
    folder = tmp_path_factory.mktemp("sanitized")
    try:
        return build(folder, "sanitized", ["-O1", *SANITIZERS], OWN)
    except subprocess.CalledProcessError:
        (folder / "empty.c").write_text("int main(void) { return 0; }\n")
        probe = ["gcc", *SANITIZERS, "-o", str(folder / "empty"), str(folder / "empty.c")]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            pytest.skip("gcc has no sanitizers here")
        raise


@pytest.fixture(autouse=True, scope="module")
def _deep_walks() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    recursion = sys.getrecursionlimit()
    wanted = soft if soft >= MANY_FILES else min(MANY_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(recursion)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def opened(uppers: Sequence[Path], lower: Path, merged: Path | int) -> Iterator[Trees]:
    with ExitStack() as stack:

        def folder(path: Path) -> int:
            fd = os.open(path, walk_oracle.DIRECTORY)
            stack.callback(os.close, fd)
            return fd

        both = merged if isinstance(merged, int) else folder(merged)
        yield Trees([folder(path) for path in uppers], folder(lower), both)


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Open]:
    """Open the folders of these names: uppers, "lower" and "merged"; those missing are made."""
    with ExitStack() as stack:

        def open_all(*uppers: str) -> Trees:
            paths = [tmp_path / name for name in (*(uppers or ("upper",)), "lower", "merged")]
            for path in paths:
                path.mkdir(exist_ok=True)
            return stack.enter_context(opened(paths[:-2], *paths[-2:]))

        yield open_all


# -- what Python tells ---------------------------------------------------------------------------


def told(error: OSError) -> Failure:
    return "failed", error.errno or 0, error.strerror or ""


def rewind(trees: Trees) -> None:
    """Python lists a folder from where the descriptor is, which the driver has moved."""
    for fd in (*trees.uppers, trees.lower, trees.merged):
        os.lseek(fd, 0, os.SEEK_SET)


def changes(trees: Trees, timeout: float = TIMEOUT) -> list[tuple[Any, ...]] | Failure:
    rewind(trees)
    try:
        return walk_oracle.changes(trees.uppers, trees.lower, trees.merged, timeout)
    except OSError as error:
        return told(error)


def stream(trees: Trees, timeout: float = TIMEOUT) -> bytes | Failure:
    rewind(trees)
    with tempfile.TemporaryFile() as out:
        try:
            walk_oracle.write(trees.uppers, trees.lower, trees.merged, out.fileno(), timeout)
        except OSError as error:
            return told(error)
        out.seek(0)
        return out.read()


@dataclass
class File:
    """What a stream says of one file, whichever of its names is the first."""

    entry: change_stream.ChangeStreamEntry
    pieces: list[tuple[int, bytes]]
    names: set[str] = field(default_factory=set)

    def facts(self) -> tuple[Any, ...]:
        assert self.entry.kind == "symlink" or not self.entry.target
        return self.entry._replace(path=""), self.pieces, sorted(self.names)


def read(data: bytes | Failure) -> dict[str, tuple[Any, ...]] | Failure:
    """Return each path's facts. Folders must come before what is in them, files before links."""
    if not isinstance(data, bytes):
        return data
    file = io.BytesIO(data)
    reader = change_stream.ChangeStreamReader(file)
    files: dict[str, File] = {}
    found: dict[str, File] = {}
    for entry in reader:
        above = os.path.dirname(entry.path) or "."
        assert entry.path not in found and (entry.path == "." or above in found)
        pieces = list(reader.pieces(entry)) if entry.kind == "file" else []
        if entry.kind == "link":
            one = files[entry.target]
            known = (entry.mode, entry.uid, entry.gid, entry.mtime, entry.opaque, entry.size)
            first = one.entry
            assert known == (first.mode, first.uid, first.gid, first.mtime, False, 0)
        else:
            one = files[entry.path] = File(entry, pieces)
        one.names.add(entry.path)
        found[entry.path] = one
    assert file.read() == b""
    return {path: one.facts() for path, one in found.items()}


def agree(driver: Driver, trees: Trees) -> Any:
    """Compare all that is told of these trees; return the changes."""
    found = driver.changes(trees)
    assert found == changes(trees)
    assert read(driver.archive(trees)) == read(stream(trees))
    return found


# -- BLAKE2b -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, 127, 128, 129, 4096])
def test_blake2b(driver: Driver, step: int) -> None:
    lengths = [0, 1, 2, 63, 64, 127, 128, 129, 255, 256, 257, 300, 383, 384, 385, 9000]
    for length in range(301) if step == 4096 else lengths:
        data = bytes(each * 7 % 251 for each in range(length))
        run = [str(driver.program), "blake2b", str(step)]
        found = subprocess.run(run, input=data, capture_output=True, check=True).stdout
        assert found == hashlib.blake2b(data, digest_size=16).digest(), length


# -- any trees, whether or not an overlay could be so --------------------------------------------

NAMES = [b"a", b"dev", b"shm", b"\xff\xc3\xa9", b'\n"\\\x7f\t']  # few, so that they meet
SIZES = (0, 1, 5, 4095, 4096, 4097, 70_000, 3_000_001)
TIMES = (0, 1, -1, -1_000_000_000, -1_500_000_001, 1_700_000_000_123_456_789, 999_999_999)
FILE_MODES = (0o644, 0o600, 0o4755, 0o2644, 0o1777)
FOLDER_MODES = (0o755, 0o700, 0o1777, 0o2755)
WHITEOUT = st.just(("whiteout",))
LINK = st.tuples(st.just("link"), st.integers(0, 5))
UNLINKED = st.one_of(
    st.tuples(st.just("file"), st.sampled_from(FILE_MODES), st.sampled_from(SIZES),
              st.sampled_from(["data", "zeros", "hole", "end"]), st.sampled_from(TIMES)),
    st.tuples(st.just("symlink"), st.sampled_from([b"a", b"../b", b"\xff\n", b"x" * 300])),
    st.tuples(st.sampled_from(["fifo", "socket"]), st.sampled_from(FILE_MODES)),
)  # fmt: skip
LEAVES = UNLINKED | LINK


def folders(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    contents = st.recursive(
        leaves,
        lambda below: st.tuples(
            st.just("folder"), st.sampled_from(FOLDER_MODES),
            st.dictionaries(st.sampled_from(NAMES), below, max_size=4),
        ),
        max_leaves=12,
    )  # fmt: skip
    return st.dictionaries(st.sampled_from(NAMES), contents, min_size=2, max_size=6)


def make(path: bytes, node: tuple[Any, ...], linked: list[bytes]) -> None:
    kind, *facts = node
    if kind == "folder":
        mode, content = facts
        os.mkdir(path)
        for name, below in content.items():
            make(path + b"/" + name, below, linked)
        os.chmod(path, mode)
    elif kind == "whiteout":
        os.mknod(path, stat.S_IFCHR)
    elif kind == "symlink":
        os.symlink(facts[0], path)
        linked.append(path)
    elif kind == "link":
        if linked:
            os.link(linked[facts[0] % len(linked)], path, follow_symlinks=False)
    elif kind == "file":
        mode, size, content, when = facts
        write(path, size, content)
        os.chmod(path, mode)
        os.utime(path, ns=(when, when))
        linked.append(path)
    else:
        os.mknod(path, facts[0] | (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK))
        os.chmod(path, facts[0])
        linked.append(path)


def write(path: bytes, size: int, content: str) -> None:
    with open(path, "wb") as file:
        if content in ("data", "zeros"):
            file.write((b"data" if content == "data" else b"\0\0\0\0") * (size // 4 + 1))
        elif content == "end":
            file.seek(max(0, size - 1))
            file.write(b"x")
        file.truncate(size)


@given(  # of names that are one file in their layer, merged would show one: see test_overlays
    uppers=st.lists(folders(UNLINKED | WHITEOUT), min_size=1, max_size=3),
    lower=folders(LEAVES | WHITEOUT),
    merged=folders(LEAVES),
    odd=st.none() | WHITEOUT,
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
def test_any_trees(
    plain: Driver, uppers: list[Any], lower: Any, merged: Any, odd: tuple[str] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        roots = [Path(folder, str(number)) for number in range(len(uppers) + 2)]
        content = [*uppers, lower, {**merged, b"a": odd} if odd else merged]
        for path, tree in zip(roots, content, strict=True):
            make(os.fsencode(path), ("folder", 0o755, tree), [])
        with opened(roots[:-2], *roots[-2:]) as trees:
            agree(plain, trees)


# -- overlays ------------------------------------------------------------------------------------

PATHS = st.lists(st.sampled_from(NAMES[::2]), min_size=1, max_size=2).map(b"/".join)
OPERATIONS = st.tuples(
    st.sampled_from(["write", "append", "delete", "folder", "again", "rename", "link", "symlink",
                     "fifo", "socket", "mode", "owner", "holes", "time"]),
    PATHS, PATHS, st.integers(0, 7),
)  # fmt: skip


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def operate(root: bytes, what: str, one: bytes, other: bytes, number: int) -> None:
    path, target = root + one, root + other
    if what in ("write", "append", "holes") and os.path.lexists(path) and not os.path.isfile(path):
        return  # nobody reads a FIFO, and a symbolic link may lead anywhere
    if what in ("write", "append", "holes") and not os.path.islink(path):
        if what == "holes":
            write(path, SIZES[number], "end")
        else:
            with open(path, "wb" if what == "write" else "ab") as file:
                file.write(b"data" * number)
    elif what in ("delete", "again"):
        remove(path)
    elif what == "rename":
        os.rename(path, target)
    elif what == "link":
        os.link(path, target, follow_symlinks=False)
    elif what == "symlink":
        os.symlink(other, path)
    elif what in ("fifo", "socket"):
        os.mknod(path, 0o644 | (stat.S_IFIFO if what == "fifo" else stat.S_IFSOCK))
    elif what == "mode" and not os.path.islink(path):
        os.chmod(path, 0o700 + number)
    elif what == "owner":
        os.chown(path, number, 7, follow_symlinks=False)
    elif what == "time":
        os.utime(path, ns=(number, TIMES[number % len(TIMES)]), follow_symlinks=False)
    if what in ("folder", "again"):
        os.mkdir(path)


REFUSALS = (
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EXDEV,
    errno.EINVAL, errno.ELOOP, errno.EPERM, errno.ENAMETOOLONG,
)  # fmt: skip
"""What an operation may come to that makes no sense with what is there."""


def attempt(merged: int, operation: tuple[str, bytes, bytes, int]) -> None:
    try:
        operate(b"/proc/self/fd/%d/" % merged, *operation)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise


@contextmanager
def overlay(folder: Path, upper: str, *below: str) -> Iterator[int]:
    """Mount an overlay where nothing else sees it: it lasts for as long as its descriptor."""
    found: list[int | BaseException] = []
    (folder / f"{upper}-work").mkdir()
    (folder / "mounted").mkdir(exist_ok=True)

    def mount() -> None:
        try:
            sc.unshare(sc.CLONE_NEWNS)  # of this thread
            sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
            options = f"lowerdir={':'.join(str(folder / name) for name in below)}"
            options += f",upperdir={folder / upper},workdir={folder / upper}-work"
            options += ",index=off,metacopy=off,redirect_dir=off"
            sc.mount("overlay", str(folder / "mounted"), "overlay", 0, options)
            found.append(os.open(folder / "mounted", walk_oracle.DIRECTORY))
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            found.append(error)

    thread = threading.Thread(target=mount)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    try:
        yield found[0]
    finally:
        os.close(found[0])


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All that is in a layer folder; files by the names that they have."""
    names: dict[tuple[int, int], set[str]] = defaultdict(set)
    found: dict[str, tuple[Any, ...]] = {}
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            names[status.st_dev, status.st_ino].add(str(path.relative_to(folder)))
    for path in paths:
        status = path.lstat()
        data: bytes | str = b""
        if stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            data = os.readlink(path)
        marks = {
            name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)
        }
        found[str(path.relative_to(folder))] = (
            status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_rdev, data,
            marks, sorted(names[status.st_dev, status.st_ino]),
        )  # fmt: skip
    return found


def extracted(data: bytes, folder: Path) -> tuple[list[Any], dict[str, tuple[Any, ...]]]:
    folder.mkdir()
    with tempfile.TemporaryFile() as source:
        source.write(data)
        source.flush()
        source.seek(0)
        special = change_stream.extract(source.fileno(), folder, "trusted.overlay.opaque")
    # Of a file of several names, the first is told.
    found = tree(folder)
    return sorted((found[path][-1], mode) for path, mode in special), found


@pytest.mark.skipif(not is_root(), reason="to mount is for root")
@given(
    image=folders(LEAVES),
    first=st.lists(OPERATIONS, min_size=3, max_size=20),
    second=st.lists(OPERATIONS, max_size=12),
    third=st.lists(OPERATIONS, max_size=6),
)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
def test_overlays(plain: Driver, image: Any, first: Any, second: Any, third: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(os.fsencode(folder / "lower"), ("folder", 0o755, image), [])
        uppers: list[str] = []
        for number, operations in enumerate((first, second, third)):
            upper = f"upper{number}"
            (folder / upper).mkdir()
            with overlay(folder, upper, *uppers, "lower") as merged:
                for operation in operations:
                    attempt(merged, operation)
                uppers.insert(0, upper)
                paths = [folder / each for each in uppers]
                with opened(paths, folder / "lower", merged) as trees:
                    agree(plain, trees)
                    ours, theirs = plain.archive(trees), stream(trees)
            assert isinstance(ours, bytes) and isinstance(theirs, bytes)
            ours_made = extracted(ours, folder / f"ours{number}")
            assert ours_made == extracted(theirs, folder / f"theirs{number}")


# -- directed cases ------------------------------------------------------------------------------


def test_nothing_has_changed(driver: Driver, layers: Open) -> None:
    assert agree(driver, layers()) == []


def test_metadata_of_the_root(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    (tmp_path / "merged").chmod(0o711)
    assert [entry[:4] for entry in agree(driver, trees)] == [("/", "modified", "dir", 0o711)]


@pytest.mark.skipif(not is_root(), reason="to give files away is for root")
def test_each_part_of_the_metadata(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    parts = {
        "none": (0o644, 1, 2),
        "mode": (0o2644, 1, 2),
        "uid": (0o644, 7, 2),
        "gid": (0o644, 1, 7),
    }
    for name, (mode, uid, gid) in parts.items():
        for layer in (*LAYERS, "lower"):
            path = tmp_path / layer / name
            path.write_text("data")
            os.chown(path, *((1, 2) if layer == "lower" else (uid, gid)))
            path.chmod(0o644 if layer == "lower" else mode)
    found = agree(driver, trees)
    assert [(entry[0], *entry[3:6], entry[8]) for entry in found] == [
        ("/gid", *parts["gid"], False), ("/mode", *parts["mode"], False),
        ("/uid", *parts["uid"], False),
    ]  # fmt: skip


def test_times(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    times = [*TIMES, -999_999_999, -1_000_000_001, 1_000_000_000, 1_000_000_001, 2**33 * 10**9]
    for number, when in enumerate(times):
        for layer in LAYERS:
            path = tmp_path / layer / f"{number}"
            path.touch()
            os.utime(path, ns=(when, when))
    agree(driver, trees)
    facts = read(driver.archive(trees))
    assert isinstance(facts, dict)
    assert [facts[f"{number}"][0].mtime for number in range(len(times))] == times


def test_several_uppers_name_a_file_once(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers("one", "two", "three")
    for number, layer in enumerate(("one", "two", "three", "merged")):
        (tmp_path / layer / "folder" / "below").mkdir(parents=True, exist_ok=True)
        (tmp_path / layer / "folder" / "file").write_text(f"{number}")
        (tmp_path / layer / "folder" / "below" / layer).write_text("data")
        (tmp_path / "merged" / "folder" / "below").mkdir(parents=True, exist_ok=True)
        (tmp_path / "merged" / "folder" / "below" / layer).write_text("data")
    found = agree(driver, trees)
    assert len(found) == len({entry[0] for entry in found}) == 6


def test_more_uppers_than_there_may_be(driver: Driver, layers: Open, tmp_path: Path) -> None:
    most = layers(*(f"u{number}" for number in range(128)))
    (tmp_path / "merged" / "n").mkdir()
    for number in range(128):
        (tmp_path / f"u{number}" / "n").mkdir()
        (tmp_path / f"u{number}" / "n" / f"{number}").touch()
    assert len(agree(driver, most)) == 1
    more = layers(*(f"u{number}" for number in range(129)))
    assert driver.changes(more) == driver.archive(more) == ("failed", errno.E2BIG, E2BIG)


E2BIG = "there are too many layers"


@pytest.mark.parametrize("first", ["visible", "hidden"])
def test_opaque_folders(driver: Driver, layers: Open, tmp_path: Path, first: str) -> None:
    trees = layers()
    for layer in ("upper", "lower", "merged"):
        (tmp_path / layer / "folder").mkdir()
    below = tmp_path / "lower" / "folder"
    (below / "deep" / "deeper").mkdir(parents=True)
    for name in ("a", "b", "deep/c", "deep/deeper/d"):
        (below / name).write_text("data")
    (tmp_path / "upper" / "folder" / "a").write_text("new")
    (tmp_path / "merged" / "folder" / "a").write_text("new")
    if first == "visible":
        shutil.copytree(below / "deep", tmp_path / "merged" / "folder" / "deep")
        shutil.copy(below / "b", tmp_path / "merged" / "folder" / "b")
    found = agree(driver, trees)
    assert len(found) == (1 if first == "visible" else 6)


def test_shared_memory_is_no_change_itself(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    for layer in LAYERS:
        (tmp_path / layer / "dev" / "shm" / "x").mkdir(parents=True)
        (tmp_path / layer / "dev" / "shmx").mkdir()
    paths = [entry[0] for entry in agree(driver, trees)]
    assert paths == ["/dev", "/dev/shm/x", "/dev/shmx"]


def test_names_and_targets_of_any_bytes(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    odd = [bytes([byte]) for byte in range(1, 256) if byte not in b"./"]
    odd += [b"\xc3\xa9", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xe2\x82", b"\xe2\x82A", b"\xed\xa0\x80",
            b"\xf0\x80\x80\xaf", b"\xf0\x9f\x90\x8d", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
            b"\xf5\x80\x80\x80", b"\xff" * 255, b"\xef\xbf\xbf", b'\n"\\', b"\xe2\x80\xa8",
            b"\xc2\x80", b"\xed\x9f\xbf", b"\xee\x80\x80", b"x" * 255]  # fmt: skip
    for layer in LAYERS:
        for name in odd:
            os.symlink(name * 10, os.path.join(os.fsencode(tmp_path / layer), name))
    assert len(agree(driver, trees)) == len(odd)


def test_sparse_files(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    for layer, end in (("upper", b"end"), ("merged", b"end"), ("lower", b"END")):
        for name, size in (("big", 1 << 40), ("hole", 3 << 30), ("odd", (1 << 32) + 4097)):
            with (tmp_path / layer / name).open("wb") as file:
                file.truncate(size)
                if name != "hole":
                    for offset in (0, 70_000, size // 2 - 1, size - 3):
                        os.pwrite(file.fileno(), end, offset)
    assert [entry[0] for entry in agree(driver, trees)] == ["/big", "/odd"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory")
@pytest.mark.parametrize("back", [1, 4095, 4096, 4097, 8191, 8192, 8193])
def test_the_longest_sparse_file(driver: Driver, back: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        layers = [Path(name, layer) for layer in ("upper", "lower", "merged")]
        for path in layers:
            path.mkdir()
            with (path / "file").open("wb") as file:
                file.truncate((1 << 63) - 1)
                os.pwrite(file.fileno(), b"x", (1 << 63) - 1 - back)
        with opened(layers[:1], *layers[1:]) as trees:
            agree(driver, trees)


def test_holes_and_zeros_are_one_content(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    size = 3_000_001
    (tmp_path / "upper" / "zeros").touch()
    (tmp_path / "merged" / "zeros").write_bytes(bytes(size))
    with (tmp_path / "lower" / "zeros").open("wb") as file:
        file.truncate(size)
    assert agree(driver, trees) == []


def test_hard_links(driver: Driver, layers: Open, tmp_path: Path) -> None:
    """More files of several names than a small cache holds, in several folders."""
    trees = layers()
    for layer in LAYERS:
        for folder in ("a", "b", "b/c"):
            (tmp_path / layer / folder).mkdir()
        for number in range(600):
            first = tmp_path / layer / "a" / f"{number}"
            first.write_text(f"content {number}")
            for folder in ("b", "b/c"):
                os.link(first, tmp_path / layer / folder / f"{number}")
        os.symlink("target", tmp_path / layer / "symlink")
        os.mkfifo(tmp_path / layer / "fifo")
        for name in ("symlink", "fifo"):
            first = tmp_path / layer / name
            os.link(first, tmp_path / layer / "a" / name, follow_symlinks=False)
    found = agree(driver, trees)
    assert len(found) == 3 + 3 * 600 + 2 * 2
    assert len({entry[7] for entry in found}) == 600 + 2


def test_many_names_in_a_folder(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers("one", "two")
    for number in range(5000):
        name = f"{number:05}" + "n" * (number % 200)
        for layer in ("one" if number % 2 else "two", "merged", "lower")[: 2 + number % 3 // 2]:
            (tmp_path / layer / name).touch()
    assert len(agree(driver, trees)) == 3334


def nest(folder: Path, name: str, depth: int, leaf: str = "") -> None:
    fd = os.open(folder, walk_oracle.DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, walk_oracle.DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    if leaf:
        os.close(os.open(leaf, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd))
    os.close(fd)


def unnest(folder: Path, name: str) -> None:
    """Remove what `nest` has made, whose paths may be longer than any call takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        depth = 0
        while os.path.isdir(name):
            os.chdir(name)
            depth += 1
        for _ in range(depth):
            for leaf in os.listdir():
                os.rmdir(leaf) if os.path.isdir(leaf) else os.unlink(leaf)
            os.chdir("..")
        if depth:
            os.rmdir(name)


@pytest.mark.parametrize("leaf", ["", "leaf"])
@pytest.mark.parametrize("depth", [298, 299, 300, 301, 305])
def test_nested_folders(
    driver: Driver, layers: Open, tmp_path: Path, depth: int, leaf: str
) -> None:
    trees = layers()
    for layer in LAYERS:
        nest(tmp_path / layer, "n", depth, leaf)
    found = agree(driver, trees)
    assert len(found) == min(depth + bool(leaf), 300)
    archived = driver.archive(trees)
    if depth + bool(leaf) <= 300:
        assert isinstance(archived, bytes)
    else:
        assert archived == ("failed", errno.EOVERFLOW, "folders are nested more than 300 deep")


def test_the_longest_path(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    try:
        for layer in LAYERS:
            nest(tmp_path / layer, "n" * 255, 305, "leaf")
        found = agree(driver, trees)
        assert len(found) == 300 and max(len(entry[0]) for entry in found) == 300 * 256
        failure = driver.archive(trees)
        message = "what was changed has a path of more than 3072 bytes"
        assert failure == ("failed", errno.EOVERFLOW, message)
    finally:
        for layer in LAYERS:
            unnest(tmp_path / layer, "n" * 255)


@pytest.mark.parametrize("bytes_", [3071, 3072, 3073])
def test_paths_at_the_limit(driver: Driver, layers: Open, tmp_path: Path, bytes_: int) -> None:
    trees = layers()
    for layer in LAYERS:
        nest(tmp_path / layer, "n" * 253, 12, "l" * (bytes_ - 12 * 254))
    agree(driver, trees)
    assert isinstance(driver.archive(trees), bytes) == (bytes_ <= 3072)


def test_deep_folders_of_the_image(driver: Driver, layers: Open, tmp_path: Path) -> None:
    """Python's recursion would end sooner."""
    trees = layers()
    nest(tmp_path / "lower", "n", 1100)
    (tmp_path / "merged" / "n").touch()
    (tmp_path / "upper" / "n").touch()
    found = driver.changes(trees)
    assert isinstance(found, list) and len(found) == 1100
    unnest(tmp_path / "lower", "n")
    nest(tmp_path / "lower", "n", 1300)
    failure = ("failed", errno.EOVERFLOW, "folders are nested too deep")
    assert driver.changes(trees) == failure
    unnest(tmp_path / "lower", "n")


def test_too_many_names(driver: Driver, layers: Open, tmp_path: Path) -> None:
    """To the byte. What is in an archive has no slash in front: there it is one byte less."""
    trees = layers()
    above = sum(256 * depth + walk_oracle._ENTRY_BYTES for depth in range(1, 12))
    each = 256 * 11 + 201 + walk_oracle._ENTRY_BYTES
    many, rest = divmod(walk_oracle.MOST_BYTES - above, each)
    short = 101 + walk_oracle._ENTRY_BYTES
    some = max(0, rest // short - 1)
    rest -= some * short  # for one name more
    for layer in LAYERS:
        nest(tmp_path / layer, "n" * 255, 11)
        bottom = (tmp_path / layer).joinpath(*["n" * 255] * 11)
        for number in range(many):
            os.mknod(bottom / f"{number:0200}")
        for number in range(some):
            os.mknod(tmp_path / layer / f"{number:0100}")
    last = "l" * (rest - 1 - walk_oracle._ENTRY_BYTES)
    for layer in LAYERS:
        os.mknod(tmp_path / layer / last)
    assert isinstance(agree(driver, trees), list)
    full = ("failed", errno.EOVERFLOW, "the names of what was changed have more than 32 MiB")
    for layer in LAYERS:
        os.rename(tmp_path / layer / last, tmp_path / layer / f"{last}l")
    assert agree(driver, trees) == full
    assert isinstance(driver.archive(trees), bytes)
    for layer in LAYERS:
        for number in range(100):
            os.mknod(tmp_path / layer / f"{number:0201}")
    assert agree(driver, trees) == full
    assert driver.archive(trees) == full


def test_no_time(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    for layer in LAYERS:
        (tmp_path / layer / "file").touch()
    late = ("failed", errno.ETIMEDOUT, "walking over the file system took too long")
    assert driver.changes(trees, 0) == changes(trees, 0) == late
    assert driver.archive(trees, 0) == stream(trees, 0) == late


def test_a_file_that_takes_too_long(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    (tmp_path / "upper" / "file").touch()
    for layer in ("merged", "lower"):
        with (tmp_path / layer / "file").open("wb") as file:
            for _ in range(512):
                file.write(b"x" * (1 << 20))
    late = ("failed", errno.ETIMEDOUT, "walking over the file system took too long")
    assert driver.changes(trees, 0.05) == driver.archive(trees, 0.05) == late


def test_a_device_is_refused(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    for layer in LAYERS:
        os.mknod(tmp_path / layer / "device", stat.S_IFCHR)
    agree(driver, trees)
    refused = ("failed", errno.EOVERFLOW, "a device cannot be saved")
    assert driver.archive(trees) == refused


def test_deleted_files_of_layers(driver: Driver, layers: Open, tmp_path: Path) -> None:
    """Marks in the upper layers, and in an image which is itself a layer."""
    trees = layers()
    (tmp_path / "lower" / "folder").mkdir()
    (tmp_path / "lower" / "folder" / "file").touch()
    (tmp_path / "lower" / "again").touch()
    for name in ("folder", "again", "never"):
        os.mknod(tmp_path / "upper" / name, stat.S_IFCHR)
    for name in ("mark", "new"):
        os.mknod(tmp_path / "lower" / name, stat.S_IFCHR)
        (tmp_path / "upper" / name).touch()
    (tmp_path / "merged" / "new").touch()
    found = [entry[:3] for entry in agree(driver, trees)]
    assert found == [("/again", "deleted", "file"), ("/folder", "deleted", "dir"),
                     ("/folder/file", "deleted", "file"), ("/new", "added", "file")]  # fmt: skip


def test_every_kind_becomes_every_other(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    nodes = [
        ("file", 0o644, 5, "data", 0), ("symlink", b"a"), ("fifo", 0o600), ("socket", 0o600),
        ("folder", 0o755, {b"x": ("file", 0o644, 1, "data", 0)}),
    ]  # fmt: skip
    for i, old in enumerate(nodes):
        for j, new in enumerate(nodes):
            name = os.fsencode(tmp_path) + b"/%s/" + b"%d-%d" % (i, j)
            make(name % b"lower", old, [])
            make(name % b"upper", new, [])
            make(name % b"merged", new, [])
    agree(driver, trees)


def test_the_reader_is_gone(driver: Driver, layers: Open, tmp_path: Path) -> None:
    trees = layers()
    for layer in LAYERS:
        (tmp_path / layer / "file").write_bytes(os.urandom(1 << 20))
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        failure = driver.run("archive", trees, TIMEOUT, ours.fileno())
    assert failure == ("failed", errno.EPIPE, os.strerror(errno.EPIPE))
