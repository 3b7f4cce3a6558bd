"""Scripts as layers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import Image, resolve


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


def test_files_of_a_script_have_the_same_times_whenever_it_runs(tmp_path: Path) -> None:
    def build(image: Image, script: bytes, layer: Path) -> None:
        (layer / "folder").mkdir()
        (layer / "folder" / "new").touch()
        (layer / "old").touch()
        (layer / "link").symlink_to("nowhere")
        os.utime(layer / "old", (7, 7))

    script = tmp_path / "one.sh"
    script.write_text("echo one")
    layer = resolve(f"host+{script}", build_script=build).layers[-1]
    times = {name: int((layer / name).lstat().st_mtime) for name in os.listdir(layer)}
    fixed = 1767225600
    assert times == {"folder": fixed, "link": fixed, "old": 7}
    assert int((layer / "folder" / "new").stat().st_mtime) == fixed


def test_script_without_a_sandbox_to_run_in(tmp_path: Path) -> None:
    (tmp_path / "a.sh").touch()
    with pytest.raises(ImageError, match="needs a sandbox"):
        resolve(f"host+{tmp_path}/a.sh")
