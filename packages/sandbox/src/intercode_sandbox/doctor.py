"""Checks whether this machine can run native and Docker sandboxes.

The checks of both kinds start a sandbox, and examine limits of the machine.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode_sandbox.base import cause_of_death
from intercode_sandbox.docker.engine import INSTALL_COMMAND, DockerEngine, default_url, may_exist
from intercode_sandbox.docker.images import SCHEME
from intercode_sandbox.docker.mounted_runtime import (
    REMAP_ADVICE,
    ROOT_RISK,
    has_own_users,
    has_quota,
)
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.errors import InterCodeError, SandboxUnavailableError, UsageError
from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native import cgroup
from intercode_sandbox.native.preflight import kernel_setting_command, open_files_command
from intercode_sandbox.native.process import read_if_there
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.restrictions import (
    HostRestriction,
    active_restrictions,
    container_remedy,
)
from intercode_sandbox.native.snapshot import endings
from intercode_sandbox.privileges import (
    STAND_IN_ID,
    in_container,
    is_root,
    needs_stand_in,
    stand_in_reason,
)

_MIN_OPEN_FILES = 4096
"""Hard limit of open files below which the check prints a note."""
_MIN_PROCESSES = 512
"""Limit of processes by a cgroup below which the check prints a note."""
_MIN_CACHE_BYTES = 2 << 30
"""Free bytes on the cache's disk below which the check prints a note."""
_ANY_MODULE = "json"
"""A module to preload. A provider starts the Python from which workers are forked only if the
caller preloads a module."""
_CACHE_COMMAND = "export INTERCODE_CACHE=/a/folder/of/yours"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """The result of one check of this machine."""

    name: str
    ok: bool | None
    """True: no problem. None: sandboxes work, with a restriction that the user should know. False:
    sandboxes do not work."""
    detail: str
    fix: str = ""
    """The command that fixes the problem; empty if no single command does."""


def run_check(
    name: str, check: Callable[[], MachineCheck | Sequence[MachineCheck]], ok_on_error: bool | None
) -> list[MachineCheck]:
    """Run a check, and return its results. If the check raises an error, return that as the result.

    Args:
        name: The result's name if the check raises an error.
        check: A function that returns one result, or several.
        ok_on_error: `MachineCheck.ok` of the result if the check raises an error: False, or None if
            sandboxes work without the checked feature.
    """
    try:
        findings = check()
    except Exception as error:  # noqa: BLE001 - a machine may refuse anything, and it is reported
        return [failed_check(name, ok_on_error, error)]
    return [findings] if isinstance(findings, MachineCheck) else [*findings]


def failed_check(name: str, ok: bool | None, error: Exception) -> MachineCheck:
    """Return the result of a check that raised an error.

    The detail is the error's own reason, or the error with this machine's active restrictions.

    Args:
        name: The result's name.
        ok: `MachineCheck.ok` of the result.
        error: The error.
    """
    if isinstance(error, SandboxUnavailableError):
        return MachineCheck(name, ok, error.reason, error.fix)
    error_prefix = "" if isinstance(error, InterCodeError) else f"{type(error).__name__}: "
    restrictions = _rules_in_force()
    detail = f"{error_prefix}{error}"
    if restrictions and restrictions[0].reason not in detail:
        detail += (
            f"; on this machine {', '.join(restriction.reason for restriction in restrictions)}"
        )
    fix = getattr(error, "fix", "") or next(
        (restriction.fix for restriction in restrictions if restriction.fix), ""
    )
    return MachineCheck(name, ok, detail, fix)


def _rules_in_force() -> list[HostRestriction]:
    try:
        return [*active_restrictions()]
    except OSError:  # the machine does not let this process read its restrictions
        return []


def check_native() -> list[MachineCheck]:
    """Start a native sandbox and a worker, and check the machine's limits."""
    return [
        *run_check("kernel", _check_kernel, False),
        *run_check("sandbox", _check_native_sandbox, False),
        *run_check("open files", _check_open_files, None),
        *run_check("process ids", _check_processes, None),
        *run_check("image cache", _check_cache, False),
        *run_check("endings", _check_endings, None),
    ]


def _check_endings() -> list[MachineCheck]:
    """Return a note if the kernel has not yet ended all processes of closed sandboxes."""
    try:
        pids = [str(ending.pid) for ending in endings()]
    except UsageError:  # the cache folder is unusable, which `_check_cache` reports
        return []
    if not pids:
        return []
    detail = (
        f"of {len(pids)} that were closed the kernel has not ended all processes, the last of "
        f"them {', '.join(pids)}: it keeps their ids, cgroups and memory until then"
    )
    return [MachineCheck("endings", None, detail)]


