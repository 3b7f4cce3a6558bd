"""A root file system of a few megabytes for images: a shell and some programs of this machine's."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = """
sh cat chmod chown cp env find id ln ls mkdir mv rm sort touch
"""
FOLDERS = {"dev": 0o755, "proc": 0o755, "root": 0o700, "sys": 0o755, "tmp": 0o1777}
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home/app:/bin/sh\n",
    "etc/group": "root:x:0:\nstaff:x:50:app\napps:x:1001:\n",
}


def write(path: Path, programs: str = PROGRAMS, more: Mapping[str, str] = {}) -> Path:
    """An archive of it, with `more` files: they can be executed."""
    files: dict[str, Path] = {}
    for name in programs.split():
        program = shutil.which(name)
        assert program is not None
        files[f"bin/{name}"] = Path(program).resolve()
        needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(", needs):
            files[library.lstrip("/")] = Path(library).resolve()
    with tarfile.open(path, "w") as archive:
        for name, mode in FOLDERS.items():
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            archive.addfile(folder)
        for name, source in files.items():
            archive.add(source, name)
        for name, text in {**FILES, **more}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            member.mode = 0o755 if name in more else 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return path
