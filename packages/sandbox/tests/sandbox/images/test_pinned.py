"""``base``: its lock, where its packages come from, and that a tree is the lock's or refused."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import Image, pinned_debian, resolve
from intercode_sandbox.images.base import Command, ImageBuilderContext
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.debian_packages import DebianPackage, fetch
from intercode_sandbox.images.pinned_debian import PackageLockFile, make_locked, parse_lock
from intercode_sandbox.images.tree import content_digest
from sources import ROOT as REPOSITORY

from . import ROOT, make_tar

TIME = "20260712T000000Z"
POOL = "pool/main/h/hello"


def test_every_lock_is_complete() -> None:
    files = sorted(Path(pinned_debian.__file__).parent.glob("*.lock"))
    assert Path(pinned_debian.__file__).with_name("base-amd64.lock") in files
    guide = (REPOSITORY / "docs/sandbox/images.md").read_text(encoding="utf-8")
    for file in files:
        lock = parse_lock(file.read_text(encoding="ascii"))
        names = [package.name for package in lock.packages]
        assert names == sorted(names) and {"bash", "coreutils", "git", "python3"} <= set(names)
        for package in lock.packages:
            assert len(package.sha256) == 64 and int(package.sha256, 16)
            assert package.path.startswith("pool/main/") and package.size > 1000
            assert package.path.endswith((f"_{file.stem[5:]}.deb", "_all.deb"))
        assert pinned_debian._seconds(lock.snapshot) > 1_700_000_000
        assert not lock.tree or len(lock.tree) == 32
        assert f" Debian 12 ({lock.release}, " in guide


def test_a_machine_without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ImageError, match=r"packages for amd64.*this machine is riscv64"):
        resolve("base")
    with pytest.raises(ImageError, match="takes no argument"):
        resolve("base:x")


# -- the digest of a tree --------------------------------------------------------------------------


def tree(place: Path) -> Path:
    (place / "d").mkdir(parents=True)
    (place / "d/f").write_text("x")
    (place / "l").symlink_to("d/f")
    return place


def test_a_trees_digest_is_of_paths_modes_links_and_bytes(tmp_path: Path) -> None:
    digests = {content_digest([tree(tmp_path / "0")])}
    (tree(tmp_path / "1") / "d/f").write_text("y")
    (tree(tmp_path / "2") / "d/f").chmod(0o755)
    (tree(tmp_path / "3") / "d").chmod(0o700)
    (tree(tmp_path / "4") / "d/f").rename(tmp_path / "4/d/g")
    changed = tree(tmp_path / "5") / "l"
    changed.unlink()
    changed.symlink_to("d")
    (tree(tmp_path / "6") / "e").mkdir()
    digests |= {content_digest([tmp_path / str(n)]) for n in range(1, 7)}
    assert len(digests) == 7


def test_a_trees_digest_is_of_no_owner_time_or_layer(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "1"), tree(tmp_path / "2")
    os.utime(other / "d/f", (1, 1))
    if ROOT:
        os.lchown(other / "d/f", 33, 44)
        os.lchown(other / "l", 33, 44)
    (tmp_path / "3/d").mkdir(parents=True)
    (tmp_path / "3/d/f").write_text("x")
    (other / "d/f").write_text("below")
    assert content_digest([one]) == content_digest([other, tmp_path / "3"])


# -- packages --------------------------------------------------------------------------------------


def deb(*members: tuple[str, bytes | None]) -> bytes:
    """A package's file, with a byte of padding if one is needed."""
    folder = Path()
    parts = [("debian-binary", b"2.0\n")]
    control = ("./control", b"Package: hello\nVersion: 1\nArchitecture: all\nMulti-Arch: same\n")
    for name, listed in (("control.tar.xz", [control]), ("data.tar.xz", [*members])):
        file = folder / name
        parts.append((name, make_tar(file, *listed, mode="w:xz").read_bytes()))
        file.unlink()
    made = b"!<arch>\n"
    for name, data in parts:
        made += f"{name:16}{0:12}{0:6}{0:6}{'100644':8}{len(data):10}`\n".encode()
        made += data + b"\n" * (len(data) % 2)
    return made


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mirror and a snapshot archive: the folders ``mirror`` and ``snapshot/TIME``."""
    root, asked = tmp_path / "www", tmp_path / "asked"
    for name in ("mirror", f"snapshot/{TIME}"):
        (root / name / POOL).mkdir(parents=True)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: object) -> None:
            super().__init__(*given, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            with asked.open("a") as file:
                file.write(f"{self.path.split('/')[1]}\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.chdir(tmp_path)
    for name, folder in (("MIRROR", "mirror"), ("SNAPSHOT", "snapshot")):
        url = f"http://127.0.0.1:{server.server_port}/{folder}/"
        monkeypatch.setenv(f"INTERCODE_DEBIAN_{name}", url)
    yield root
    server.shutdown()
    server.server_close()
    thread.join()


def put(place: Path, data: bytes) -> DebianPackage:
    """Serve a package, whose name is one to be quoted."""
    path = f"{POOL}/hello_1+b1%3a_all.deb"
    (place / path).write_bytes(data)
    return DebianPackage("hello", "1+b1", path, len(data), hashlib.sha256(data).hexdigest())


def test_the_mirror_comes_before_the_archive(servers: Path, tmp_path: Path) -> None:
    package = put(servers / "mirror", b"good")
    put(servers / "snapshot" / TIME, b"evil")
    fetch([package], TIME, tmp_path, print)
    assert (tmp_path / package.sha256).read_bytes() == b"good"
    assert "snapshot" not in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("mirror", [b"", b"evil", b"good, and more", b"goo"])
def test_what_the_mirror_has_not_is_in_the_archive(
    servers: Path, tmp_path: Path, mirror: bytes
) -> None:
    if mirror:
        put(servers / "mirror", mirror)
    package = put(servers / "snapshot" / TIME, b"good")
    fetch([package], TIME, tmp_path, print)
    assert (tmp_path / package.sha256).read_bytes() == b"good"


def test_what_neither_has_is_said(
    servers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = put(servers / "mirror", b"evil")
    package = replace(package, sha256=hashlib.sha256(b"good").hexdigest())
    with pytest.raises(ImageError) as caught:
        fetch([package], TIME, tmp_path, print)
    told = str(caught.value)
    assert f"hello 1+b1:\n  http://127.0.0.1:{port(told)}/mirror/{POOL}/hello_1%2Bb1" in told
    assert "its SHA-256 is not the pinned one" in told and f"/snapshot/{TIME}/pool" in told
    assert "404 File not found" in told and "intercode images import FILE" in told
    assert not (tmp_path / package.sha256).exists()
    monkeypatch.setenv("INTERCODE_DEBIAN_MIRROR", "http://127.0.0.1:9/x")  # the port "discard"
    with pytest.raises(ImageError, match=r"127\.0\.0\.1:9/x/.*: Connection refused"):
        fetch([package], TIME, tmp_path, print)


def test_a_proxy_is_respected(
    servers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = os.environ["INTERCODE_DEBIAN_MIRROR"]
    monkeypatch.setenv("http_proxy", url.removesuffix("/mirror/"))
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the environment
    monkeypatch.setenv("INTERCODE_DEBIAN_MIRROR", "http://mirror.invalid/debian")
    (servers / "http:/mirror.invalid/debian" / POOL).mkdir(parents=True)
    package = put(servers / "http:/mirror.invalid/debian", b"good")
    fetch([package], TIME, tmp_path, print)
    assert (tmp_path / package.sha256).read_bytes() == b"good"


def port(told: str) -> str:
    return told.split("127.0.0.1:")[1].split("/")[0]


# -- a build of such packages ----------------------------------------------------------------------


def no_script(image: Image, script: bytes | Command, layer: Path) -> None:
    (layer / "finished").write_text("")
    (layer / "finished").chmod(0o644)
    (layer / ".dockerenv").touch()  # which an engine's container has


def build(lock: PackageLockFile, cache: Path) -> tuple[Image, Path]:
    cache.mkdir()
    image = make_locked(lock, ImageBuilderContext(ImageCache(cache), lambda line: None, no_script))
    return image, image.layers[0]


@pytest.fixture
def lock(servers: Path) -> PackageLockFile:
    """A system of one package."""
    doc = "./usr/share/doc/hello"
    package = put(
        servers / "mirror",
        deb(
            *(("./bin/", None), ("./bin/hello", b"#!/bin/sh\necho hello\n"), ("./etc/", None)),
            *((f"{doc}/", None), (f"{doc}/copyright", b"free"), (f"{doc}/changelog.gz", b"long")),
            *(("./usr/share/man/man1/hello.1.gz", b"man"), ("./usr/share/manual", b"kept")),
            *(("./var/lib/dpkg/info/", None), ("./usr/share/locale/de/hello.mo", b"hallo")),
        ),
    )
    return PackageLockFile("12.15", TIME, "", (package,))


def test_a_package_is_laid_into_a_merged_tree(lock: PackageLockFile, tmp_path: Path) -> None:
    image, layer = build(lock, tmp_path / "cache")
    assert (layer / "bin").is_symlink() and (layer / "usr/bin/hello").read_bytes()[:2] == b"#!"
    shared = layer / "usr/share"
    assert sorted(path.name for path in shared.iterdir()) == ["doc", "manual"]
    assert [path.name for path in (shared / "doc/hello").iterdir()] == ["copyright"]
    database = layer / "var/lib/dpkg"
    assert "Status: install ok installed\nVersion: 1\n" in (database / "status").read_text()
    assert "\n/bin/hello\n" in (database / "info/hello:all.list").read_text()
    assert (layer / "etc/hosts").stat().st_mtime == pinned_debian._seconds(TIME)
    assert not (layer.parent / "packages").exists()
    assert [path.name for path in image.layers[1].iterdir()] == ["finished"]
    assert ImageCache(tmp_path / "cache").read(image.digest)


def test_two_builds_agree_and_another_tree_is_refused(
    lock: PackageLockFile, tmp_path: Path
) -> None:
    tree = content_digest(build(lock, tmp_path / "1")[0].layers)
    assert build(replace(lock, tree=tree), tmp_path / "2")[0].digest == tree
    with pytest.raises(
        ImageError, match=rf"its tree is {tree}, but that of the lock is {'0' * 32}"
    ):
        build(replace(lock, tree="0" * 32), tmp_path / "3")


def test_what_is_no_package_is_refused(servers: Path, tmp_path: Path) -> None:
    package = put(servers / "mirror", b"<html>")
    with pytest.raises(
        ImageError, match=r"cannot unpack the package hello: .*not a Debian package"
    ):
        build(PackageLockFile("12.15", TIME, "", (package,)), tmp_path / "cache")
    assert not list((tmp_path / "cache/images").iterdir())
