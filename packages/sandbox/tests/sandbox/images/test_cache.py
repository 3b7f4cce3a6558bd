"""The cache: built once, whoever asks, and nothing is left of what failed."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from intercode_sandbox import doctor
from intercode_sandbox.errors import ImageError, UsageError
from intercode_sandbox.host_files import cache_root, file_lock, remove_tree, tree_size
from intercode_sandbox.images import Image, list_images, resolve, sweep
from intercode_sandbox.images.cache import ImageCache
from waiting import eventually

from . import NOBODY, as_root, make_tar, run_python


def test_second_resolve_does_nothing() -> None:
    told: list[str] = []
    first = resolve("host", progress=told.append)
    assert told
    told.clear()
    assert resolve("host", progress=told.append) is first
    assert not told


def test_image_is_found_again_by_another_process(cache: Path) -> None:
    image = resolve("host")
    code = "from intercode_sandbox.images import resolve; print(resolve('host', progress=print))"
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
    assert time.time() - record.stat().st_mtime > 3000  # allow clock: fifty minutes
    os.utime(record, (0, time.time() - 2 * 86400))
    resolve("host")
    assert time.time() - record.stat().st_mtime < 3000  # allow clock: fifty minutes


_SLOW_BUILD = """
    import sys, time
    from pathlib import Path
    from intercode_sandbox.images import resolve
    def build(image, script, layer):
        with open(sys.argv[2], "a") as log:
            log.write("built\\n")
        (layer / "locked").mkdir()
        (layer / "locked" / "file").write_text("x")
        (layer / "locked").chmod(0o500)
        print("building", flush=True)
        while len(asked.read_text()) < int(sys.argv[3]):
            time.sleep(0.01)
    asked = Path(sys.argv[2] + ".asked")
    with asked.open("a") as file:
        file.write("x")
    print(resolve(sys.argv[1], build_script=build).digest)
"""


def test_four_processes_build_once(tmp_path: Path, cache: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("slow")
    log = tmp_path / "log"
    workers = [run_python(_SLOW_BUILD, f"scratch+{script}", log, 4) for _ in range(4)]
    outputs = [worker.communicate()[0].split() for worker in workers]
    assert log.read_text() == "built\n"
    assert len({output[-1] for output in outputs}) == 1
    assert sorted(map(len, outputs)) == [1, 1, 1, 2]
    assert not list((cache.parent / "locks").glob("[0-9a-f]*"))


def test_threads_build_once(tmp_path: Path) -> None:
    script = tmp_path / "slow.sh"
    script.write_text("slow")
    builds: list[Path] = []
    asked: list[int] = []
    found: list[Image] = []

    def build(image: Image, script: bytes, layer: Path) -> None:
        builds.append(layer)
        assert eventually(lambda: len(asked) == 8)

    def get() -> None:
        asked.append(threading.get_ident())
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
    worker = run_python(_SLOW_BUILD, f"scratch+{script}", tmp_path / "log", 9)
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
            with file_lock(path):
                inside += 1
                worst = max(worst, inside)
                os.sched_yield()
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


def test_image_is_plain_data() -> None:
    import pickle

    image = Image("x", "0", (Path("/"),))
    assert pickle.loads(pickle.dumps(image)) == image == replace(image)
    assert len({image, replace(image)}) == 1


@as_root
@pytest.mark.defends("lateral")
@pytest.mark.parametrize("wrong", ["owner", "mode"])
def test_a_cache_that_others_could_change_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Not only its images: agents, repositories, databases, models, a container's Python."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("INTERCODE_CACHE", str(folder))
    assert cache_root() == folder
    folder.mkdir()
    assert cache_root() == folder
    if wrong == "owner":
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o1777)
    with pytest.raises(UsageError, match=str(folder)):
        cache_root()
    assert not doctor._check_cache().ok and not doctor._check_endings()
    with pytest.raises(UsageError):
        resolve("host")


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("d" * 250, 30)])
def test_a_tree_of_any_depth_is_removed(tmp_path: Path, name: str, depth: int) -> None:
    """Deeper than functions recurse, and than a path is long; in folders that nobody may enter."""
    top = tmp_path / "top"
    top.mkdir()
    (tmp_path / "kept").touch()
    above = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=above)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=above))
        os.symlink(tmp_path, "link", dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.fchmod(above, 0)
        os.close(above)
        above = below
    os.close(above)
    tree_size(tmp_path)
    remove_tree(top)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
