"""`make dist`: what a release consists of, the same for whoever builds it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import intercode
from first_hour.conftest import REPOSITORY, Someone, install, publish, variables
from waiting import PATIENCE

PROGRAM = "intercode_sandbox/native/static/process1"
MACHINES = {"x86_64": 62, "aarch64": 183}
LOAD, INTERPRETER, STACK = 1, 3, 0x6474E551
EXECUTE, WRITE = 1, 2


@pytest.mark.timeout(6 * PATIENCE)
def test_a_release_from_an_empty_folder_to_installed_wheels(tmp_path: Path) -> None:
    """A clone builds all packages twice, checks them, installs them, and runs an episode."""
    publish(REPOSITORY, tmp_path / "published")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", tmp_path / "published", clone], check=True)
    done = subprocess.run(
        [str(clone / "scripts/dist"), str(tmp_path / "dist")],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"intercode {intercode.__version__}\n" in done.stdout
    packages = sorted(path.name for path in (REPOSITORY / "packages").iterdir())
    count = 2 * len(packages) + 1  # the sandbox has a wheel for each architecture
    assert len(re.findall("PASSED", done.stdout)) == count
    made = {path.name for path in (tmp_path / "dist").iterdir()}
    bills = {name for name in made if name.endswith(".cdx.json")}
    assert bills == {f"{name}.cdx.json" for name in made if name.endswith(".whl")}
    check_bills([tmp_path / "dist" / name for name in sorted(bills)], tmp_path)
    made -= bills
    names = [f"intercode_{name}-{intercode.__version__}" for name in packages]
    assert {f"{name}.tar.gz" for name in names} < made and len(made) == count
    with zipfile.ZipFile(
        tmp_path / "dist" / f"intercode_gym-{intercode.__version__}-py3-none-any.whl"
    ) as archive:
        # A place's own compiler makes this one, for the C library that is there.
        assert sources(archive) == ["intercode/evaluate/clock_shift.c"]
        (file,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        needs = f"Requires-Dist: intercode-sandbox=={intercode.__version__}\n"
        assert needs in archive.read(file).decode()
    for architecture in MACHINES:
        (wheel,) = (tmp_path / "dist").glob(f"*-py3-none-manylinux*_{architecture}.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert not sources(archive)
            assert archive.getinfo(PROGRAM).external_attr >> 16 & 0o777 == 0o755
            check_program(archive.read(PROGRAM), architecture)


def check_bills(bills: list[Path], folder: Path) -> None:
    """A validator of the format accepts each bill, which tells its wheel and what that needs."""
    tools = install(folder / "tools", "cyclonedx-python-lib[json-validation]>=11,<12")
    someone = Someone(tools, folder, env=variables(tools, folder))
    someone.run("python", "-c", VALIDATE, *map(str, bills))
    for file in bills:
        bill = json.loads(file.read_text("utf-8"))
        package = bill["metadata"]["component"]
        wheel = file.with_suffix("").with_suffix("")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert package["hashes"] == [{"alg": "SHA-256", "content": digest}]
        assert package["licenses"] == [{"license": {"id": "MIT"}}]
        assert package["version"] == intercode.__version__
        for entry in bill["components"]:
            requirement = entry["properties"][0]["value"].partition(";")[0]
            _, _, version = requirement.partition("==")  # empty if it is not exact
            assert entry.get("version", "") == version.strip()
            if entry["name"].startswith("intercode-"):
                assert version.strip() in ("", intercode.__version__)


def test_the_program_is_built_without_a_warning_and_always_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        done = build("--strict", tmp_path / name)
        assert done.returncode == 0, done.stderr
    check_program((tmp_path / "one").read_bytes(), os.uname().machine)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_machine_without_a_compiler_is_told_what_to_do(tmp_path: Path) -> None:
    done = build(tmp_path / "none", PATH=str(tmp_path), CC="")
    assert done.returncode != 0 and "Install one (apt-get install gcc" in done.stderr
    assert not (tmp_path / "none").exists()


def test_an_architecture_that_there_is_not_is_refused() -> None:
    """A package without the program would be the silent outcome of a slip."""
    done = subprocess.run(
        [sys.executable, "-c", "import hatch_build; hatch_build.target()"],
        cwd=REPOSITORY / "packages/sandbox",
        env={**os.environ, "INTERCODE_TARGET": "x86-64"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "x86_64, aarch64 or none, not 'x86-64'" in done.stderr


def build(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "packages/sandbox/hatch_build.py"), *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


VALIDATE = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
validator = JsonStrictValidator(SchemaVersion.V1_6)
for path in sys.argv[1:]:
    assert not (problem := validator.validate_str(Path(path).read_text())), (path, problem)
"""
"""Checks files by the format's own schema."""


def sources(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if name.endswith((".c", ".h"))]


def check_program(program: bytes, architecture: str) -> None:
    """It needs no other file, and nothing of it can be both written and executed."""
    assert program[:5] == b"\x7fELF\x02" and len(program) < 128 << 10
    kind, machine = struct.unpack_from("<HH", program, 16)
    assert (kind, machine) == (3, MACHINES[architecture])  # its place varies
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    segments = [struct.unpack_from("<II", program, start + size * i) for i in range(count)]
    assert INTERPRETER not in dict(segments)
    assert not dict(segments)[STACK] & EXECUTE
    assert all(flags & (EXECUTE | WRITE) != EXECUTE | WRITE for _, flags in segments)
    assert {kind for kind, _ in segments} >= {LOAD, STACK}
