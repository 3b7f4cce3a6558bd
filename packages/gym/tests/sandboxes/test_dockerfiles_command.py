"""``intercode images``: options for Dockerfiles, and ``inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercode.cli.main import main
from intercode_sandbox.images.cache import ImageCache

pytestmark = pytest.mark.ordinary
DOCKERFILE = "FROM host AS a\nARG V=1\nRUN echo $V > /x\nFROM a\nCMD x\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path


def test_build_tells_each_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "build", "./Dockerfile"]) == 0
    told = capsys.readouterr().err
    assert f"building {folder.name}/Dockerfile:3 RUN echo $V > /x\n" in told
    assert f"built {folder.name}/Dockerfile:3 RUN echo $V > /x in " in told
    assert main(["images", "build", "./Dockerfile"]) == 0
    assert capsys.readouterr().err == ""  # this process remembers it
    ImageCache.default()._memory.clear()
    assert main(["images", "build", "./Dockerfile"]) == 0
    told = capsys.readouterr().err
    assert told == f"cached {folder.name}/Dockerfile:3 RUN echo $V > /x\n"
    assert main(["images", "build", "-q", "./Dockerfile"]) == 0
    assert capsys.readouterr().err == ""


def test_build_with_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--build-arg", "V=2", "--target", "a", "--network", "--pull", "--json", "-q"]
    assert main(["images", "build", ".", *options]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert image["spec"] == f"dockerfile:{folder}[V=2,--target=a,--network=default]"
    assert Path(image["layers"][1], "x").read_text() == "2\n"
    assert main(["images", "build", "./Dockerfile[V=2]", *options[2:]]) == 0
    assert json.loads(capsys.readouterr().out)["images"][0]["digest"] == image["digest"]


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "inspect", "./Dockerfile", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["user"], found["cwd"], found["config"]["Cmd"]) == (
        "0:0",
        "/",
        ["/bin/sh", "-c", "x"],
    )
    assert [layer["name"].partition("/")[2] for layer in found["layers"]] == [
        "",
        "Dockerfile:3 RUN echo $V > /x",
        "Dockerfile",
    ]
    assert main(["images", "inspect", "./Dockerfile"]) == 0
    assert "config   Cmd: [" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "host", "--target", "a"], 2, "'host' is not a Dockerfile"),
        (["build", ".", "--build-arg", "V"], 2, "'V' is not NAME=VALUE"),
        (["build", ".", "--build-arg", "V=1,2"], 2, "holds a comma"),
        (["build", ".", "--build-arg", "W=1"], 2, "no build argument 'W'; it has: V"),
        (["inspect", "./nothing/Dockerfile"], 2, "nothing/Dockerfile does not exist"),
    ],
)
def test_what_is_wrong_is_told(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["images", *arguments]) == code
    assert message in capsys.readouterr().err
