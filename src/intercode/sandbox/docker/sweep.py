"""Containers that killed processes have left, found by their label, and their removal.

As a rule there are none: a container ends when its caller does, and the engine removes it.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

from intercode.errors import SandboxError
from intercode.sandbox.docker.engine import LABEL, LEASE, Engine
from intercode.sandbox.docker.home import PARENT, RUNS
from intercode.sandbox.images import cache_root
from intercode.sandbox.native import lease


def sweep(engine: Engine, dry_run: bool = False) -> list[str]:
    """Remove what belongs to processes that are gone; what was found.

    Raises:
        SandboxError: The engine failed.
    """
    found = []
    with engine.errors("listing containers") as api:
        listed = api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
        for container in listed:
            if not lease.is_gone(container["Labels"].get(LEASE, "")):
                continue
            found.append(f"container {container['Id'][:12]}")
            if not dry_run:
                with suppress(SandboxError), engine.errors("removing a container") as own:
                    own.remove_container(container["Id"], force=True, v=True)
    return found + sweep_folders(dry_run)


def sweep_all(dry_run: bool = False) -> list[str]:
    """The same, where there may be no engine."""
    engine = Engine()
    try:
        return sweep(engine, dry_run)
    except SandboxError:
        return sweep_folders(dry_run)
    finally:
        engine.close()


def sweep_folders(dry_run: bool = False) -> list[str]:
    """The same of what is kept on this machine for containers. Needs no engine."""
    found = []
    for folder in (cache_root() / PARENT).glob(f"{RUNS}*"):
        if lease.is_gone(folder.name.removeprefix(RUNS)):
            found.append(str(folder))
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
    return found
