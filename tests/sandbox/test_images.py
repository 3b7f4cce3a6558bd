"""Images: the grammar, the cache, each kind of layer. Builds are real, in a cache of their own."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import intercode
import intercode.sandbox.images as images
from intercode.cli.main import main
from intercode.errors import ImageError
from intercode.sandbox.images import (
    Image,
    archive,
    cache_root,
    chroot,
    debian,
    host,
    list_images,
    prune,
    resolve,
    sweep,
)
from intercode.sandbox.images.cache import ImageCache
from intercode.sandbox.images.files import locked, remove_tree
from intercode.sandbox.images.layers import look
from intercode.sandbox.images.recipes import RECIPES
from intercode.sandbox.images.spec import parse

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root")
SOURCE = Path(images.__file__).parents[3]
NOBODY = 65534


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


Member = tuple[str, bytes | None] | tarfile.TarInfo


def make_tar(path: Path, *members: Member, mode: str = "w:gz") -> Path:
    """An archive: files by name and content, directories by None, the rest as headers."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.mtime = 1_600_000_000
            if member[1] is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            else:
                info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1] or b""))
    return path


def header(name: str, kind: bytes, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def run_python(code: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, *sys.path)))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# --- the grammar -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scheme", "argument", "additions"),
    [
        ("host", "host", "", []),
        ("  host\n", "host", "", []),
        ("debian:bookworm", "debian", "bookworm", []),
        ("debian:trixie[g++,jq]", "debian", "trixie[g++,jq]", []),
        ("debian:trixie[g++]+/a.tar", "debian", "trixie[g++]", ["/a.tar"]),
        ("host+/a/b.tar.gz+/c.sh", "host", "", ["/a/b.tar.gz", "/c.sh"]),
        ("host+builtin:fs_shop.sh", "host", "", ["builtin:fs_shop.sh"]),
        ("/srv/c++", "folder", "/srv/c++", []),
        ("/srv/../root/+/x.tgz", "folder", "/root", ["/x.tgz"]),
        ("oci:/a/image.tar[x:1]+/b.sh", "oci", "/a/image.tar[x:1]", ["/b.sh"]),
        ("docker://docker.io/library/alpine:3", "docker", "//docker.io/library/alpine:3", []),
        ("/a/Dockerfile", "dockerfile", "/a/Dockerfile", []),
        ("/a/x.Dockerfile[A=1,--target=b]", "dockerfile", "/a/x.Dockerfile[A=1,--target=b]", []),
        ("/a/Dockerfile.old/", "folder", "/a/Dockerfile.old", []),
        ("dockerfile:/a/../b", "dockerfile", "/b", []),
    ],
)
def test_spec(text: str, scheme: str, argument: str, additions: list[str]) -> None:
    spec = parse(text)
    assert (spec.scheme, spec.argument) == (scheme, argument)
    assert [addition.text for addition in spec.additions] == additions


def test_spec_paths_do_not_depend_on_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert str(parse(".+./a.sh+../b.tar+~/c.tar.xz")) == (
        f"{tmp_path}+{tmp_path}/a.sh+{tmp_path.parent}/b.tar+/home/me/c.tar.xz"
    )
    assert parse("~").argument == "/home/me"


REFUSED = r"""
Host  host:  folder:/x  host+/a.zip  host+/a  -x  a,b  host+~nosuchuser/x.sh  +/a.tar
host+builtin:../x.sh  host+builtin:/x.sh
"""


@pytest.mark.parametrize("text", ["", " ", "\0", "host\0", "a b", *REFUSED.split()])
def test_spec_refused(text: str) -> None:
    with pytest.raises(ImageError):
        parse(text)


@pytest.mark.parametrize("text", ["nope", "nl2bash:3", "podman:x", "Nl2bash"])
def test_unknown_image_lists_what_is_understood(text: str) -> None:
    with pytest.raises(ImageError, match=r"(?s)debian:SUITE.*builtin:NAME"):
        resolve(text)


_words = st.text("abcxyz0189.-_+[],: ", min_size=1, max_size=12)
_paths = st.lists(_words, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
_specs = st.builds(
    lambda base, rest: "+".join([base, *rest]),
    st.sampled_from(["host", "scratch", "debian:a[b,c++]", "/srv/x", "/srv/c++", "."]),
    st.lists(
        st.builds(
            str.__add__,
            _paths | st.just("builtin:x") | st.just("~/y"),
            st.sampled_from([".tar", ".tgz", ".tar.xz", ".sh"]),
        ),
        max_size=3,
    ),
)


@given(_specs | st.text())
@example("host+/a+/b.tar")
def test_canonical_spec_means_the_same(text: str) -> None:
    try:
        spec = parse(text)
    except ImageError:
        return
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)


# --- host ------------------------------------------------------------------------------------


