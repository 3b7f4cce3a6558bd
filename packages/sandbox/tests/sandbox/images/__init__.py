"""Images. Builds are real, in a cache of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

from intercode_sandbox.images import Image, list_images
from sources import SOURCES

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="needs root")
NOBODY = 65534

Member = tuple[str, bytes | None] | tarfile.TarInfo


def make_tar(path: Path, *members: Member, mode: str = "w:gz") -> Path:
    """An archive: files by name and content, directories by None, the rest as headers."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.mtime = 1_600_000_000
            if member[1] is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            else:
                info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1] or b""))
    return path


def header(name: str, kind: bytes, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def run_python(code: str, *args: object) -> subprocess.Popen[str]:
    path = (*map(str, SOURCES), os.environ["PYTHONPATH"], *sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def two_images(tmp_path: Path) -> tuple[Image, Image]:
    """A base and one built on it, used by nobody: made by a process that has ended."""
    tar = make_tar(tmp_path / "a.tgz", ("x", b"1"))
    code = """
        import sys
        from intercode_sandbox.images import resolve
        print(*(layer.parent.name for layer in resolve(sys.argv[1]).layers))
    """
    output = run_python(code, f"scratch+{tar}").communicate()[0]
    base, top = output.split()
    found = {info.digest: info for info in list_images()}
    assert set(found) == {base, top}
    assert found[top].layers == (base, top)
    assert found[top].name == "scratch+a.tgz" and found[top].spec == f"scratch+{tar}"
    assert not any(info.in_use for info in found.values())
    return Image("base", base, ()), Image("top", top, ())
