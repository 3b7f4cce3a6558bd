"""Debian, and the recipes made of it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import cache_root, file_lock
from intercode_sandbox.images import Image, debian, list_images, resolve
from intercode_sandbox.images.debian import RECIPES
from waiting import new_marker, sleepers

from . import ROOT, as_root, run_python


@pytest.mark.parametrize(
    "text", ["debian", "debian:Bookworm", "debian:a b", "debian:a[b", "debian:a[b]c", "debian:-x"]
)
def test_debian_suite_is_checked(text: str) -> None:
    with pytest.raises(ImageError, match=r"debian:bookworm\[python3,jq\]"):
        resolve(text)


@pytest.mark.parametrize("name", ["-o", "A", "x;y", "../x", "a b", "x"])
def test_debian_packages_are_checked(name: str) -> None:
    with pytest.raises(ImageError, match="not the name of a Debian package"):
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


def test_debian_without_debootstrap_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not ROOT:
        pytest.skip("needs root")
    monkeypatch.setattr(debian.shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "none")
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

    mark = new_marker()
    with (tmp_path / "lock").open("w") as lock, pytest.raises(KeyboardInterrupt):
        debian.run(["sh", "-c", f"setsid sleep {mark} & echo x; wait"], lock.fileno(), interrupt)
    assert sleepers(mark) == []


@as_root
def test_killed_builder_leaves_no_process(tmp_path: Path) -> None:
    mark = new_marker()
    code = """
        import sys
        from pathlib import Path
        from intercode_sandbox.images.debian import run
        from intercode_sandbox.host_files import file_lock
        with file_lock(Path(sys.argv[1])) as lock:
            script = f"setsid sleep {sys.argv[2]} & mount -t tmpfs none /mnt; echo started; wait"
            run(["sh", "-c", script], lock, lambda line: print(line, flush=True))
    """
    worker = run_python(code, tmp_path / "lock", mark)
    assert worker.stdout is not None and worker.stdout.readline() == "started\n"
    worker.send_signal(signal.SIGKILL)
    with file_lock(tmp_path / "lock"):  # the build's lock lasts as long as its programs
        assert sleepers(mark) == []
    worker.communicate()


@pytest.fixture
def nl2bash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    """In the user's cache: it is downloaded and installed once, in a minute."""
    if not (ROOT and shutil.which("debootstrap") and debian.KEYRING.exists()):
        pytest.skip("needs root, debootstrap and debian-archive-keyring")
    monkeypatch.delenv("INTERCODE_CACHE")
    yield resolve("nl2bash")


@pytest.mark.timeout(1200)  # a minute where disk and network are quick
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