def test_host() -> None:
    image = resolve("host")
    (layer,) = image.layers
    assert image.host and image.cwd == "/root"
    assert image.env["HOME"] == "/root" and "INTERCODE_CACHE" not in image.env
    assert stat.S_IMODE((layer / "root").stat().st_mode) == 0o700
    for name in ("tmp", "var/tmp", "run/lock"):
        assert stat.S_IMODE((layer / name).stat().st_mode) == 0o1777
    for name in ("usr", "proc", "sys", "dev", "home", "var/log", "etc/alternatives"):
        assert stat.S_IMODE((layer / name).stat().st_mode) == 0o755
    assert not list((layer / "usr").iterdir())
    for name in ("bin", "lib", "sbin"):
        if Path("/", name).is_symlink():
            assert (layer / name).readlink() == Path("/", name).readlink()
    users = (layer / "etc/passwd").read_text()
    assert users.startswith("root:x:0:0:root:/root:/bin/bash\n")
    assert all(line.count(":") == 6 for line in users.splitlines())
    assert "nogroup:x:65534:\n" in (layer / "etc/group").read_text()
    assert (layer / "etc/alternatives/awk").is_symlink() == Path("/etc/alternatives/awk").exists()


def test_host_has_nothing_of_its_owner() -> None:
    (layer,) = resolve("host").layers
    etc = {path.name for path in (layer / "etc").iterdir()}
    assert not etc & {"shadow", "gshadow", "resolv.conf", "machine-id", "ssh", "gitconfig"}
    name = os.uname().nodename
    assert name not in (layer / "etc/hosts").read_text().split()
    assert (layer / "etc/hostname").read_text() == "intercode\n"
    theirs = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    ours = {line.split(":")[0] for line in (layer / "etc/passwd").read_text().splitlines()}
    assert not {user for user in ours & theirs if user.startswith(("systemd", "postgres"))}


@as_root
@pytest.mark.parametrize("layout", ["lib/site-packages", "src"])
def test_host_hides_intercode_itself(tmp_path: Path, layout: str) -> None:
    """Golds, and the puzzles' generator, wherever below /usr it is installed or checked out."""
    with tempfile.TemporaryDirectory(dir="/usr/local", prefix="intercode-test-") as top:
        package = Path(top, layout, "intercode")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(intercode.__file__).parent, package, ignore=ignored)
        Path(top, "pyproject.toml").touch()
        info = package.parent / "intercode_gym-0.dist-info"
        info.mkdir()
        Path(info, "direct_url.json").write_text("{}")
        Path(top, "others").mkdir()
        Path(top, "others", "program").touch()
        code = """
            import json, sys
            import intercode
            from intercode.sandbox import get_provider
            sandbox = get_provider().start()
            seen = sandbox.exec(["find", sys.argv[1], "!", "-type", "d"]).stdout.decode()
            print(json.dumps([intercode.__file__, sorted(seen.split())]))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), top],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path]),
                "INTERCODE_CACHE": f"{top}/cache",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        others = [f"{top}/others/program", f"{top}/pyproject.toml"] if layout != "src" else []
        assert json.loads(done.stdout) == [str(package / "__init__.py"), others]


def test_host_is_the_same_under_any_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def modes(folder: Path) -> dict[str, int]:
        return {str(p.relative_to(folder)): p.lstat().st_mode for p in folder.rglob("*")}

    first = resolve("host")
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "other"))
    old = os.umask(0o077)
    try:
        second = resolve("host")
    finally:
        os.umask(old)
    assert first.digest == second.digest
    assert modes(first.layers[0]) == modes(second.layers[0])


def test_host_names_the_missing_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in host._PROGRAMS:
        if program not in ("awk", "diff"):
            (tmp_path / program).touch(0o755)
    monkeypatch.setattr(host, "SEARCH_PATH", str(tmp_path))
    with pytest.raises(ImageError, match="apt-get install diffutils mawk"):
        resolve("host")


def test_host_takes_no_argument() -> None:
    with pytest.raises(ImageError, match="no argument"):
        resolve("host:x")


# --- the cache -------------------------------------------------------------------------------


def test_second_resolve_does_nothing() -> None:
    told: list[str] = []
    first = resolve("host", progress=told.append)
    assert told
    told.clear()
    assert resolve("host", progress=told.append) is first
    assert not told


def test_image_is_found_again_by_another_process(cache: Path) -> None:
    image = resolve("host")
    code = "from intercode.sandbox.images import resolve; print(resolve('host', progress=print))"
    output = run_python(code).communicate()[0]
    assert output.strip() == str(image)
    record = json.loads((cache / image.digest / "image.json").read_text())
    assert record["spec"] == record["name"] == "host" and record["size"] > 0
    assert record["layers"] == [f"{image.digest}/layer"]


@pytest.mark.parametrize("damage", ["folder", "layer", "record", "text"])
def test_damaged_image_is_built_again(cache: Path, damage: str) -> None:
    image = resolve("host")
    folder = cache / image.digest
    if damage == "text":
        (folder / "image.json").write_text('{"name": "ho')
        ImageCache.default()._memory.clear()
    else:
        remove_tree(
            {"folder": folder, "layer": folder / "layer", "record": folder / "image.json"}[damage]
        )
    if damage == "layer":
        ImageCache.default()._memory.clear()
    assert resolve("host") == image
    assert (image.layers[0] / "etc/passwd").is_file()


def test_cache_can_move(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = make_tar(tmp_path / "a.tgz", ("x", b"1"))
    image = resolve(f"scratch+{tar}")
    (tmp_path / "cache").rename(tmp_path / "moved")
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "moved"))
    moved = resolve(f"scratch+{tar}", progress=lambda line: pytest.fail(line))
    assert moved.digest == image.digest
    assert (moved.layers[1] / "x").read_bytes() == b"1"


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("INTERCODE_CACHE", "~/c")
    assert cache_root() == Path("/h/c")
    monkeypatch.delenv("INTERCODE_CACHE")
    assert cache_root() == Path("/x/intercode")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert cache_root() == Path("/h/.cache/intercode")


def test_use_is_recorded_once_a_day(cache: Path) -> None:
    record = cache / resolve("host").digest / "image.json"
    os.utime(record, (0, time.time() - 3600))
    resolve("host")
    assert time.time() - record.stat().st_mtime > 3000
    os.utime(record, (0, time.time() - 2 * 86400))
    resolve("host")
    assert time.time() - record.stat().st_mtime < 3000


_SLOW_BUILD = """
    import sys, time
    from pathlib import Path
    from intercode.sandbox.images import resolve
    def build(image, script, layer):
        with open(sys.argv[2], "a") as log:
            log.write("built\\n")
        (layer / "locked").mkdir()
        (layer / "locked" / "file").write_text("x")
        (layer / "locked").chmod(0o500)
        print("building", flush=True)
        time.sleep(float(sys.argv[3]))
    print(resolve(sys.argv[1], build_script=build).digest)
