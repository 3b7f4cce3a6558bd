"""Each package by itself, from its wheel, with what it depends on and nothing else of ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from docs.pages import blocks, check_output, commands
from first_hour.conftest import REPOSITORY, Someone, install, publish, variables
from intercode.registry import INTEGRATIONS, PAPER


@pytest.fixture(scope="module")
def alone(place: Path, wheels: dict[str, Path]) -> Path:
    """A virtual environment with the sandbox's package and what it depends on."""
    return install(place / "sandbox-alone", str(wheels["sandbox"]))


def test_the_sandbox_alone(alone: Path, tmp_path: Path) -> None:
    someone = Someone(alone, tmp_path, env=variables(alone, tmp_path))
    someone.run("python", "-c", "import importlib.util as u; assert not u.find_spec('intercode')")
    python, console = blocks(REPOSITORY / "packages/sandbox/README.md")
    done = someone.run("python", str(someone.file("example.py", python.text)))
    assert done.stdout.splitlines() == [r"0 b'hello\n'", "['/root/note']"]
    for command, stated in commands(console):
        done = someone.run("sh", "-c", command)
        check_output(stated, done.stdout + done.stderr, console.where)
    someone.run("python", "-c", LISTED)


@pytest.fixture(scope="module")
def gym(place: Path, wheels: dict[str, Path]) -> Path:
    """A virtual environment with the gym's package, and no other but what it depends on."""
    return install(place / "gym-alone", str(wheels["sandbox"]), str(wheels["gym"]))


MISSING = {
    PAPER: (
        "replay --results x.json",
        "run bash --protocol paper --limit 1",
        "report --paper .",
        "run bash --preset paper-gpt-4-bash-try-again",
        "export folder --to paper",
    ),
    INTEGRATIONS: (
        "serve bash",
        "mcp bash",
        "gateway",
        "agents list",
        "run bash --agent codex --model openai/x",
        "run bash --agent cli:true",
        "run harbor:folder",
        "run bash --on ray",
        "datasets export bash --to harbor --out folders",
    ),
}
"""Package → commands for which it has to be there."""


@pytest.mark.parametrize(
    ("package", "command"),
    [(package, command) for package, commands in MISSING.items() for command in commands],
)
def test_what_another_package_has_names_it(
    gym: Path, tmp_path: Path, package: str, command: str
) -> None:
    someone = Someone(gym, tmp_path, env=variables(gym, tmp_path))
    done = someone.run("intercode", *command.split(), code=2)
    assert f"needs the package {package}: pip install {package}" in done.stderr


def test_an_unknown_preset_names_the_package_of_presets(gym: Path, tmp_path: Path) -> None:
    someone = Someone(gym, tmp_path, env=variables(gym, tmp_path))
    done = someone.run("intercode", "run", "bash", "--preset", "papr-x", code=2)
    assert "there is no preset 'papr-x'" in done.stderr
    assert f"pip install {PAPER}" in done.stderr


def test_the_gym_alone(gym: Path, tmp_path: Path) -> None:
    someone = Someone(gym, tmp_path, env=variables(gym, tmp_path))
    someone.run(
        "python",
        "-c",
        "import importlib.util as u\n"
        "assert not any(map(u.find_spec, ('intercode_integrations', 'intercode_paper')))\n"
        "import intercode\n"
        "try:\n"
        "    intercode.connect('http://127.0.0.1:1')\n"
        "except intercode.UsageError as error:\n"
        "    assert 'pip install intercode-integrations' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n",
    )
    assert "100.0 %" in someone.run("intercode", "run", "sql", "--limit", "2").stdout
    checks = json.loads(someone.run("intercode", "doctor", "--json").stdout)["checks"]
    states = {check["name"]: (check["ok"], check["fix"]) for check in checks}
    assert states["intercode-sandbox"] == (True, "")
    for package in MISSING:
        assert states[package] == (None, f"pip install {package}")


@pytest.mark.parametrize("package", ["gym", "integrations", "paper"])
def test_the_example_of_a_package(root: Someone, package: str) -> None:
    example = next(blocks(REPOSITORY / f"packages/{package}/README.md"))
    root.run("python", str(root.file("example.py", example.text)))


def test_the_gym_has_the_public_names_of_sandboxes(root: Someone) -> None:
    root.run(
        *("python", "-c"),
        "import intercode.sandbox as gym, intercode_sandbox as sandbox\n"
        "assert gym.__all__ == sandbox.__all__\n"
        "assert all(getattr(gym, name) is getattr(sandbox, name) for name in gym.__all__)\n",
    )


def test_a_workspace_of_uv(tmp_path: Path) -> None:
    """One command installs all packages from a clone, though some extras exclude each other."""
    tools = install(tmp_path / "tools", "uv>=0.9,<1")
    clone = tmp_path / "clone"
    publish(REPOSITORY, tmp_path / "published")
    subprocess.run(["git", "clone", "-q", tmp_path / "published", clone], check=True)
    someone = Someone(tools, clone, env=variables(tools, tmp_path))
    someone.run("uv", "sync", "--quiet", "--system-certs")
    done = someone.run(".venv/bin/intercode", "run", "bash", "--limit", "1", "--json")
    assert json.loads(done.stdout)["statistics"]["episodes"] == 1


LISTED = """
import importlib, pkgutil
import intercode_sandbox
for module in pkgutil.walk_packages(intercode_sandbox.__path__, "intercode_sandbox."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name == "docker", error
"""
"""Imports all modules: none needs more than the package's dependencies, but for Docker's extra."""
