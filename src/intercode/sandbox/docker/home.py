"""The provider's folder on this machine: what is mounted into its containers."""

from __future__ import annotations

import json
import os
import py_compile
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intercode.sandbox.docker.runtime import runtime
from intercode.sandbox.images import cache_root
from intercode.sandbox.native import lease
from intercode.sandbox.ownership import when_gone

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("sandbox/native", "sandbox/docker/inside")
_MODULES = ("rights.py",)
_START = """
import json, os, socket, sys, traceback, types
root = os.path.dirname(__file__)
sys.path[:] = [*(path for path in sys.path if path != root), root + "/others"]
for package in %r:
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [root + package[len("intercode"):].replace(".", "/")]
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect(sys.argv[1])
try:
    from intercode.sandbox.docker.inside.main import main
    main(control, sys.argv[2])
except Exception:
    control.send(b"J" + json.dumps({"failed": traceback.format_exc()}).encode())
os._exit(0)
"""
_NOBODY, _NOBODY_INSIDE = 1_878_982_656, 65_533
"""An id of this machine's that no account has, and one of a remapped container's."""
PARENT = "docker"
RUNS = "run-"


class Home:
    """What containers need of this machine. It goes with the process that made it.

    Args:
        preload: The modules that workers run.
        path: Where those of them that are not ours are found.
        info: What the engine says of itself.
    """

    def __init__(self, preload: Sequence[str], path: Sequence[str], info: dict[str, Any]) -> None:
        self.quota = has_quota(info)
        self._owner = closed_to(info)
        self.python = runtime(self._owner)
        self.preload = json.dumps(list(preload))
        self.lease = lease.name()
        self.folder = cache_root() / PARENT / f"{RUNS}{self.lease}"
        self.folder.mkdir(parents=True, mode=0o700)
        self._finalizer = when_gone(self, shutil.rmtree, self.folder, True)
        self.empty = self.folder / "empty"
        self.empty.mkdir()
        self.code = self.folder / "code"
        self._copy_code(preload)
        self._copy_others(preload, path)

    def link(self) -> Path:
        """A new folder for the socket of one container, with the places of its other mounts."""
        place = self.folder / secrets.token_hex(6)
        place.mkdir()
        for name in ("python", "code"):
            (place / name).mkdir()
        if os.geteuid() == 0:
            os.chown(place, self._owner, self._owner)
        place.chmod(0o700)
        return place

    def close(self) -> None:
        """Remove it all."""
        self._finalizer()

    def _copy_code(self, preload: Sequence[str]) -> None:
        """Only what runs inside: the package holds gold, too."""
        own = [name.split(".")[1:-1] for name in preload if name.startswith("intercode.")]
        folders = dict.fromkeys((*_PACKAGES, *("/".join(parts) for parts in own)))
        packages: dict[str, None] = {}
        for folder in folders:
            target = self.code / folder
            target.mkdir(parents=True)
            parts = folder.split("/")
            packages |= dict.fromkeys(
                ".".join(["intercode", *parts[:i]]) for i in range(len(parts) + 1)
            )
            for path in (_ROOT / folder).glob("*.py"):
                copy = shutil.copyfile(path, target / path.name)
                py_compile.compile(str(copy), doraise=True, quiet=2)
        for name in _MODULES:
            shutil.copyfile(_ROOT / name, self.code / name)
        (self.code / "start.py").write_text(_START % (list(packages),), encoding="utf-8")

    def _copy_others(self, preload: Sequence[str], path: Sequence[str]) -> None:
        others = self.code / "others"
        others.mkdir()
        for name in preload:
            found = [file for folder in path if (file := Path(folder, f"{name}.py")).is_file()]
            if found:
                shutil.copyfile(found[0], others / found[0].name)


def has_quota(info: dict[str, Any]) -> bool:
    """Whether a container's size can be limited: overlay2 on xfs with project quotas."""
    status = dict(entry for entry in info.get("DriverStatus") or () if len(entry) == 2)
    return info.get("Driver") in ("btrfs", "zfs") or status.get("Backing Filesystem") == "xfs"


def remapped(info: dict[str, Any]) -> int | None:
    """Which id of this machine's is a container's 0; None: 0 itself, or an ordinary user's.

    An engine with ``--userns-remap`` tells by the name of its folder.
    """
    if not any("name=userns" in option for option in info.get("SecurityOptions") or ()):
        return None
    found = re.search(r"/(\d+)\.\d+/?$", info.get("DockerRootDir", ""))
    return int(found[1]) if found else None


def closed_to(info: dict[str, Any]) -> int:
    """The owner, as an id of this machine's, of our folders in a container.

    No program there has this id, or rights over others' files. Process 1 has such rights, but only
    over ids that its container has: where the engine remaps ids, it must be one of those.
    """
    first = remapped(info)
    return _NOBODY if first is None else first + _NOBODY_INSIDE