def _check_kernel() -> MachineCheck:
    release = platform.release()
    version_numbers = [
        int(component)
        for component in release.replace("-", ".").split(".")[:2]
        if component.isdigit()
    ]
    required_version = [5, 19] if is_root() else [6, 6]
    if platform.system() != "Linux" or version_numbers < required_version:
        feature = "id-mapped layers" if is_root() else "overlays on tmpfs for ordinary users"
        return MachineCheck(
            "kernel",
            False,
            f"Linux {release}; {required_version[0]}.{required_version[1]} is needed for {feature}",
            "run as root" if os.geteuid() and version_numbers >= [5, 19] else "use a newer kernel",
        )
    return MachineCheck("kernel", True, f"Linux {release} on {platform.machine()}")


def _check_native_sandbox() -> list[MachineCheck]:
    with closing(NativeProvider()) as provider:
        with closing(provider.start("host")) as sandbox:
            result = sandbox.exec(["/bin/bash", "-c", "echo works"])
        provider_facts = provider.facts()
    if result.stdout != b"works\n":
        output = (result.stdout + result.stderr).decode(errors="replace").strip()
        return [
            MachineCheck(
                "sandbox", False, f"a command did not run: {output}", "report this as a bug"
            )
        ]
    return [
        MachineCheck("sandbox", True, f"native sandboxes work, {_identity_text()}"),
        _check_memory(provider_facts),
        _check_workers(),
    ]


def _check_workers() -> MachineCheck:
    """Check by which way sandboxes get Python workers.

    `intercode.cli.doctor` tests the workers themselves.
    """
    with closing(NativeProvider(preload=[_ANY_MODULE])) as provider:
        try:
            fork_flaw = provider.facts().get("fork_flaw", "")
        except InterCodeError as error:
            return failed_check("workers", False, error)
    if fork_flaw:
        detail = (
            f"this Python is forked by os.fork, with more memory each: {cause_of_death(fork_flaw)}"
        )
        return MachineCheck("workers", None, detail, "use a Python that InterCode declares")
    return MachineCheck("workers", True, "SQL and Python run in forks of this Python")


def _identity_text() -> str:
    if is_root():
        return "each with ids of its own"
    if needs_stand_in():
        return f"all with the unused id {STAND_IN_ID}: {stand_in_reason()}"
    if os.geteuid() == 0:
        return "all with the id that this root has outside of its user namespace"
    return f"all with your id, {os.geteuid()}"


def _check_memory(provider_facts: dict[str, Any]) -> MachineCheck:
    if provider_facts["cgroup"]:
        controllers_text = ", ".join(provider_facts["controllers"])
        return MachineCheck(
            "memory limit",
            True,
            f"for whole sandboxes, by cgroup v{provider_facts['cgroup']}: {controllers_text}",
        )
    detail, fix = _memory_advice()
    return MachineCheck(
        "memory limit",
        None,
        "no cgroup can be written: memory is limited for each program, not for a sandbox as a "
        f"whole; memory files and shared mappings are not, so that one can take {detail}",
        fix,
    )


def _memory_advice() -> tuple[str, str]:
    """Return a phrase for the memory that one sandbox can take, and a command to limit sandboxes.

    The command is empty if no single command does so.
    """
    if is_root() and (mount_points := cgroup.read_only()):
        return "what there is", " && ".join(
            f"mount -o remount,bind,rw {mount_point}" for mount_point in mount_points
        )
    if in_container():
        if memory_limit := cgroup.own_memory_limit():
            return f"the {memory_limit / 2**30:.1f} GiB of this container", ""
        return "what there is", container_remedy(
            "--memory 8g", "resources: {limits: {memory: 8Gi}}"
        )
    if os.geteuid() and cgroup.is_unified() and _has_user_manager():
        return "what there is", "systemd-run --user --scope -p Delegate=yes intercode …"
    return "what there is", ""


def _has_user_manager() -> bool:
    """Return whether the user has a systemd user manager, which can delegate a cgroup."""
    xdg_runtime_folder = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    return (
        shutil.which("systemd-run") is not None
        and Path(xdg_runtime_folder, "systemd/private").exists()
    )


def _check_open_files() -> MachineCheck:
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Only the hard limit counts, because the native provider raises the soft limit towards it.
    ok = True if hard_limit >= _MIN_OPEN_FILES or hard_limit == resource.RLIM_INFINITY else None
    detail = f"{soft_limit} (hard limit {hard_limit}): about {soft_limit // 8} sandboxes at once"
    return MachineCheck("open files", ok, detail, "" if ok else open_files_command())


