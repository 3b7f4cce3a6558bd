"""Files of this machine that are mounted into containers: process 1, and a Python for workers.

Process 1 is the C program of native sandboxes, which is linked statically and needs nothing of the
image. Workers need a Python. The image may have no Python, or a different C library. Therefore
containers with workers use this machine's Python, with its library, shared objects and loader,
mounted read-only. Process 1 is then a process of this Python. Python's files are copied once into
the cache, because the originals may be at any path, and may be upgraded while a container runs.
"""

from __future__ import annotations

import os
import py_compile
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intercode_sandbox.errors import SandboxUnavailableError
from intercode_sandbox.host_files import cache_root, file_lock, hold_folder, joint_digest
from intercode_sandbox.native.preflight import missing_program_error
from intercode_sandbox.native.process_start import PROGRAM, WorkerModules, command
from intercode_sandbox.ownership import new_lease, register_finalizer

_PACKAGE_FOLDER = Path(__file__).parents[1]
_MODULES = [f"native/{name}.py" for name in ("process_start", "syscalls", "wire", "worker")]
"""The modules of this package that the Python of workers imports. The modules of the workers are
copied in addition."""
CONTAINER_FOLDER = "/dev/.intercode"
"""InterCode's folder in a container. The folder lies on a memory file system, so the files of the
image stay unchanged."""
_OWNER_ID, _REMAPPED_OWNER_ID = 1_878_982_656, 65_533
"""An id of this machine without an account, and an id in a container whose ids the engine remaps.
`folder_owner_id` chooses between both."""
SHARED_ROOT = "INTERCODE_DOCKER_SHARED_ROOT"
"""Name of the environment variable by which a user accepts that user 0 of a container is user 0 of
this machine."""
ROOT_RISK = (
    "so that an agent can take all inotify instances, epoll watches, pending signals and bytes of "
    "message queues that the kernel gives root, whose services then fail"
)
REMAP_ADVICE = (
    'remap users: add "userns-remap": "default" to /etc/docker/daemon.json, and restart it'
)
CACHE_FOLDER = "docker"
"""Name of the folder for containers, in the cache folder."""
RUN_PREFIX = "run-"
"""Beginning of the name of a process's folder there. The process's lease follows."""