"""


def test_four_processes_build_once(tmp_path: Path, cache: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("slow")
    log = tmp_path / "log"
    workers = [run_python(_SLOW_BUILD, f"scratch+{script}", log, 0.5) for _ in range(4)]
    outputs = [worker.communicate()[0].split() for worker in workers]
    assert log.read_text() == "built\n"
    assert len({output[-1] for output in outputs}) == 1
    assert sorted(map(len, outputs)) == [1, 1, 1, 2]
    assert not list((cache.parent / "locks").glob("[0-9a-f]*"))


def test_threads_build_once(tmp_path: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("slow")
    builds: list[Path] = []
    found: list[Image] = []

    def build(image: Image, script: bytes, layer: Path) -> None:
        builds.append(layer)
        time.sleep(0.2)

    def get() -> None:
        found.append(resolve(f"scratch+{script}", build_script=build))

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and len(found) == 8 and len(set(found)) == 1


def test_killed_build_is_swept(tmp_path: Path, cache: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("slow")
    worker = run_python(_SLOW_BUILD, f"scratch+{script}", tmp_path / "log", 60)
    assert worker.stdout is not None and worker.stdout.readline() == "building\n"
    (torn,) = cache.glob("*.tmp-*")
    assert sweep() == [], "it is being built"
    assert torn.exists()
    worker.kill()
    worker.communicate()
    assert sweep() == [torn]
    assert not list(cache.glob("*.tmp-*"))
    # Nor does it hinder the next build.
    assert resolve(f"scratch+{script}", build_script=lambda *_: None).layers[1].is_dir()


def test_killed_build_is_swept_by_the_next_build(tmp_path: Path, cache: Path) -> None:
    (cache / ("0" * 32 + ".tmp-1-x") / "layer" / "dir").mkdir(parents=True)
    resolve("host")
    assert not list(cache.glob("*.tmp-*"))


def test_failed_build_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    script = tmp_path / "bad.sh"
    script.write_text("bad")

    def build(image: Image, script: bytes, layer: Path) -> None:
        (layer / "x").write_text("x")
        raise ImageError("the script failed")

    for _ in range(2):
        with pytest.raises(ImageError, match="the script failed"):
            resolve(f"host+{script}", build_script=build)
    assert [info.name for info in list_images()] == ["host"]
    assert len(list(cache.iterdir())) == 1


@as_root
def test_cache_of_another_user_is_refused(tmp_path: Path) -> None:
    resolve("host")
    (cache_root() / "images").chmod(0o755)
    os.chown(cache_root() / "images", NOBODY, NOBODY)
    ImageCache(tmp_path / "mine")
    with pytest.raises(ImageError, match="INTERCODE_CACHE"):
        ImageCache(cache_root())


def test_unwritable_cache_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="set INTERCODE_CACHE"):
        ImageCache(tmp_path / "file")


def test_lock_survives_its_file(tmp_path: Path) -> None:
    """Who waits for a lock whose file its holder removes does not hold a lock on nothing."""
    path = tmp_path / "lock"
    inside = 0
    worst = 0

    def work() -> None:
        nonlocal inside, worst
        for _ in range(50):
            with locked(path):
                inside += 1
                worst = max(worst, inside)
                time.sleep(0.0002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == 1 and not path.exists()


@as_root
def test_read_only_folders_are_removed_by_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as place:
        top = Path(place, "top")
        (top / "a" / "b").mkdir(parents=True)
        (top / "a" / "b" / "file").write_text("x")
        (top / "a" / "link").symlink_to("/")
        for path, mode in ((top / "a" / "b", 0), (top / "a", 0o500), (top, 0o400)):
            path.chmod(mode)
            os.chown(path, NOBODY, NOBODY)
        os.chown(place, NOBODY, NOBODY)
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(NOBODY, NOBODY, NOBODY)
                remove_tree(top)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert not top.exists()


# --- listing and pruning ---------------------------------------------------------------------


def two_images(tmp_path: Path) -> tuple[Image, Image]:
    """A base and one built on it, used by nobody: made by a process that has ended."""
    tar = make_tar(tmp_path / "a.tgz", ("x", b"1"))
    code = """
        import sys
        from intercode.sandbox.images import resolve
        print(*(layer.parent.name for layer in resolve(sys.argv[1]).layers))
    """
    output = run_python(code, f"scratch+{tar}").communicate()[0]
    base, top = output.split()
    found = {info.digest: info for info in list_images()}
    assert set(found) == {base, top}
    assert found[top].layers == (base, top)
    assert found[top].name == "scratch+a.tgz" and found[top].spec == f"scratch+{tar}"
    assert not any(info.in_use for info in found.values())
    return Image("base", base, ()), Image("top", top, ())


def test_prune_everything(tmp_path: Path, cache: Path) -> None:
    two_images(tmp_path)
    assert len(prune(everything=True, dry_run=True)) == 2
    assert len(list(cache.iterdir())) == 2
    assert len(prune(everything=True)) == 2
    assert not list(cache.iterdir()) and not list_images()


def test_prune_keeps_what_was_used(tmp_path: Path, cache: Path) -> None:
    base, top = two_images(tmp_path)
    assert prune(3600) == []
    os.utime(cache / base.digest / "image.json", (0, 0))
    assert prune(3600) == [], "the base of a kept image is kept"
    os.utime(cache / top.digest / "image.json", (0, time.time() - 7200))
    os.utime(cache / base.digest / "image.json")
    assert [info.digest for info in prune(3600)] == [top.digest]


def test_prune_keeps_what_is_in_use(tmp_path: Path, cache: Path) -> None:
    tar = make_tar(tmp_path / "a.tgz", ("x", b"1"))
    code = """
        import sys
        from intercode.sandbox.images import resolve
        resolve(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.read()
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), f"scratch+{tar}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, *sys.path)))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
    assert prune(everything=True) == []
    assert all(info.in_use for info in list_images())
    worker.kill()
    worker.communicate()
    assert len(prune(everything=True)) == 2
    assert not list((cache.parent / "users").iterdir())


