"""Packages of others with a module `intercode`: what is said, and that it puts everything right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from first_hour.conftest import Someone, pip

AGAIN = ("--no-deps", "--force-reinstall")


@pytest.fixture(scope="module", autouse=True)
def put_back(venv: Path, wheels: dict[str, Path]) -> Iterator[None]:
    """Whatever fails here, the other tests have our wheels alone."""
    yield
    pip(str(venv / "bin/python"), "install", *AGAIN, str(wheels["gym"]))
    for folder in ("intercode_bench-0.1.22", "intercode-0.0.7"):
        assert not list(venv.glob(f"lib/python*/site-packages/{folder}.dist-info"))


def follow(someone: Someone, said: str) -> None:
    commands = [line.split() for line in said.splitlines() if line.startswith("  pip ")]
    assert commands, said
    for command in commands:
        someone.run(*command)


def test_an_extra_is_installed_as_doctor_says(root: Someone) -> None:
    checks = json.loads(root.run("intercode", "doctor", "--json").stdout)["checks"]
    fix = next(check["fix"] for check in checks if check["name"] == "extra yaml")
    assert fix == "pip install 'intercode-gym[yaml]'"
    root.run("sh", "-c", fix)
    assert "ok    extra yaml" in root.run("intercode", "doctor").stdout
    root.run("pip", "uninstall", "-qy", "pyyaml")


def test_theirs_after_ours(root: Someone) -> None:
    for other in ("intercode-bench==0.1.22", "intercode==0.0.7"):
        root.run("pip", "install", "-q", "--no-deps", other)
        said = root.run("intercode", "run", "bash", code=1).stderr
        name = other.partition("=")[0]
        assert f"the package {name} installs" in said and "has replaced files" in said
        follow(root, said)
        assert root.run("intercode", "--version").stderr == ""


def test_theirs_before_ours(root: Someone, wheels: dict[str, Path]) -> None:
    root.run("pip", "install", "-q", "--no-deps", "intercode-bench==0.1.22")
    root.run("pip", "install", "-q", *AGAIN, str(wheels["gym"]))
    said = root.run("intercode", "doctor", code=1)
    assert "FAIL  intercode" in said.stdout and "would remove files" in said.stdout
    assert "pip uninstall -y intercode-bench && pip install" in said.stdout and not said.stderr
    root.run("pip", "uninstall", "-qy", "intercode-bench")
    said = root.run("intercode", "run", "bash", code=1)
    assert "are missing" in said.stderr
    follow(root, said.stderr)
    assert "ok    intercode" in root.run("intercode", "doctor").stdout
