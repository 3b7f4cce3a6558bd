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


def test_a_checkout_needs_no_metadata(site: Path) -> None:
    for metadata in site.glob("*.dist-info"):
        metadata.rmdir()
    assert not start(site, "-c", "import intercode_integrations, intercode_paper").stderr


def test_the_origin_is_the_address_of_the_project() -> None:
    project = source_of("intercode_sandbox").parents[1] / "pyproject.toml"
    assert f'Homepage = "{intercode_sandbox.ORIGIN}"\n' in project.read_text("utf-8")
