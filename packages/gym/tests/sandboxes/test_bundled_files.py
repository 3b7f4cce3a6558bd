"""Images to which files of the bundled tasks are added, by their names."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from intercode.datasets.builtin import FOLDER
from intercode_sandbox.images import resolve
from intercode_sandbox.images.base import parse
from intercode_sandbox.native.provider import NativeProvider
from sandbox.dockerfiles import Folder, read
from sandbox.images.conftest import cache as cache

NAME = "builtin:fs_shop.sh"


def test_the_name_of_an_addition() -> None:
    spec = parse(f"host+{NAME}")
    assert (spec.scheme, [addition.text for addition in spec.additions]) == ("host", [NAME])


def test_the_content_of_an_addition() -> None:
    scripts: list[bytes] = []
    resolve(f"host+{NAME}", build_script=lambda image, script, layer: scripts.append(script))
    assert scripts == [(FOLDER / "fs_shop.sh").read_bytes()]


def test_an_addition_below_a_dockerfile(tmp_path: Path) -> None:
    with closing(NativeProvider()) as provider:
        image = Folder(tmp_path, provider).build(f"FROM host+{NAME}\nRUN ls / | wc -l > /x")
    assert read(image, "/x").strip().isdigit()