def test_prune_keeps_what_this_process_uses() -> None:
    image = resolve("host")
    assert prune(everything=True) == []
    assert image.layers[0].is_dir()


# --- folders ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "root" / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "usr" / "bin" / "x").write_text("x")
    return tmp_path / "root"


def test_folder_is_used_where_it_is(folder: Path, cache: Path) -> None:
    image = resolve(str(folder))
    assert image.layers == (folder,) and not image.host
    assert resolve(f"{folder}/") == image
    assert not list(cache.iterdir())


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_folder_digest_changes_with_its_files(folder: Path, change: str) -> None:
    def digest() -> str:
        ImageCache.default()._memory.clear()  # as in another process
        return resolve(str(folder)).digest

    before = digest()
    assert digest() == before
    file = folder / "usr" / "bin" / "x"
    if change == "content":
        file.write_text("y")
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    elif change == "mode":
        file.chmod(0o755)
    elif change == "name":
        info = file.parent.stat()
        file.rename(file.with_name("y"))
        os.utime(file.parent, ns=(info.st_atime_ns, info.st_mtime_ns))
    else:
        file.unlink()
        file.symlink_to("x")
    assert digest() != before


def test_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        resolve(f"{tmp_path}/nope")
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match="no folder"):
        resolve(f"{tmp_path}/file")
    with pytest.raises(ImageError, match="no root file system"):
        resolve(str(tmp_path))


