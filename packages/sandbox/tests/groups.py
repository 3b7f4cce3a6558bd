"""The cgroups of a sandbox, as the machine sees them."""

from __future__ import annotations

from pathlib import Path

from intercode_sandbox import SandboxBackend
from intercode_sandbox.native import cgroup
from waiting import eventually, new_marker, sleepers


def groups_of(sandbox: SandboxBackend) -> dict[str, Path]:
    """Its own folders, by the controller that limits it there."""
    marker = new_marker()
    sandbox.popen(["sleep", marker], channels={})
    assert eventually(lambda: sleepers(marker))
    lines = Path(f"/proc/{sleepers(marker)[0]}/cgroup").read_text().splitlines()
    paths = {name: line.split(":")[2] for line in lines for name in line.split(":")[1].split(",")}
    found: dict[str, Path] = {}
    for hierarchy in cgroup.hierarchies():
        for controller in hierarchy.controllers:
            path = paths.get(controller if hierarchy.version == 1 else "", "")
            _, own, rest = path.partition(f"/{cgroup.PREFIX}")
            folder = Path(hierarchy.folder, f"{own.strip('/')}{rest}")
            if own and folder.is_dir():
                found.setdefault(controller, folder)
    return {name: found[name] for name in cgroup.CONTROLLERS if name in found}


def told(folder: Path, name: str) -> int:
    """The number in a file of a cgroup."""
    return int((folder / name).read_text())
