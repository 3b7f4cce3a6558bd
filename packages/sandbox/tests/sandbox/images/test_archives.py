"""Archives as layers: what is unpacked is what tar unpacks."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode_sandbox.images import Image, resolve, tarballs
from intercode_sandbox.images.tree import find_entry
from ordinary import ordinary_user

from . import ROOT, as_root, header, make_tar

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
        tarballs.unpack(file, work / "a.tar", layer, Image("scratch", "", ()))

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
        found = find_entry(layers, parts)
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


def test_a_namespace_that_lacks_the_owner() -> None:
    """As root of a user namespace with one id, of which nothing can be given to another."""
    owned = tarfile.TarInfo("usr/x")
    owned.gid = 42
    with ordinary_user() as user:
        tar_file = make_tar(user.home / "a.tar.gz", owned)
        tar_file.chmod(0o644)
        build = "import sys; from intercode_sandbox.images import resolve; resolve(sys.argv[1])"
        command = ("unshare", "-Ur", sys.executable, "-c", build)
        done = subprocess.run(
            [*user.prefix, *command, f"scratch+{tar_file}"],
            env=user.env,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
