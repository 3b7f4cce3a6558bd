"""`make dist`: what a release consists of, the same for whoever builds it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import intercode
from first_hour.conftest import REPOSITORY
from waiting import PATIENCE


def test_sdist_and_wheel_are_built_twice_and_checked(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(REPOSITORY / "scripts/dist"), str(tmp_path / "dist")],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"intercode {intercode.__version__}\n" in done.stdout
    assert len(re.findall("PASSED", done.stdout)) == 3
    made = {path.name.rpartition("_")[2] for path in (tmp_path / "dist").iterdir()}
    assert made == {"aarch64.whl", "64.whl", f"gym-{intercode.__version__}.tar.gz"}
