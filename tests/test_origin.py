"""Packages of another project or another version under our names are refused at import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import intercode
import intercode_sandbox
from sources import SOURCES, source_of
from waiting import PATIENCE

VERSION = intercode.__version__


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages: ours, and the metadata of the gym and the paper."""
    for source in SOURCES:
        for module in source.glob("intercode*"):
            (tmp_path / module.name).symlink_to(module)
    for name in ("gym", "integrations", "paper"):
        (tmp_path / f"intercode_{name}-{VERSION}.dist-info").mkdir()
    return tmp_path


def start(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={"PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def replace_package(site: Path, module: str, text: str) -> Path:
    (site / module).unlink()
    (site / module).mkdir()
    file = site / module / "__init__.py"
    file.write_text(text)
    return file


def test_packages_of_one_release_are_accepted(site: Path) -> None:
    done = start(site, "-c", "import intercode_paper, sys; print(intercode_paper.__file__)")
    assert done.stdout == f"{site}/intercode_paper/__init__.py\n", done.stderr


def test_a_foreign_sandbox_is_refused(site: Path) -> None:
    file = replace_package(site, "intercode_sandbox", f"__version__ = {VERSION!r}\n")
    done = start(site, "-c", "import intercode")
    assert f"ImportError: intercode_sandbox ({file}) is not InterCode's package" in done.stderr
    done = start(site, "-m", "intercode_console", "run", "bash")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"intercode: error: intercode_sandbox ({file}) is not InterCode")


@pytest.mark.parametrize("dependent", ["integrations", "paper"])
def test_a_foreign_gym_is_refused(site: Path, dependent: str) -> None:
    file = replace_package(site, "intercode", f"__version__ = {VERSION!r}\n")
    done = start(site, "-c", f"import intercode_{dependent}")
    assert f"PackageError: intercode ({file}) is not InterCode's package" in done.stderr


@pytest.mark.parametrize("dependent", ["gym", "integrations", "paper"])
def test_a_package_of_another_version_is_refused(site: Path, dependent: str) -> None:
    metadata = site / f"intercode_{dependent}-1.9.dist-info"
    (site / f"intercode_{dependent}-{VERSION}.dist-info").rename(metadata)
    script = (
        "from intercode_sandbox.errors import InterCodeError\n"
        "try:\n    import intercode_integrations, intercode_paper\n"
        "except ImportError as error:\n    print(isinstance(error, InterCodeError), error)\n"
    )
    lower = "intercode_sandbox" if dependent == "gym" else "intercode"
    assert start(site, "-c", script).stdout == (
        f"True {lower} ({site}/{lower}/__init__.py) has version {VERSION}, and "
        f"intercode_{dependent} ({metadata}) needs 1.9. Install both from one release\n"
    )


FOREIGN = "raise SystemExit('foreign code ran')\n"
UPPER = {
    "integrations": ("intercode.sources", "harbor", "SOURCES"),
    "paper": ("intercode.environments", "bash:paper", "ENVS"),
}
"""Upper package → a group of its entry points, a name there, and the group's registry."""


@pytest.fixture(params=sorted(UPPER))
def upper(site: Path, request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Return an upper package's module, and its metadata with an entry point."""
    module = f"intercode_{request.param}"
    metadata = site / f"{module}-{VERSION}.dist-info"
    group, name, _ = UPPER[request.param]
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}.any:thing\n")
    title = f"Metadata-Version: 2.1\nName: {module}\nVersion: {VERSION}\n"
    (metadata / "METADATA").write_text(title)
    return request.param, metadata


def use_entry_point(site: Path, package: str) -> tuple[str, str]:
    """Return whether an upper package's entry point is trusted, and the error of its use."""
    _, name, registry = UPPER[package]
    script = (
        f"from intercode.registry import {registry} as registry\n"
        f"assert {name!r} in registry and not registry.is_foreign({name!r})\n"
        f"print(registry.is_trusted({name!r}))\n"
        f"try:\n    registry.get({name!r})\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = start(site, "-c", script)
    assert not done.returncode, done.stderr
    trust, error = done.stdout.splitlines()
    return trust, error


def test_an_upper_package_of_the_release_is_trusted(site: Path, upper: tuple[str, Path]) -> None:
    trust, error = use_entry_point(site, upper[0])
    assert trust == "True"
    assert error == f"ModuleNotFoundError No module named 'intercode_{upper[0]}.any'"


def test_a_foreign_upper_package_is_neither_trusted_nor_imported(
    site: Path, upper: tuple[str, Path]
) -> None:
    module = f"intercode_{upper[0]}"
    file = replace_package(site, module, FOREIGN)
    (file.parent / "any.py").write_text(FOREIGN)
    trust, error = use_entry_point(site, upper[0])
    assert trust == "False"
    assert error == (
        f"PackageError {module} ({file}) is not InterCode's package of this name. Remove or "
        f"rename it; pip install intercode-{upper[0]} installs InterCode's"
    )


def test_an_upper_package_of_another_version_is_neither_trusted_nor_imported(
    site: Path, upper: tuple[str, Path]
) -> None:
    module = f"intercode_{upper[0]}"
    metadata = upper[1].rename(site / f"{module}-1.9.dist-info")
    replace_package(site, module, f'{FOREIGN}ORIGIN = "{intercode.ORIGIN}"\n')
    assert use_entry_point(site, upper[0]) == (
        "False",
        f"PackageError {module} ({metadata}) has another version than intercode_sandbox, "
        f"{VERSION}. Install both from one release",
    )


def test_a_foreign_package_under_the_name_of_the_integrations_gives_no_public_name(
    site: Path,
) -> None:
    file = replace_package(site, "intercode_integrations", FOREIGN)
    done = start(site, "-c", "import intercode; intercode.connect")
    assert f"PackageError: intercode_integrations ({file}) is not InterCode's" in done.stderr


def test_a_foreign_command_is_refused(site: Path) -> None:
    file = replace_package(site, "intercode_integrations", FOREIGN)
    metadata = site / f"intercode_integrations-{VERSION}.dist-info"
    points = "[intercode.commands]\nserve = intercode_integrations:main\n"
    (metadata / "entry_points.txt").write_text(points)
    done = start(site, "-m", "intercode_console", "serve")
    assert done.returncode == 1
    assert done.stderr.startswith(f"intercode: error: intercode_integrations ({file}) is not")


def test_a_checkout_needs_no_metadata(site: Path) -> None:
    for metadata in site.glob("*.dist-info"):
        metadata.rmdir()
    assert not start(site, "-c", "import intercode_integrations, intercode_paper").stderr


def test_the_origin_is_the_address_of_the_project() -> None:
    project = source_of("intercode_sandbox").parents[1] / "pyproject.toml"
    assert f'Homepage = "{intercode_sandbox.ORIGIN}"\n' in project.read_text("utf-8")