class ContainerRuntimeFolder:
    """The folder of the current process with the files that its containers need.

    The folder is removed when this process ends.

    Args:
        workers: The modules that can run as workers.
        info: The engine's facts, from ``/info`` of its API.
    """

    def __init__(self, workers: WorkerModules, info: dict[str, Any]) -> None:
        self.quota = has_quota(info)
        self._owner = folder_owner_id(info)
        self.preload = tuple(workers.modules)
        self._packages = workers.packages
        self.lease = new_lease()
        self.folder = cache_root() / CACHE_FOLDER / f"{RUN_PREFIX}{self.lease}"
        self.folder.mkdir(parents=True, mode=0o700)
        self._finalizer = register_finalizer(self, shutil.rmtree, self.folder, True)
        self.empty_folder = self.folder / "empty"
        self.empty_folder.mkdir()
        self.mounts: dict[str, Path] = {}
        """Name in `CONTAINER_FOLDER` → the folder of this machine that is mounted there."""
        self.program = self.folder / "process1"
        try:
            shutil.copy(PROGRAM, self.program)
        except FileNotFoundError:
            raise missing_program_error() from None
        if workers.modules:
            self.mounts = {"python": runtime(self._owner), "code": self.folder / "code"}
            self._copy_code(self.mounts["code"], workers.path)

    def command(self) -> list[str]:
        """Return the command line of process 1 of a container."""
        socket_path = f"{CONTAINER_FOLDER}/s"
        if not self.preload:
            return [f"{CONTAINER_FOLDER}/{self.program.name}", socket_path]
        python_folder, code_folder = f"{CONTAINER_FOLDER}/python", f"{CONTAINER_FOLDER}/code"
        worker_arguments = {"modules": self.preload, "caller": socket_path}
        package_folders = {
            package: f"{code_folder}/{_folder(package)}" for package in self._packages
        }
        import_folders, python_program = [f"{code_folder}/others"], f"{python_folder}/{PYTHON}"
        return [
            *(f"{python_folder}/{LOADER}", "--library-path", f"{python_folder}/so"),
            *command(
                "worker",
                worker_arguments,
                import_folders,
                package_folders,
                python_program,
                f"{code_folder}/{_PACKAGE_FOLDER.name}",
            ),
        ]

    def link(self) -> Path:
        """Create the folder that is mounted as `CONTAINER_FOLDER` into one container.

        The folder has the program of process 1, and mount points for `mounts`. The caller creates
        the container's socket in this folder.
        """
        socket_folder = self.folder / secrets.token_hex(6)
        socket_folder.mkdir()
        for mount_name in self.mounts:
            (socket_folder / mount_name).mkdir()
        (socket_folder / self.program.name).hardlink_to(self.program)
        if os.geteuid() == 0:
            os.chown(socket_folder, self._owner, self._owner)
        socket_folder.chmod(0o700)
        return socket_folder

    def close(self) -> None:
        """Remove the folder with its content."""
        self._finalizer()

    def _copy_code(self, code_folder: Path, search_folders: Sequence[str]) -> None:
        """Copy the modules that run in containers.

        Other modules are not copied, because packages also contain reference solutions (golds).

        Args:
            code_folder: The target folder.
            search_folders: Folders with the single-file modules among the workers' modules.
        """
        target_by_file = {
            _PACKAGE_FOLDER / module_name: code_folder / _PACKAGE_FOLDER.name / module_name
            for module_name in _MODULES
        }
        for package in dict.fromkeys(
            module_name.rpartition(".")[0] for module_name in self.preload
        ):
            if package in self._packages:
                package_folder = code_folder / _folder(package)
                package_files = Path(self._packages[package]).glob("*.py")
                target_by_file |= {file: package_folder / file.name for file in package_files}
        for file, target in target_by_file.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            py_compile.compile(str(shutil.copyfile(file, target)), doraise=True, quiet=2)
        program_copy = (
            code_folder / _PACKAGE_FOLDER.name / Path(PROGRAM).relative_to(_PACKAGE_FOLDER)
        )
        program_copy.parent.mkdir()
        program_copy.hardlink_to(self.program)
        module_folder = code_folder / "others"
        module_folder.mkdir()
        for module_name in self.preload:
            module_files = [
                file
                for package_folder in search_folders
                if (file := Path(package_folder, f"{module_name}.py")).is_file()
            ]
            if module_files:
                shutil.copyfile(module_files[0], module_folder / module_files[0].name)


def _folder(package: str) -> str:
    return package.replace(".", "/")


def has_quota(info: dict[str, Any]) -> bool:
    """Return whether the engine can limit the bytes that a container writes to disk.

    The storage drivers btrfs and zfs can, and overlay2 on xfs with the mount option pquota. The
    engine's facts do not show the mount option, so any xfs counts.

    Args:
        info: The engine's facts, from ``/info`` of its API.
    """
    driver_status = dict(entry for entry in info.get("DriverStatus") or () if len(entry) == 2)
    return (
        info.get("Driver") in ("btrfs", "zfs") or driver_status.get("Backing Filesystem") == "xfs"
    )


def remapped_root_id(info: dict[str, Any]) -> int | None:
    """Return the id of this machine to which an engine remaps user 0 of containers.

    None: the engine does not remap ids, or runs as an ordinary user. An engine with
    ``--userns-remap`` has the id in the name of its folder.

    Args:
        info: The engine's facts, from ``/info`` of its API.
    """
    if not any("name=userns" in option for option in info.get("SecurityOptions") or ()):
        return None
    match = re.search(r"/(\d+)\.\d+/?$", info.get("DockerRootDir", ""))
    return int(match[1]) if match else None


def has_own_users(info: dict[str, Any]) -> bool:
    """Return whether user 0 of a container is another user on this machine."""
    security_options = info.get("SecurityOptions") or ()
    return any(
        f"name={option_name}" in option
        for option in security_options
        for option_name in ("userns", "rootless")
    )


