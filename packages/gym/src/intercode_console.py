"""The console script ``intercode``, a module outside the package ``intercode``.

The script runs before the package is imported, so it can check whether the import will succeed.
Before and after a command, Ctrl-C ends the process at once, without output. An interrupted import
would print a traceback, and outside a command nothing needs cleanup.

Two other Python distributions install a module ``intercode``, too: ``intercode-bench`` (the 2023
release) and the unrelated ``intercode``. The distribution installed last replaces files of the
earlier one, and uninstalling it deletes these files. pip neither refuses nor reports the conflict.
Therefore the script first looks for both distributions by the names of their ``.dist-info``
folders. The search takes 0.2 ms; reading metadata would take 40 ms.
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
"""Whether this process executes the command ``intercode``. `main` sets the variable before it
imports the package, which then does not register environments."""
INTERRUPT_EXIT_CODE = 130
"""The exit code after Ctrl-C."""

_PROCESS_LIMITS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
"""The files with a container's limit of processes: the first with cgroups v2, the second with
cgroups v1."""
_FEW_PROCESSES = 256
_CONFLICTING_PACKAGES = {"intercode_bench": "intercode-bench", "intercode": "intercode"}
"""Name of a ``.dist-info`` folder up to the first hyphen → name of the distribution."""


def main() -> int:
    """Run the command line with the process's arguments.

    Returns:
        The exit code of the command. The exit code is 1 if the system is not Linux, or if no thread
        can start. An InterCode package that another project or version replaces also gives 1.
    """
    global is_running
    _complete_descriptors()
    # If the caller ignores SIGINT, as for a background job of a shell, the signal stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    conflict = find_conflict()
    # The command `doctor` reports a conflict by itself.
    if conflict and not (conflict.is_ours and sys.argv[1:2] == ["doctor"]):
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
    """Return the reason why this process can start no threads; an empty text if it can.

    If the container's limit is below 256 processes, the function restricts OpenBLAS to one thread.
    OpenBLAS is a library of numpy, and starts a thread per core on import. If a thread cannot
    start, OpenBLAS ends the process like Ctrl-C.
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
        with suppress(OSError, ValueError):  # the file is missing, or contains "max"
            if int(Path(path).read_text()) < _FEW_PROCESSES:
                os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return ""


def _complete_descriptors() -> None:
    """Open ``/dev/null`` for each standard stream that is closed.

    Some daemons start processes with closed standard streams. A file that is opened later would get
    the free descriptor, 0 to 2, and output of the process would be written into the file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free descriptor, which is this number.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


class PackageConflict(NamedTuple):
    """A conflict with another distribution that has, or had, a module ``intercode``."""

    is_ours: bool
    """Whether the module that Python would import is still InterCode's."""
    meaning: str
    """The explanation for the user."""
    commands: tuple[str, ...]
    """Commands that fix the conflict, in order."""


def find_conflict() -> PackageConflict | None:
    """Look for a distribution whose module ``intercode`` conflicts with InterCode's.

    Returns:
        The conflict; None if InterCode's module is intact and no such distribution is installed.
    """
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
        # Only InterCode's own module imports the package `intercode_sandbox`.
        return b"import intercode_sandbox" in init.read_bytes()
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
    """Return the argument with which pip reinstalls InterCode from its original source.

    The result is empty for an editable installation, whose files no other distribution replaces.
    """
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
    """Make Ctrl-C raise `KeyboardInterrupt` within the block.

    Within `main`, but outside such a block, Ctrl-C ends the process at once.
    """
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