def _check_processes() -> MachineCheck:
    pid_max_text = read_if_there("/proc/sys/kernel/pid_max")
    if not pid_max_text:
        return MachineCheck("process ids", None, "/proc does not show the maximum number")
    pid_max = int(pid_max_text)
    cgroup_limit = cgroup.own_process_limit()
    if cgroup_limit is not None and cgroup_limit < _MIN_PROCESSES:
        fix = container_remedy("--pids-limit -1", "a higher podPidsLimit of the kubelet")
        detail = f"a cgroup permits {cgroup_limit} processes and threads, which all sandboxes share"
        return MachineCheck("process ids", None, detail, fix)
    ok = True if pid_max >= 32_768 else None
    return MachineCheck(
        "process ids",
        ok,
        f"pid_max is {pid_max}: the maximum number of processes and threads on the whole machine",
        "" if ok else kernel_setting_command("kernel/pid_max", 4_194_304),
    )


def _check_cache() -> MachineCheck:
    try:
        root = cache_root()
    except UsageError as error:
        return MachineCheck("image cache", False, str(error), _CACHE_COMMAND)
    existing_folder = next(path for path in (root, *root.parents) if os.access(path, os.F_OK))
    free_bytes = shutil.disk_usage(existing_folder).free
    if not os.access(existing_folder, os.W_OK):
        return MachineCheck("image cache", False, f"{root} cannot be written", _CACHE_COMMAND)
    ok = True if free_bytes >= _MIN_CACHE_BYTES else None
    return MachineCheck(
        "image cache",
        ok,
        f"{root}: {free_bytes / 2**30:.1f} GiB free",
        "" if ok else "intercode clean --all",
    )


DOCKER_SANDBOX = "docker sandbox"
_QUOTA = "keep the engine's data-root on xfs, mounted with the option pquota"


def check_docker() -> list[MachineCheck]:
    """Start a Docker sandbox, and check the engine's limits.

    Without an engine the result is one note.
    """
    return run_check("docker", _check_engine, None)


def _check_engine() -> list[MachineCheck]:
    if find_spec("docker") is None:
        return [
            MachineCheck("docker", None, "the package docker is not installed", INSTALL_COMMAND)
        ]
    try:
        with closing(DockerEngine()) as engine:
            info = engine.info()
    except InterCodeError as error:
        if may_exist(Path(default_url().removeprefix("unix://"))):
            return [failed_check("docker", None, error)]
        detail = f"no engine at {default_url()}: --sandbox native only"
        return [MachineCheck("docker", None, detail, getattr(error, "fix", ""))]
    sandbox_checks = run_check(DOCKER_SANDBOX, _check_docker_sandbox, None)
    return [
        _engine_check(info),
        *sandbox_checks,
        _check_user(info),
        _check_disk(info),
        _check_cgroup(info),
    ]


def _engine_check(info: dict[str, Any]) -> MachineCheck:
    return MachineCheck(
        "docker",
        True,
        f"engine {info.get('ServerVersion')} at {default_url()}, driver {info.get('Driver')}, "
        f"its images as {SCHEME}NAME",
    )


def _check_docker_sandbox() -> MachineCheck:
    check_name = DOCKER_SANDBOX
    provider = DockerProvider()
    try:
        with closing(provider.start("host")) as sandbox:
            result = sandbox.exec(["/bin/bash", "-c", "echo works"])
            is_clean = sandbox.changes() == []
    finally:
        with suppress(InterCodeError):
            provider.close()
    if result.stdout != b"works\n" or not is_clean:
        output = (result.stdout + result.stderr).decode(errors="replace").strip()
        return MachineCheck(
            check_name, None, f"a command did not run: {output}", "report this as a bug"
        )
    return MachineCheck(check_name, True, "containers work: --sandbox docker")


def _check_user(info: dict[str, Any]) -> MachineCheck:
    check_name = "docker user"
    if has_own_users(info):
        return MachineCheck(check_name, True, "a container's user 0 is another one on this machine")
    return MachineCheck(
        check_name, None, f"a container's user 0 is this machine's root, {ROOT_RISK}", REMAP_ADVICE
    )


def _check_disk(info: dict[str, Any]) -> MachineCheck:
    check_name = "docker disk limit"
    if has_quota(info):
        return MachineCheck(check_name, True, "what a container writes is limited")
    detail = (
        "the engine's storage driver has no quotas: one file is limited, but not all of them "
        "together, nor how many there are"
    )
    return MachineCheck(check_name, None, detail, _QUOTA)


def _check_cgroup(info: dict[str, Any]) -> MachineCheck:
    check_name = "docker memory limit"
    if info.get("MemoryLimit") and info.get("PidsLimit", True):
        return MachineCheck(
            check_name, True, f"for whole containers, by cgroup v{info.get('CgroupVersion', 1)}"
        )
    return MachineCheck(
        check_name, None, "the engine cannot limit memory or processes", "run it as root"
    )
