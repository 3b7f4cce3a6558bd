"""What is pruned, and what is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from intercode_sandbox.images import list_images, prune, resolve
from sources import SOURCES

from . import make_tar, two_images


def test_prune_everything(tmp_path: Path, cache: Path) -> None:
    two_images(tmp_path)
    assert len(prune(include_recent=True, dry_run=True)) == 2
    assert len(list(cache.iterdir())) == 2
    assert len(prune(include_recent=True)) == 2
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
        from intercode_sandbox.images import resolve
        resolve(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.read()
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), f"scratch+{tar}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*SOURCES, *sys.path)))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
    assert prune(include_recent=True) == []
    assert all(info.in_use for info in list_images())
    worker.kill()
    worker.communicate()
    assert len(prune(include_recent=True)) == 2
    assert not list((cache.parent / "users").iterdir())


def test_prune_keeps_what_this_process_uses() -> None:
    image = resolve("host")
    assert prune(include_recent=True) == []
    assert image.layers[0].is_dir()