def check_users(info: dict[str, Any], url: str) -> None:
    """Refuse a container engine if user 0 of its containers is root of this machine.

    The kernel would count the resources that agents use as those of root, whose services could
    then fail. If the environment variable that `SHARED_ROOT` names is 1, this risk is accepted.

    Args:
        info: The engine's facts, from ``/info`` of its API.
        url: The engine's address.

    Raises:
        SandboxUnavailableError: User 0 is this machine's root, and the variable is not 1.
    """
    if not has_own_users(info) and os.environ.get(SHARED_ROOT) != "1":
        raise SandboxUnavailableError(
            f"user 0 of the containers of the engine at {url} is this machine's root, "
            f"{ROOT_RISK}. To prevent it, {REMAP_ADVICE}; or accept the risk for this engine",
            f"export {SHARED_ROOT}=1",
        )


def folder_owner_id(info: dict[str, Any]) -> int:
    """Return the owner of InterCode's folders in a container, as an id of this machine.

    No program in the container has this id. Process 1 has privileges over files of other users, but
    only of ids that the container has. If the engine remaps ids, the owner must therefore be an id
    of the container.

    Args:
        info: The engine's facts, from ``/info`` of its API.
    """
    root_id = remapped_root_id(info)
    return _OWNER_ID if root_id is None else root_id + _REMAPPED_OWNER_ID


VERSION = "2"
LOADER, PYTHON = "ld.so", "bin/python3"
_IGNORE_PATTERNS = shutil.ignore_patterns(
    "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test",
    "tests", "tkinter", "turtledemo", "*.a", "*.opt-?.pyc",
)  # fmt: skip
_LDD_LINE = re.compile(r"(?:=>\s*)?(/\S+) \(0x[0-9a-f]+\)$")


def runtime(owner: int) -> Path:
    """Return the cached folder with a copy of this process's Python; create it if necessary.

    Args:
        owner: The id that owns the folder if this process is root: see `folder_owner_id`.

    Raises:
        SandboxUnavailableError: This Python cannot be copied.
    """
    python_program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    program_status = python_program.stat()
    program_stamp = f"{program_status.st_size} {program_status.st_mtime_ns}"
    digest = joint_digest(VERSION, sys.version, str(python_program), program_stamp, str(owner))
    parent = cache_root() / CACHE_FOLDER
    hold_folder(parent)
    python_folder = parent / f"python-{digest}"
    if python_folder.is_dir():
        return python_folder
    with file_lock(parent / "python.lock"):
        if not python_folder.is_dir():
            temporary_folder = parent / f".python-{digest}"
            shutil.rmtree(temporary_folder, ignore_errors=True)
            try:
                _copy_python(python_program, temporary_folder, owner)
            except OSError as error:
                raise SandboxUnavailableError(
                    f"this Python ({python_program}) cannot be copied for containers: {error}"
                ) from error
            temporary_folder.rename(python_folder)
    return python_folder


def _copy_python(program: Path, python_folder: Path, owner: int) -> None:
    stdlib_folder = Path(sysconfig.get_path("stdlib"))
    stdlib_copy = python_folder / "lib" / stdlib_folder.name
    shutil.copytree(stdlib_folder, stdlib_copy, ignore=_IGNORE_PATTERNS)
    extension_folder = Path(sysconfig.get_path("platstdlib"), "lib-dynload")
    if extension_folder.is_dir() and not (stdlib_copy / extension_folder.name).is_dir():
        shutil.copytree(extension_folder, stdlib_copy / extension_folder.name)
    (python_folder / "bin").mkdir()
    shutil.copy2(program, python_folder / PYTHON)
    (python_folder / "so").mkdir()
    for object_path in _shared_objects(
        [program, *(stdlib_copy / extension_folder.name).glob("*.so")]
    ):
        is_loader = object_path.name.startswith("ld-")
        shutil.copy2(
            object_path, python_folder / (LOADER if is_loader else f"so/{object_path.name}")
        )
    if not (python_folder / LOADER).exists():
        raise OSError("the Python has no dynamic loader")
    if os.geteuid() == 0:
        os.chown(python_folder, owner, owner)
        python_folder.chmod(0o700)


def _shared_objects(files: list[Path]) -> set[Path]:
    """Return the shared objects that the dynamic loader would load for these files."""
    ldd_result = subprocess.run(
        ["ldd", *map(str, files)], capture_output=True, text=True, check=False, timeout=60
    )
    matches = (_LDD_LINE.search(line.strip()) for line in ldd_result.stdout.splitlines())
    return {Path(match[1]) for match in matches if match}
