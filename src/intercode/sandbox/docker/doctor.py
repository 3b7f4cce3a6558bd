"""Whether this machine has an engine that can run sandboxes, found out by running one."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode.errors import InterCodeError
from intercode.sandbox.docker.engine import INSTALL, Engine, default_url, may_be_there
from intercode.sandbox.docker.home import has_quota, remapped
from intercode.sandbox.docker.images import SCHEME
from intercode.sandbox.docker.provider import DockerProvider
from intercode.sandbox.native.doctor import Check

DOCKER_SANDBOX = "docker sandbox"
_REMAP = 'add "userns-remap": "default" to /etc/docker/daemon.json, and restart the engine'
_QUOTA = "keep the engine's data-root on xfs, mounted with the option pquota"


def check() -> list[Check]:
    """Run the whole path once, and look at what limits it. Without an engine, one note."""
    if find_spec("docker") is None:
        return [Check("docker", None, "the package docker is not installed", INSTALL)]
    engine = Engine()
    try:
        info = engine.info()
    except InterCodeError as error:
        detail = f"no engine at {default_url()}: {error}"
        if may_be_there(Path(default_url().removeprefix("unix://"))):
            return [Check("docker", None, detail, getattr(error, "fix", ""))]
        fix = "apt-get install docker.io"
        return [Check("docker", None, f"no engine at {default_url()}: --sandbox native only", fix)]
    finally:
        engine.close()
    return [_engine(info), _sandbox(), _user(info), _disk(info), _cgroup(info)]


def _engine(info: dict[str, Any]) -> Check:
    return Check(
        "docker",
        True,
        f"engine {info.get('ServerVersion')} at {default_url()}, driver {info.get('Driver')}, "
        f"its images as {SCHEME}NAME",
    )


def _sandbox() -> Check:
    name = DOCKER_SANDBOX
    provider = DockerProvider()
    try:
        sandbox = provider.start("host")
        try:
            done = sandbox.exec(["/bin/bash", "-c", "echo works"])
            clean = sandbox.changes() == []
        finally:
            sandbox.close()
    except (InterCodeError, OSError) as error:  # as OSError: our own folders cannot be made
        return Check(name, None, str(error), getattr(error, "fix", ""))
    finally:
        with suppress(InterCodeError):
            provider.close()
    if done.stdout != b"works\n" or not clean:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        return Check(name, None, f"a command did not run: {said}", "report this as a bug")
    return Check(name, True, "containers work: --sandbox docker")


def _user(info: dict[str, Any]) -> Check:
    name = "docker user"
    options = info.get("SecurityOptions") or ()
    if remapped(info) is not None or any("name=rootless" in option for option in options):
        return Check(name, True, "a container's user 0 is another one on this machine")
    detail = "a container's user 0 is this machine's, without any capability"
    return Check(name, None, detail, _REMAP)


def _disk(info: dict[str, Any]) -> Check:
    name = "docker disk limit"
    if has_quota(info):
        return Check(name, True, "what a container writes is limited")
    detail = (
        "the engine's storage driver has no quotas: one file is limited, but not all of them "
        "together, nor how many there are"
    )
    return Check(name, None, detail, _QUOTA)


def _cgroup(info: dict[str, Any]) -> Check:
    name = "docker memory limit"
    if info.get("MemoryLimit") and info.get("PidsLimit", True):
        return Check(name, True, f"for whole containers, by cgroup v{info.get('CgroupVersion', 1)}")
    return Check(name, None, "the engine cannot limit memory or processes", "run it as root")
