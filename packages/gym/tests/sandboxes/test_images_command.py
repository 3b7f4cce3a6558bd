"""``intercode images``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode.cli.main import main
from sandbox.images import make_tar, two_images
from sandbox.images.conftest import cache as cache


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
        (["build", "host+/nonexistent.tar"], 2),
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
