"""``images export`` and ``images import``: one file, checked when it is taken."""

from __future__ import annotations

import json
import os
import platform
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.errors import ImageError
from intercode_sandbox.images import image_export as carrying, list_images, pinned_debian, resolve
from intercode_sandbox.images.cache import ImageCache
from intercode_sandbox.images.tree import content_digest
from sandbox.images import ROOT, make_tar
from sandbox.images.conftest import cache as cache

resolving: Any = sys.modules["intercode_sandbox.images.resolve"]  # its function has its name

Tell = pytest.CaptureFixture[str]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """An image of two layers, with a hard link and a mode of its own."""
    link = tarfile.TarInfo("usr/other")
    link.type, link.linkname = tarfile.LNKTYPE, "usr/x"
    program = tarfile.TarInfo("usr/run")
    program.mode = 0o4755
    first = make_tar(tmp_path / "a.tar.gz", ("usr/x", b"one"), link, program)
    second = make_tar(tmp_path / "b.tar.gz", ("etc/y", b"two"))
    return f"scratch+{first}+{second}"


def test_a_name_stands_for_a_carried_image(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "_digest_by_spec", {})
    image = resolve(spec)
    for archive in tmp_path.glob("*.tar.gz"):
        archive.unlink()
    with pytest.raises(ImageError, match="does not exist"):
        resolve(spec)
    resolving.register_digest(spec, image.digest)
    assert resolve(spec) == image and str(resolving.check(spec)) == spec


@pytest.mark.parametrize("ending", [".tar", ".tgz", ".tar.xz", ".tar.bz2"])
def test_an_image_is_carried(
    ending: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Tell
) -> None:
    file = tmp_path / f"image{ending}"
    assert main(["images", "export", spec, str(file)]) == 0
    image = resolve(spec)
    assert f"{image.digest}  " in capsys.readouterr().out
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "elsewhere"))
    assert main(["images", "import", str(file)]) == 0
    told = capsys.readouterr().out
    assert told.endswith(f"use it with --image digest:{image.digest[:12]}\n")
    carried = resolve(f"digest:{image.digest[:12]}")
    assert carried.digest == image.digest and carried.env == image.env
    assert content_digest(carried.layers) == content_digest(image.layers)
    (layer,) = carried.layers
    assert (layer / "usr/x").stat().st_ino == (layer / "usr/other").stat().st_ino
    assert (layer / "usr/run").stat().st_mode & 0o7777 == 0o4755
    assert main(["images", "import", str(file), "--json"]) == 0  # it is there already
    assert json.loads(capsys.readouterr().out)["digest"] == image.digest
    plain = resolve(f"scratch+{tmp_path}/{file.name}")
    assert (plain.layers[-1] / "etc/y").read_bytes() == b"two"


def altered(file: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write the same file with other facts in its header."""
    target = file.with_name(f"altered-{file.name}")
    with tarfile.open(file) as source:
        source.next()
        facts = json.loads(source.pax_headers[carrying._HEADER])
        change(facts)
        headers = {carrying._HEADER: json.dumps(facts)}
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT, pax_headers=headers) as made:
            for member in source:
                made.addfile(member, source.extractfile(member) if member.isreg() else None)
    return target


def test_what_has_other_files_than_it_says_is_refused(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Tell
) -> None:
    file = tmp_path / "image.tar"
    assert main(["images", "export", spec, str(file)]) == 0
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "elsewhere"))
    wrong = [
        altered(file, lambda facts: facts.update(tree="0" * 32)),
        # The digest by which everybody's `base` is found is for its own tree alone.
        altered(file, lambda facts: facts.update(digest=next(iter(pinned_debian.trees())))),
    ]
    for one in wrong:
        assert main(["images", "import", str(one)]) == 1
        assert "has other files than recorded" in capsys.readouterr().err
    assert not list_images()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"machine": "vax"}, f"is for vax, and this machine is {platform.machine()}"),
        ({"digest": "../../x"}, "must be a file of 'intercode images export'; to use"),
        ({"digest": None}, "'intercode images export'; to use"),
    ],
)
def test_what_is_for_others_or_makes_no_sense(
    change: dict[str, Any], told: str, spec: str, tmp_path: Path, capsys: Tell
) -> None:
    file = tmp_path / "image.tar"
    assert main(["images", "export", spec, str(file)]) == 0
    assert main(["images", "import", str(altered(file, lambda x: x.update(change)))]) == 1
    assert told in capsys.readouterr().err


def test_what_is_no_image(tmp_path: Path, capsys: Tell) -> None:
    (tmp_path / "text.tar").write_text("text")
    plain = make_tar(tmp_path / "a.tar.gz", ("usr/x", b"one"))
    for file in (tmp_path / "text.tar", plain, tmp_path / "none.tar"):
        assert main(["images", "import", str(file)]) == 1
        assert "scratch+./FILE" in capsys.readouterr().err


def test_what_cannot_be_exported(spec: str, tmp_path: Path, capsys: Tell) -> None:
    assert main(["images", "export", "host", str(tmp_path / "a.tar")]) == 1
    assert "this machine's own /usr" in capsys.readouterr().err
    assert main(["images", "export", spec, str(tmp_path / "a.zip")]) == 1
    assert "must end in one of .tar, " in capsys.readouterr().err
    assert main(["images", "export", spec, str(tmp_path / "none/a.tar")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_an_image_of_another_user(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ROOT:
        pytest.skip("needs root")
    file = tmp_path / "image.tar"
    assert main(["images", "export", spec, str(file)]) == 0
    file = altered(file, lambda facts: facts.update(user="1000:1000"))
    monkeypatch.setattr(carrying, "has_single_user", lambda: True)
    with pytest.raises(ImageError, match="have only the user root"):
        carrying.import_image(file, (), ImageCache.default(), print)


def test_a_digest_of_none(spec: str) -> None:
    for digest in ("abc", "0" * 32, "../../x", "*" * 8):
        with pytest.raises(ImageError, match="no images here have a digest"):
            resolve(f"digest:{digest}")
    assert os.path.isdir(resolve(f"digest:{resolve(spec).digest}").layers[0])
