"""The conformance tests of the sandbox's aarch64 wheel, in an emulated machine.

``make test-aarch64`` unpacks the pinned packages of the image `base` for arm64, and one of Debian's
kernels. The wheels and the tests lie beside them in an initial RAM disk, which QEMU boots: no
architecture but the guest's runs a program of it. Exit code 0 if the tests passed.
"""

from __future__ import annotations

import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from intercode_sandbox.images import pinned_debian
from intercode_sandbox.images.debian_packages import DebianPackage, fetch, open_package

ROOT = Path(__file__).parents[4]
PACKAGE = ROOT / "packages/sandbox"
FILES = tuple(
    f"packages/sandbox/tests/sandbox/test_{name}.py"
    for name in (
        *("seccomp", "privileges", "exec", "files", "identity", "lifecycle", "limits"),
        *("changes", "isolation", "snapshot", "freeze"),
    )
)
"""The native provider's contract, relative to `ROOT`; a run may name others."""

RELEASE = "DIST"
"""The variable that names a folder of `make dist`, whose wheels are tested instead of new ones."""
COPIED = (
    "conftest.py",
    "pyproject.toml",
    "packages/sandbox/tests",
    "tests/suites",
    "tests/suites.toml",
)
"""What tests need beside the wheel, relative to `ROOT`; no source of a package."""

PYTHON = "3.11"
"""The version in the image `base`."""
PLATFORMS = ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_28_aarch64")
REQUIREMENTS = ("hypothesis", "pytest", "pytest-timeout")
SNAPSHOT = "20261129T000000Z"
KERNEL = DebianPackage(
    "linux-image-6.12.117+deb13-cloud-arm64",
    "6.12.117-1",
    "pool/main/l/linux-signed-arm64/linux-image-6.12.117+deb13-cloud-arm64_6.12.117-1_arm64.deb",
    28391960,
    "cc33e288505c3271539beab498aeb4f25e27b8f7c0c49ddb6c506b6d3c50c22f",
)
"""Debian 13's. That of 12 is older than the 6.6 that sandboxes of ordinary users need."""
BUSYBOX = DebianPackage(
    "busybox-static",
    "1:1.35.0-4+deb12u1+b1",
    "pool/main/b/busybox/busybox-static_1.35.0-4+deb12u1+b1_arm64.deb",
    822236,
    "732c9135564fc71337e0e05fb4da4d11e6c28c1834bce3e405e575afef2a52f5",
)
KERNEL_PARTS = {"vmlinuz": r"\./boot/vmlinuz-.*", "overlay.ko": r".*/overlayfs/overlay\.ko(\.xz)?"}
"""Local name → path in the kernel's package. Debian builds overlayfs as a module."""

# A tmpfs becomes the root: from the initial one no sandbox can `pivot_root`.
INIT = """\
#!/bin/busybox sh
/bin/busybox insmod /overlay.ko
/bin/busybox mount -t tmpfs -o size=75% tmpfs /root
/bin/busybox tar -xf /tree.tar -C /root
/bin/busybox rm /tree.tar
exec /bin/busybox switch_root /root /bin/bash /intercode/guest
"""


def main() -> int:
    """Build the machine, boot it, and report how its tests ended."""
    if os.geteuid():
        print("make test-aarch64 needs root: the guest's files have owners", file=sys.stderr)
        return 2
    files = sys.argv[1:] or FILES
    if missing := [name for name in files if not (ROOT / name.partition("::")[0]).exists()]:
        print(f"no such tests: {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        kernel, initrd = make_machine(Path(folder), shlex.join(files))
        console = boot(kernel, initrd)
    status = re.search(r"^TESTS ENDED: (\d+)\r?$", console, re.MULTILINE)
    print(f"aarch64: {f'exit code {status[1]}' if status else 'the tests did not end'}")
    return int(status is None or status[1] != "0")


def make_machine(work: Path, arguments: str) -> tuple[Path, Path]:
    """Return a kernel, and a RAM disk that runs pytest with these arguments."""
    tree, disk, packages = work / "tree", work / "disk", work / "packages.extra"
    for folder in (tree, disk / "bin", disk / "root", packages):
        folder.mkdir(parents=True)
    tree.chmod(0o755)
    pinned_debian._unpack(
        pinned_debian.parse_lock(pinned_debian.lock_file("arm64").read_text("ascii")), tree, print
    )
    fetch((KERNEL, BUSYBOX), SNAPSHOT, packages, print)
    extract(packages / KERNEL.sha256, KERNEL_PARTS, disk)
    extract(packages / BUSYBOX.sha256, {"busybox": r"\./(usr/)?bin/busybox"}, disk / "bin")
    shutil.move(disk / "vmlinuz", work)
    install(tree / "intercode", work / "wheels")
    shutil.copy(disk / "bin/busybox", tree / "intercode")
    (tree / "intercode/arguments").write_text(arguments)
    finish = pinned_debian.FINISH.replace("TIME", "0").replace("find / -xdev", ": find / -xdev")
    (tree / "intercode/finish").write_text(finish)
    run("tar", "-cf", str(disk / "tree.tar"), "-C", str(tree), ".")
    shutil.rmtree(tree)
    (disk / "init").write_text(INIT)
    (disk / "init").chmod(0o755)
    pack = 'cd "$0" && find . | cpio --quiet -o -H newc >"$1"'
    run("sh", "-c", pack, str(disk), str(work / "initrd"))
    shutil.rmtree(disk)
    return work / "vmlinuz", work / "initrd"


def extract(package: Path, parts: dict[str, str], folder: Path) -> None:
    """Write members of a package, chosen by a pattern of their path, under other names."""
    missing = dict(parts)
    with open_package(package) as (_, archive):
        for member in archive:
            for name, pattern in list(missing.items()):
                if member.isfile() and re.fullmatch(pattern, member.name):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    content = stream.read()
                    is_packed = member.name.endswith(".xz")
                    (folder / name).write_bytes(lzma.decompress(content) if is_packed else content)
                    (folder / name).chmod(0o755)
                    del missing[name]
    assert not missing, f"{package.name} has no {', '.join(missing)}"


def install(folder: Path, wheels: Path) -> None:
    """Install the wheel with what tests import, and copy the tests."""
    folder.mkdir()
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    if release := os.environ.get(RELEASE):
        wheels = Path(release).absolute()
    else:
        run(
            *(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(PACKAGE)),
            INTERCODE_TARGET="aarch64",
        )
    [wheel] = wheels.glob("intercode_sandbox-*_aarch64.whl")
    run(
        *(*pip, "install", "--target", str(folder / "lib"), "--only-binary=:all:"),
        *(f"--platform={name}" for name in PLATFORMS),
        *("--python-version", PYTHON, *REQUIREMENTS, str(wheel)),
    )
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    shutil.copy(Path(__file__).with_name("guest"), folder)


def boot(kernel: Path, initrd: Path) -> str:
    """Boot a machine, which turns itself off; return what its console printed."""
    argv = [
        *("qemu-system-aarch64", "-machine", "virt", "-accel", "tcg,thread=multi"),
        *("-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "4G"),
        *("-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"),
        *("-kernel", str(kernel), "-initrd", str(initrd)),
        *("-append", "console=ttyAMA0 quiet panic=-1 nowatchdog mitigations=off"),
    ]
    print(shlex.join(argv), flush=True)
    lines = []
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.decode(errors="replace"))
            print(lines[-1], end="", flush=True)
    return "".join(lines)


def run(*argv: str, **variables: str) -> None:
    """Run a program with additional variables; its failure is an error."""
    subprocess.run(argv, check=True, env={**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(main())
