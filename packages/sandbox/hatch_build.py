"""The build of the static process 1: a hook of the package's build, and a command for developers.

``python packages/sandbox/hatch_build.py OUT`` compiles it alone: docs/development/process-1.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "intercode_sandbox/native/static/process1"
"""The program in a wheel, and below ``src`` in an editable install."""
TARGET = "INTERCODE_TARGET"
"""The variable that names the architecture to build for, by the compiler of releases; ``none``:
build without the program."""
RELEASE_COMPILER = "ziglang==0.17.1"
"""A package: it builds for both architectures on either, and the same bytes wherever it runs."""
ARCHITECTURES = ("x86_64", "aarch64")
_IN_PLACE = Path(__file__).parent / "src" / PLACE
_COMMON = (
    *("-std=c11", "-ffreestanding", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-ident"),
    *("-fstack-clash-protection", "-ffunction-sections", "-fsanitize=undefined"),
    "-Werror=unused-result",  # a call that fails unseen is a defence that is not there
    # A program that a Python can load as well, which it could not if it were called one.
    *("-shared", "-nostdlib", "-Wl,-e,_start", "-Wl,-Bsymbolic"),
    *("-Wl,--build-id=none", "-Wl,--gc-sections"),
    *("-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now"),
)
# What a mistake does: the program ends at once. Compilers call it by two names.
_TRAPS = ("-fsanitize-undefined-trap-on-error", "-fsanitize-trap=undefined")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror")
_RELEASE, _DEBUG = ("-O2", "-s"), ("-O1", "-g")
_PROBE = "#include <asm/unistd.h>\n#include <linux/openat2.h>\nvoid _start(void) { for (;;) ; }\n"
_HELP = (
    "no C compiler here can build a static program with the kernel's headers. Install one "
    "(apt-get install gcc linux-libc-dev), or the package ziglang, or set INTERCODE_TARGET=none to "
    "build without the static process 1"
)


def target() -> str | None:
    """Return the architecture to build for; None: a package without the program.

    Raises:
        ValueError: The variable names another one.
    """
    named = os.environ.get(TARGET, "")
    if named not in ("", "none", *ARCHITECTURES):
        raise ValueError(f"{TARGET} is {', '.join(ARCHITECTURES)} or none, not {named!r}")
    wanted = named or platform.machine()
    return wanted if wanted in ARCHITECTURES and sys.platform == "linux" else None


def compiler(architecture: str) -> list[str] | None:
    """Return the command of a compiler that can build the program, with the flags that it needs."""
    found = _zig(architecture)
    if architecture == platform.machine() and not os.environ.get(TARGET):
        named = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
        local = [words for name in named if (words := shlex.split(name)) and shutil.which(words[0])]
        found = [*local, *found]
    for command in found:
        for trap in _TRAPS:
            if _works([*command, *_COMMON, trap]):
                return [*command, *_COMMON, trap]
    return None


def _zig(architecture: str) -> list[list[str]]:
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        return []
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl"]
    # Without a C library, it leaves out the kernel's headers as well.
    headers = Path(package.origin).parent / "lib/libc/include"
    for name in (f"{architecture.removesuffix('_64')}-linux-any", "any-linux-any"):
        command += ["-isystem", str(headers / name)]
    return [[*command, "-Wno-unused-command-line-argument"]]


def _works(command: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text(_PROBE)
        return _run([*command, "-o", f"{folder}/probe", str(probe)], Path(folder)).returncode == 0


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a folder; it keeps nothing for its next run."""
    with tempfile.TemporaryDirectory() as cache:
        places = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        return subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **places},
            capture_output=True,
            text=True,
            check=False,
        )


def build(
    out: Path,
    architecture: str,
    flags: Sequence[str] = _RELEASE,
    folder: Path = _IN_PLACE.parent,
) -> None:
    """Compile the program.

    Args:
        out: Where it is written to.
        architecture: One of `ARCHITECTURES`.
        flags: More flags for the compiler.
        folder: The sources.

    Raises:
        RuntimeError: No compiler can, or the one that was found has failed.
    """
    command = compiler(architecture)
    if command is None:
        raise RuntimeError(_HELP)
    # In their own folder and an order that never changes: the same bytes wherever it is built.
    sources = sorted(path.name for path in folder.glob("*.c"))
    with tempfile.TemporaryDirectory(dir=out.absolute().parent) as place:
        built = Path(place, out.name)
        run = [*command, *flags, "-o", str(built), *sources]
        done = _run(run, folder)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(run)} failed:\n{done.stderr}")
        built.chmod(0o755)
        built.replace(out)  # at once: others may be starting the program that is there


class StaticProcess(BuildHookInterface[Any]):
    """Adds the program to a wheel, or to the sources that an editable install runs."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the compiler of last resort, where there is no other."""
        architecture = target()
        return [] if architecture is None or compiler(architecture) else [RELEASE_COMPILER]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the program before the wheel is put together."""
        architecture = target()
        if architecture is None:
            return
        if version == "editable":
            build(_IN_PLACE, architecture)
            return
        self.built = Path(tempfile.mkdtemp())
        build(self.built / "process1", architecture)
        build_data["force_include"][str(self.built / "process1")] = PLACE
        build_data["pure_python"] = False
        # It needs no C library, so that it runs with any.
        systems = ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
        build_data["tag"] = "py3-none-" + ".".join(f"{name}_{architecture}" for name in systems)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        if version != "editable" and target() is not None:
            shutil.rmtree(self.built)


def main(argv: Sequence[str] | None = None) -> None:
    """Compile the program alone."""
    parser = argparse.ArgumentParser(description="Compile the static process 1.")
    parser.add_argument("out", type=Path, metavar="OUT", help="where the program is written to")
    parser.add_argument("--debug", action="store_true", help="with symbols, hardly optimized")
    parser.add_argument("--strict", action="store_true", help="fail at a warning")
    parser.add_argument("--target", default=platform.machine(), choices=ARCHITECTURES)
    args = parser.parse_args(argv)
    flags = [*(_DEBUG if args.debug else _RELEASE), *(WARNINGS if args.strict else ())]
    build(args.out, args.target, flags)


if __name__ == "__main__":
    main()