def test_layer_over_a_folder(folder: Path, tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", ("usr/bin/y", b"y"), mode="w")
    image = resolve(f"{folder}+{tar}")
    assert image.layers[0] == folder
    assert (image.layers[1] / "usr/bin/y").read_bytes() == b"y"


# --- tarballs --------------------------------------------------------------------------------


KINDS = {
    "a.tar": "w",
    "a.tar.gz": "w:gz",
    "a.tgz": "w:gz",
    "a.tar.xz": "w:xz",
    "a.tar.bz2": "w:bz2",
}


@pytest.mark.parametrize(("suffix", "mode"), KINDS.items())
def test_archive_kinds(tmp_path: Path, suffix: str, mode: str) -> None:
    tar = make_tar(tmp_path / f"a.{suffix}", ("./d/x", b"content"), mode=mode)
    image = resolve(f"scratch+{tar}")
    assert image.name == f"scratch+a.{suffix}"
    assert (image.layers[1] / "d/x").read_bytes() == b"content"


def test_archive_without_members(tmp_path: Path) -> None:
    image = resolve(f"host+{make_tar(tmp_path / 'a.tar.gz')}")
    assert image.host and len(image.layers) == 2
    assert not list(image.layers[1].iterdir())


def test_archive_entries(tmp_path: Path) -> None:
    secret = header("home/secret", tarfile.REGTYPE, mode=0o4640)
    secret.uid, secret.gid, secret.mtime = 1000, 33, 1_500_000_000
    foreign = header("home/foreign", tarfile.REGTYPE)
    foreign.uid = 4_000_000
    private = header("home/private", tarfile.DIRTYPE, mode=0o000)
    private.mtime = 1_400_000_000
    tar = make_tar(
        tmp_path / "a.tgz",
        ("home/file", b"one"),
        secret,
        foreign,
        private,
        ("home/private/inside", b"2"),
        header("home/link", tarfile.SYMTYPE, "/etc/passwd"),
        header("home/hard", tarfile.LNKTYPE, "home/file"),
        header("home/pipe", tarfile.FIFOTYPE, mode=0o600),
        ("home/file with\nodd \udcff name", b""),
    )
    home = resolve(f"scratch+{tar}").layers[1] / "home"
    assert (home / "hard").stat().st_ino == (home / "file").stat().st_ino
    assert (home / "link").readlink() == Path("/etc/passwd")
    assert stat.S_ISFIFO((home / "pipe").lstat().st_mode)
    assert (home / "file with\nodd \udcff name").is_file()
    info = (home / "secret").stat()
    assert stat.S_IMODE(info.st_mode) == 0o4640 and info.st_mtime == 1_500_000_000
    assert (info.st_uid, info.st_gid) == ((1000, 33) if ROOT else (os.getuid(), os.getgid()))
    assert (home / "foreign").stat().st_uid == (0 if ROOT else os.getuid())
    info = (home / "private").stat()
    assert stat.S_IMODE(info.st_mode) == 0 and info.st_mtime == 1_400_000_000


def test_implied_directories_keep_the_images_metadata(tmp_path: Path) -> None:
    members = [(name, b"x") for name in ("root/a", "tmp/b", "new/deep/c", "var/tmp/d/e")]
    image = resolve(f"host+{make_tar(tmp_path / 'a.tgz', *members)}")
    layer = image.layers[1]

    def mode(name: str) -> int:
        return stat.S_IMODE((layer / name).stat().st_mode)

    assert mode("root") == 0o700
    assert mode("tmp") == mode("var/tmp") == 0o1777
    assert mode("new") == mode("new/deep") == mode("var/tmp/d") == mode("var") == mode(".") == 0o755
    assert (layer / "root").stat().st_mtime == (image.layers[0] / "root").stat().st_mtime


def test_listed_directories_have_the_archives_metadata(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "a.tgz",
        header(".", tarfile.DIRTYPE, mode=0o700),
        header("root", tarfile.DIRTYPE, mode=0o750),
        ("root/x", b""),
    )
    layer = resolve(f"host+{tar}").layers[1]
    assert stat.S_IMODE((layer / "root").stat().st_mode) == 0o750
    assert stat.S_IMODE(layer.stat().st_mode) == 0o755, "the root directory stays as it is"


def test_links_of_the_image_are_followed_inside_it(tmp_path: Path) -> None:
    """A tar of ``bin/x`` must not replace the link ``/bin -> usr/bin`` by a directory."""
    below = make_tar(
        tmp_path / "below.tgz",
        ("usr/bin/sh", b"sh"),
        header("bin", tarfile.SYMTYPE, "usr/bin"),
        header("out", tarfile.SYMTYPE, "../../../../usr"),
    )
    above = make_tar(
        tmp_path / "above.tgz",
        header("bin", tarfile.DIRTYPE, mode=0o755),
        ("bin/x", b"x"),
        ("out/y", b"y"),
        header("a", tarfile.SYMTYPE, "/etc/./sub/.."),
        ("a/z", b"z"),
    )
    layer = resolve(f"scratch+{below}+{above}").layers[2]
    assert not (layer / "bin").exists()
    assert (layer / "usr/bin/x").read_bytes() == b"x"
    assert (layer / "usr/y").read_bytes() == b"y"
    assert (layer / "etc/z").read_bytes() == b"z"


def test_later_members_win(tmp_path: Path) -> None:
    tar = make_tar(
        tmp_path / "a.tgz",
        ("x", b"first"),
        header("hard", tarfile.LNKTYPE, "x"),
        ("x", b"second"),
        ("link", b""),
        header("link", tarfile.SYMTYPE, "d1"),
        ("link/a", b""),
        header("link", tarfile.SYMTYPE, "d2"),
        ("link/b", b""),
    )
    layer = resolve(f"scratch+{tar}").layers[1]
    assert (layer / "x").read_bytes() == b"second"
    assert (layer / "hard").read_bytes() == b"first"
    assert (layer / "d1/a").exists() and (layer / "d2/b").exists()


Make = Callable[[Path], object]
HOSTILE: dict[str, tuple[str, list[Member]]] = {
    "absolute": ("absolute", [("/etc/x", b"")]),
    "absolute of archive": ("absolute", [("//x", b"")]),
    "up": ("leads out", [("../x", b"")]),
    "up inside": ("leads out", [("a/../../x", b"")]),
    "up alone": ("leads out", [("..", None)]),
    "hard link up": ("leads out", [header("x", tarfile.LNKTYPE, "../../../etc/passwd")]),
    "hard link absolute": ("absolute", [header("x", tarfile.LNKTYPE, "/etc/passwd")]),
    "hard link to the image": ("hard link", [header("x", tarfile.LNKTYPE, "etc/passwd")]),
    "hard link to nothing": ("hard link", [header("x", tarfile.LNKTYPE, "y")]),
    "hard link to a directory": ("hard link", [("d", None), header("x", tarfile.LNKTYPE, "d")]),
    "hard link to itself": ("hard link", [("x", b""), header("x", tarfile.LNKTYPE, "x")]),
    "hard link through a link": (
        "hard link",
        [header("l", tarfile.SYMTYPE, "/etc"), header("x", tarfile.LNKTYPE, "l/passwd")],
    ),
    "block device": ("device", [header("x", tarfile.BLKTYPE)]),
    "whiteout": ("device", [header("x", tarfile.CHRTYPE)]),
    "unknown type": ("unknown type", [header("x", b"Z")]),
    "link to itself": ("too many", [header("l", tarfile.SYMTYPE, "l"), ("l/x", b"")]),
    "file as a directory": ("both a file", [("x", b""), ("x/y", b"")]),
    "directory as a file": ("both a file", [("x/y", b""), ("x", b"")]),
    "over a directory": ("replace a directory", [("etc", b"")]),
    "hidden": ("read-only", [("usr/local/bin/x", b"")]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, cache: Path, case: str) -> None:
    message, members = HOSTILE[case]
    tar = make_tar(tmp_path / "a.tar", *members, mode="w")
    with pytest.raises(ImageError, match=f"refused the archive .*a.tar: .*{message}"):
        resolve(f"host+{tar}")
    assert [info.name for info in list_images()] == ["host"]
    assert len(list(cache.iterdir())) == 1


def test_link_out_of_the_archive_stays_inside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    tar = make_tar(
        tmp_path / "a.tgz",
        header("l", tarfile.SYMTYPE, str(victim)),
        ("l/x", b"gotcha"),
        header("m", tarfile.SYMTYPE, "/" + "../" * 30 + str(victim).lstrip("/")),
        ("m/y", b"gotcha"),
        header("f", tarfile.SYMTYPE, str(victim / "f")),
        ("f", b"gotcha"),
    )
    layer = resolve(f"scratch+{tar}").layers[1]
    assert not list(victim.iterdir())
    assert (layer / str(victim).lstrip("/") / "x").is_file()
    assert (layer / str(victim).lstrip("/") / "y").is_file()
    assert (layer / "f").is_file() and not (layer / "f").is_symlink()


@pytest.mark.parametrize("damage", ["cut", "noise", "text", "inner", "empty"])
def test_damaged_archive(tmp_path: Path, cache: Path, damage: str) -> None:
    tar = make_tar(tmp_path / "a.tar.gz", ("x", os.urandom(50_000)))
    data = bytearray(tar.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "noise":
        data[20_000:20_100] = os.urandom(100)
    elif damage == "inner":
        plain = make_tar(tmp_path / "b.tar", ("x", os.urandom(50_000)), mode="w").read_bytes()
        data = bytearray(plain[:30_000])
    else:
        data = bytearray(b"not an archive" if damage == "text" else b"")
    tar.write_bytes(data)
    with pytest.raises(ImageError, match=r"cannot unpack the archive .*a\.tar\.gz"):
        resolve(f"host+{tar}")
    assert len(list(cache.iterdir())) == 1


def test_missing_archive(tmp_path: Path) -> None:
    for name in ("a.tar", "a.sh"):
        with pytest.raises(ImageError, match="No such file"):
            resolve(f"host+{tmp_path}/{name}")


def test_archive_is_known_by_its_content(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", ("x", b"1"), mode="w")
    first = resolve(f"scratch+{tar}")
    copy = tmp_path / "copy.tar"
    shutil.copy(tar, copy)
    assert resolve(f"scratch+{copy}").digest == first.digest
    make_tar(tar, ("x", b"2"), mode="w")
    os.utime(tar, ns=(0, tar.stat().st_mtime_ns + 1))
    second = resolve(f"scratch+{tar}")
    assert second.digest != first.digest
    assert (second.layers[1] / "x").read_bytes() == b"2"
    assert resolve(f"host+{tar}").digest != second.digest


_names = st.text("ab", min_size=1, max_size=2)
_trees = st.lists(
    st.tuples(
        st.lists(_names, min_size=1, max_size=4),
        st.sampled_from(["file", "dir", "link"]),
        st.sampled_from([0o644, 0o755, 0o600, 0o4755, 0o1777]),
        st.binary(max_size=20),
    ),
    max_size=12,
)


@as_root
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(_trees)
def test_archives_unpack_as_tar_does(
    tmp_path: Path, tree: list[tuple[list[str], str, int, bytes]]
) -> None:
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    source, expected, layer = work / "source", work / "expected", work / "layer"
    for path in (source, expected, layer):
        path.mkdir(parents=True)
    for parts, kind, mode, data in tree:
        path = source.joinpath(*parts)
        if any(p.is_symlink() or p.is_file() for p in (path, *path.parents)) or path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to("/" + "/".join(parts))
            continue
        path.mkdir() if kind == "dir" else path.write_bytes(data)
        path.chmod(mode)
    subprocess.run(["tar", "-C", source, "-cf", work / "a.tar", "."], check=True)
    subprocess.run(["tar", "-C", expected, "-xpf", work / "a.tar"], check=True)
    expected.chmod(0o755)
    with (work / "a.tar").open("rb") as file:
        archive.unpack(file, work / "a.tar", layer, Image("scratch", "", ()))

    def facts(folder: Path) -> dict[str, tuple[object, ...]]:
        return {
            str(path.relative_to(folder)): (
                path.lstat().st_mode,
                int(path.lstat().st_mtime),
                path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes(),
            )
            for path in folder.rglob("*")
        }

    assert facts(layer) == facts(expected)


def test_layers_are_read_as_one_tree(tmp_path: Path) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    for path in ("low/d/gone", "low/d/kept", "low/f/x", "high/d", "high/o", "low/o/below"):
        (tmp_path / path).mkdir(parents=True)
    (high / "f").touch()
    layers = (low, high)

    def seen(*parts: str) -> Path | None:
        found = look(layers, parts)
        return None if found is None else found.path

    assert seen() == high
    assert seen("d") == high / "d"
    assert seen("d", "kept") == low / "d/kept"
    assert seen("f") == high / "f"
    assert seen("f", "x") is None, "a file hides the directory under it"
    assert seen("o", "below") == low / "o/below"
    if ROOT:
        os.mknod(high / "d" / "gone", stat.S_IFCHR, 0)
        assert seen("d", "gone") is None
        os.setxattr(high / "o", "trusted.overlay.opaque", b"y")
        assert seen("o", "below") is None


# --- scripts ---------------------------------------------------------------------------------


def test_script_is_run_once_over_its_base(tmp_path: Path) -> None:
    calls: list[tuple[str, bytes]] = []

    def build(image: Image, script: bytes, layer: Path) -> None:
        calls.append((image.name, script))
        (layer / f"made{len(calls)}").touch()

    one, two = tmp_path / "one.sh", tmp_path / "two.sh"
    one.write_text("echo one")
    two.write_text("echo two")
    image = resolve(f"host+{one}+{two}", build_script=build)
    assert calls == [("host", b"echo one"), ("host+one.sh", b"echo two")]
    assert image.name == "host+one.sh+two.sh" and image.host
    assert (image.layers[1] / "made1").exists() and (image.layers[2] / "made2").exists()
    resolve(f"host+{one}+{two}", build_script=build)
    resolve(f"host+{one}", build_script=build)
    assert len(calls) == 2
    two.write_text("echo other")
    os.utime(two, ns=(0, two.stat().st_mtime_ns + 1))
    assert resolve(f"host+{one}+{two}", build_script=build).digest != image.digest
    assert len(calls) == 3


def test_script_without_a_sandbox_to_run_in(tmp_path: Path) -> None:
    (tmp_path / "a.sh").touch()
    with pytest.raises(ImageError, match="needs a sandbox"):
        resolve(f"host+{tmp_path}/a.sh")


def test_builtin_addition() -> None:
    files = sorted((SOURCE / "intercode/datasets/builtin").glob("*.sh"))
    if not files:
        pytest.skip("none yet")
    seen: list[bytes] = []
    resolve(f"host+builtin:{files[0].name}", build_script=lambda image, s, layer: seen.append(s))
    assert seen == [files[0].read_bytes()]


# --- Debian ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["debian", "debian:Bookworm", "debian:a b", "debian:a[b", "debian:a[b]c", "debian:-x"]
)
def test_debian_suite_is_checked(text: str) -> None:
    with pytest.raises(ImageError, match=r"debian:bookworm\[python3,jq\]"):
        resolve(text)


@pytest.mark.parametrize("name", ["-o", "A", "x;y", "../x", "a b", "x"])
def test_debian_packages_are_checked(name: str) -> None:
    with pytest.raises(ImageError, match="no name of a Debian package"):
        resolve(f"debian:bookworm[{name}]")


def test_debian_without_root_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    if ROOT:
        monkeypatch.setattr(debian.os, "geteuid", lambda: 1000)
        (cache_root() / "images").mkdir(parents=True)
        os.chown(cache_root() / "images", 1000, 1000)
    with pytest.raises(
        ImageError, match=r"(?s)scratch\+.*sudo debootstrap .*--include=jq bookworm"
    ):
        resolve("debian:bookworm[jq]")


def test_debian_without_debootstrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ROOT:
        pytest.skip("needs root")
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    monkeypatch.setattr(debian, "KEYRING", Path("/nonexistent"))
    with pytest.raises(ImageError, match="apt-get install debootstrap debian-archive-keyring"):
        resolve("debian:bookworm")


@as_root
def test_debian_that_does_not_exist() -> None:
    if not shutil.which("debootstrap") or not debian.KEYRING.exists():
        pytest.skip("needs debootstrap")
    with pytest.raises(ImageError, match="debootstrap failed with exit code"):
        resolve("debian:nosuchsuite")
    assert not list_images()


@as_root
def test_interrupted_builder_leaves_no_process(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    mark = f"31{os.getpid()}"
    with (tmp_path / "lock").open("w") as lock, pytest.raises(KeyboardInterrupt):
        chroot.run(["sh", "-c", f"setsid sleep {mark} & echo x; wait"], lock.fileno(), interrupt)
    assert subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).stdout == b""


@as_root
def test_killed_builder_leaves_no_process(tmp_path: Path) -> None:
    mark = f"32{os.getpid()}"
    code = """
        import sys
        from intercode.sandbox.images.chroot import run
        with open(sys.argv[1], "w") as lock:
            script = f"setsid sleep {sys.argv[2]} & mount -t tmpfs none /mnt; echo started; wait"
            run(["sh", "-c", script], lock.fileno(), lambda line: print(line, flush=True))
    """
    worker = run_python(code, tmp_path / "lock", mark)
    assert worker.stdout is not None and worker.stdout.readline() == "started\n"
    worker.send_signal(signal.SIGKILL)
    with locked(tmp_path / "lock"):  # the build's lock lasts as long as its programs
        assert subprocess.run(["pgrep", "-f", f"sleep {mark}$"], capture_output=True).stdout == b""
    worker.communicate()


@pytest.fixture
def nl2bash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    """In the user's cache: it is downloaded and installed once, in a minute."""
    if not (ROOT and shutil.which("debootstrap") and debian.KEYRING.exists()):
        pytest.skip("needs root, debootstrap and debian-archive-keyring")
    monkeypatch.delenv("INTERCODE_CACHE")
    yield resolve("nl2bash")


def test_nl2bash(nl2bash: Image) -> None:
    (layer,) = nl2bash.layers
    assert nl2bash.cwd == "/" and set(nl2bash.env) == {"PATH", "HOME"}
    programs = {p.name for d in ("bin", "sbin", "games") for p in (layer / "usr" / d).iterdir()}
    assert not programs & set(RECIPES["nl2bash"].absent)
    wanted = "bash python3 git tree netstat ping curl cpio jq less ps killall hexdump dig convert"
    assert programs >= set(wanted.split())
    names = "bin boot dev etc home lib lib32 lib64 libx32 media opt proc root run sbin srv sys usr"
    seen = {path.name for path in layer.iterdir() if not path.name.startswith(".")}
    assert seen == {*names.split(), "var"}, "no /tmp and no /mnt"
    for name in ("dev", "run/lock", "var/lib/apt/lists"):
        assert not list((layer / name).iterdir())
    assert (layer / "etc/machine-id").read_bytes() == b""
    assert os.uname().nodename not in (layer / "etc/hosts").read_text().split()
    assert (layer / "usr/sbin/policy-rc.d").stat().st_mode & 0o111
    assert [line.split(":")[0] for line in (layer / "etc/group").read_text().splitlines()][-4:] == [
        *("nogroup", "crontab", "messagebus", "_ssh")
    ]
    assert str(cache_root()) not in (layer / "var/log/bootstrap.log").read_text()
    groups = {path.lstat().st_gid for path in layer.rglob("*")}
    assert max(groups) <= 65535 and groups > {0}


# --- the command -----------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar = make_tar(tmp_path / "a.tgz", ("x", b"1"))
    assert main(["images", "list"]) == 0
    assert "no images are built yet" in capsys.readouterr().out
    assert main(["images", "build", "host", f"scratch+{tar}", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [image["name"] for image in json.loads(out)["images"]] == ["host", "scratch+a.tgz"]
    assert "built host" in err
    assert main(["images", "list"]) == 0
    out = capsys.readouterr().out
    assert "scratch+a.tgz" in out and "in use" in out and "nl2bash" in out
    assert main(["images", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed["images"]) == 3 and "nl2bash" in listed["recipes"]
    assert main(["images", "prune", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["build", "nope"], 2),
        (["build", "host+x"], 2),
        (["build", "host+/nonexistent.tar"], 1),
        (["build", "debian:x["], 1),
    ],
)
def test_command_fails(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", *arguments]) == code
    out, err = capsys.readouterr()
    assert not out and "error:" in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["nope"], ["build"], ["prune", "--unused-for", "3"]])
def test_command_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["images", *arguments])
    assert caught.value.code == 2


def test_prune_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_images(tmp_path)
    assert main(["images", "prune"]) == 0
    assert "removed 0 images" in capsys.readouterr().out
    assert main(["images", "prune", "--unused-for", "0m", "--dry-run"]) == 0
    assert "would remove 2 images" in capsys.readouterr().out
    assert main(["images", "prune", "--all"]) == 0
    assert "removed 2 images" in capsys.readouterr().out


def test_image_is_plain_data() -> None:
    import pickle

    image = Image("x", "0", (Path("/"),))
    assert pickle.loads(pickle.dumps(image)) == image == replace(image)
    assert len({image, replace(image)}) == 1
