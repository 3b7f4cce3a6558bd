"""The console script ``intercode``, outside the package: it runs before the package is imported.

Before and after a command, Ctrl-C ends the process at once, without output. An interrupted import
would print a traceback, and outside a command nothing needs cleanup.

Two other packages install a module ``intercode``: ``intercode-bench`` (the 2023 release) and the
unrelated package ``intercode``. The package installed last replaces files of the other, and its
removal deletes them; pip neither refuses nor reports the conflict. The script therefore looks for
both packages first, by file names: this takes 0.2 ms, reading their metadata 40 ms.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

is_running = False
"""Whether this process is the command line. `main` sets it before it imports the package."""
INTERRUPT_EXIT_CODE = 130
"""The exit code after Ctrl-C."""

_PROCESS_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
"""The files of a container's process limit, for cgroups v2 and v1."""
_FEW_PROCESSES = 256
_CONFLICTING_PACKAGES = {"intercode_bench": "intercode-bench", "intercode": "intercode"}
"""First part of a ``.dist-info`` folder's name → the package."""


def main() -> int:
    """Run the command line with the process's arguments.

    Returns:
        The exit code of the command; 1 if the system is not Linux, starts no threads, or has
        another package's module, or one of another version, in place of InterCode's.
    """
    global is_running
    _complete_descriptors()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else: ignored
        signal.signal(signal.SIGINT, _leave)
    conflict = find_conflict()
    if conflict and not (conflict.is_ours and sys.argv[1:2] == ["doctor"]):  # doctor reports it
        kind = "warning" if conflict.is_ours else "error"
        lines = (f"intercode: {kind}: {conflict.meaning}. To fix it:", *conflict.commands)
        print("\n  ".join(lines), file=sys.stderr)
        if not conflict.is_ours:
            return 1
    if sys.platform != "linux":
        from intercode_sandbox.privileges import unsupported_system

        print(f"intercode: error: {unsupported_system()}", file=sys.stderr)
        return 1
    if reason := _thread_problem():
        print(f"intercode: error: {reason}", file=sys.stderr)
        return 1
    try:
        Path.cwd()
    except FileNotFoundError:
        print("intercode: error: the working directory is gone: cd to another", file=sys.stderr)
        return 1
    is_running = True
    try:
        from intercode.cli.main import main as run
    except ImportError as error:
        if error.name != "intercode_sandbox":
            raise
        print(f"intercode: error: {error}", file=sys.stderr)
        return 1
    return run()


def _thread_problem() -> str:
    """Return the reason why this process can start no threads; "" if it can.

    Below a limit of 256 processes, OpenBLAS is set to one thread. OpenBLAS comes with numpy, starts
    a thread per core on import, and ends the process like Ctrl-C if it cannot.
    """
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except RuntimeError:
        return (
            "this machine permits no threads: its limit of processes is reached, or a seccomp "
            "profile answers clone3 with EPERM, as Docker before 20.10.10 does. In a container: "
            "docker run --pids-limit -1 --security-opt seccomp=unconfined …"
        )
    for path in _PROCESS_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            if int(Path(path).read_text()) < _FEW_PROCESSES:
                os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return ""


def _complete_descriptors() -> None:
    """Open closed standard streams on ``/dev/null``; some daemons leave them closed.

    Otherwise, files that are opened later would get these descriptors, and receive output.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this number
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


class PackageConflict(NamedTuple):
    """A conflict with another package's module ``intercode``, installed or removed."""

    is_ours: bool
    """Whether the imported module is still InterCode's."""
    meaning: str
    commands: tuple[str, ...]
    """Commands that fix the conflict, in order."""


def find_conflict() -> PackageConflict | None:
    """Look for another package that installs a module ``intercode``."""
    spec = importlib.util.find_spec("intercode")
    folders = spec and spec.submodule_search_locations
    folder = Path(next(iter(folders or ()), Path(__file__).with_name("intercode")))
    packages = sorted(
        package
        for path in folder.parent.iterdir()
        if path.suffix in (".dist-info", ".egg-info")
        and (package := _CONFLICTING_PACKAGES.get(path.name.partition("-")[0].lower()))
    )
    is_ours = _is_ours(folder / "__init__.py")
    if is_ours and not packages:
        return None
    commands = [f"pip uninstall -y {name}" for name in packages]
    if source := _source(folder.parent):
        commands.append(f"pip install --force-reinstall --no-deps {source}")
    return PackageConflict(is_ours, _meaning(folder, packages, is_ours), tuple(commands))


def _is_ours(init: Path) -> bool:
    try:
        return b"import intercode_sandbox" in init.read_bytes()  # the others lack this import
    except FileNotFoundError:
        return False


def _meaning(folder: Path, package_names: list[str], is_ours: bool) -> str:
    if package_names:
        effect = "its removal would remove files" if is_ours else "it has replaced files"
        packages = " and ".join(package_names)
        return f"the package {packages} installs {folder}, too: {effect} of intercode-gym"
    return (
        f"files of intercode-gym are missing in {folder}: a package with a module of the same name "
        f"({' or '.join(_CONFLICTING_PACKAGES.values())}) removed them when it was removed"
    )


def _source(site: Path) -> str:
    """Return pip's argument for a reinstallation; "" for an editable checkout, whose files stay."""
    for file in site.glob("intercode_gym-*.dist-info/direct_url.json"):
        metadata = json.loads(file.read_text(encoding="utf-8"))
        if metadata.get("dir_info", {}).get("editable"):
            return ""
        if Path(metadata["url"].removeprefix("file://")).exists():
            return str(metadata["url"])
        if "vcs_info" in metadata:
            vcs = metadata["vcs_info"]
            origin = f"{vcs['vcs']}+{metadata['url']}@{vcs['commit_id']}"
            return "#subdirectory=".join(filter(None, (origin, metadata.get("subdirectory"))))
    return "intercode-gym"


@contextmanager
def allow_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on Ctrl-C within the block, even within `main`."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPT_EXIT_CODE)


if __name__ == "__main__":
    sys.exit(main())
