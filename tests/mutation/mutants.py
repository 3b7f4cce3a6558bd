"""Making a mutant of the source, and running a probe on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .defences import Defence

ROOT = Path(__file__).parents[2]
sys.path += [*map(str, ROOT.glob("packages/*/tests")), str(ROOT / "packages/sandbox")]
import hatch_build  # noqa: E402 - beside the package, as a build finds it

from sources import SOURCES, TEST_PATH, source_of  # noqa: E402

SRC = os.pathsep.join(map(str, SOURCES))
_SECONDS = 250


def occurrences(defence: Defence) -> list[int]:
    """How often each text to replace is there; each once, or the table has rotted."""
    return [source_of(edit.file).read_text().count(edit.old) for edit in defence.edits]


def mutate(defence: Defence, folder: Path) -> Path:
    """A copy of the source without this defence."""
    # With compiled files, but those that another process is just writing.
    ignored = shutil.ignore_patterns("*.egg-info", "*.pyc.*")
    copy = folder / "src"
    for source in SOURCES:
        shutil.copytree(
            source, copy, ignore=ignored, copy_function=link_or_copy, dirs_exist_ok=True
        )
    for edit in defence.edits:
        path = copy / edit.file
        text = path.read_text().replace(edit.old, edit.new)
        path.unlink()  # it may be the source itself
        path.write_text(text)
        # Python might take the compiled file for the changed source's.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
    if any(edit.file.endswith((".c", ".h")) for edit in defence.edits):
        program = copy / hatch_build.PLACE
        program.unlink()
        hatch_build.build(program, platform.machine(), ("-O1",), program.parent)
    return copy


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, which takes a tenth of the time; or copy it."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def probe(defence: Defence, src: str | Path = SRC) -> tuple[int, str]:
    """Exit code and output; see `probes`."""
    done = subprocess.run(
        [sys.executable, "-m", "mutation.probes", _module(defence), defence.name, str(src)],
        env={**os.environ, "PYTHONPATH": f"{src}{os.pathsep}{TEST_PATH}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_SECONDS,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _module(defence: Defence) -> str:
    """Find the module of a defence's probe, and import no other."""
    begins = re.compile(rf"^(def )?{defence.name}\b", re.MULTILINE)
    modules = Path(__file__).parent.glob("probes*.py")
    (found,) = [path.stem for path in modules if begins.search(path.read_text())]
    return f"mutation.{found}"


def unrooted(defence: Defence) -> bool:
    return defence.needs_root and os.geteuid() != 0
