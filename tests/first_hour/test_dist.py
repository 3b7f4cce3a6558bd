"""`make dist`: what a release consists of, the same for whoever builds it."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import intercode
from first_hour.conftest import REPOSITORY
from waiting import PATIENCE

PROGRAM = "intercode_sandbox/native/static/process1"
MACHINES = {"x86_64": 62, "aarch64": 183}
LOAD, INTERPRETER, STACK = 1, 3, 0x6474E551
EXECUTE, WRITE = 1, 2


def test_sdists_and_wheels_are_built_twice_and_checked(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(REPOSITORY / "scripts/dist"), str(tmp_path / "dist")],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"intercode {intercode.__version__}\n" in done.stdout
    assert len(re.findall("PASSED", done.stdout)) == 9
    made = {path.name for path in (tmp_path / "dist").iterdir()}
    names = [
        f"intercode_{name}-{intercode.__version__}"
        for name in ("gym", "integrations", "paper", "sandbox")
    ]
    assert {f"{name}.tar.gz" for name in names} < made and len(made) == 9
    with zipfile.ZipFile(tmp_path / "dist" / f"{names[0]}-py3-none-any.whl") as archive:
        # A place's own compiler makes this one, for the C library that is there.
        assert sources(archive) == ["intercode/evaluate/moved_clock.c"]
        (file,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        needs = f"Requires-Dist: intercode-sandbox=={intercode.__version__}\n"
        assert needs in archive.read(file).decode()
    for architecture in MACHINES:
        (wheel,) = (tmp_path / "dist").glob(f"*-py3-none-manylinux*_{architecture}.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert not sources(archive)
            assert archive.getinfo(PROGRAM).external_attr >> 16 & 0o777 == 0o755
            check_program(archive.read(PROGRAM), architecture)


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
