"""The tests of limits on a machine with cgroup v2: a virtual one, in each layout that there is.

``make test-cgroup2`` builds Debian's files and kernel by our own images, boots them under qemu, and
prints what the tests print there. Exit code 0 if each layout ran them, and they passed. It needs
root, for the files, and a gigabyte in the cache; without ``/dev/kvm`` it takes an hour.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from intercode_sandbox.images import resolve

SUITE = "trixie"
PYTHON = "3.13"
"""The suite's."""
KERNEL = {"x86_64": "linux-image-cloud-amd64", "aarch64": "linux-image-cloud-arm64"}
PACKAGES = (
    *("dbus", "initramfs-tools", "perl", "procps", "python3", "systemd-sysv", "systemd"),
    *("iproute2", "libperl5.40", "util-linux"),
)
NEEDED = ("gymnasium", "hypothesis", "pytest", "pytest-timeout", "requests")
"""What the tests import, and what they import."""
ROOT = Path(__file__).parents[4]
FILES = ("packages", "tests", "conftest.py", "pyproject.toml", "README.md")
GUEST = "/intercode/packages/sandbox/tests/cgroup2/guest"
LAYOUTS = ("service", "scope", "user", "container", "bare", "without-pids")
"""What `guest` runs them in."""
ROOM = "2G"
X86 = platform.machine() == "x86_64"
CONSOLE = "ttyS0" if X86 else "ttyAMA0"
EMULATED = "max,la57=off" if X86 else "max"
"""The processor without KVM."""


def main() -> int:
    """Build, boot and judge."""
    if os.geteuid():
        print("make test-cgroup2 needs root: a Debian's files have owners", file=sys.stderr)
        return 2
    name = f"debian:{SUITE}[{','.join([*PACKAGES, KERNEL[platform.machine()]])}]"
    [layer] = resolve(name, progress=print).layers
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        work = Path(folder)
        disk = make_disk(layer, work)
        kernel, initrd = (
            next((layer / "boot").glob(f"{part}-*")) for part in ("vmlinuz", "initrd.img")
        )
        said = ""
        for bare in (False, True):
            said += boot(disk, kernel, initrd, bare)
    ended = dict(re.findall(r"^LAYOUT ([\w-]+): (\d+)\r?$", said, re.MULTILINE))
    for layout in LAYOUTS:
        print(f"{layout:14}{ended.get(layout, 'was not reached')}")
    return int([ended.get(layout) for layout in LAYOUTS] != ["0"] * len(LAYOUTS))


def make_disk(layer: Path, work: Path) -> Path:
    """The layer's files, ours, and what they import, on an ext4."""
    tree, disk = work / "tree", work / "disk"
    run("cp", "-a", str(layer), str(tree))
    (tree / "intercode").mkdir()
    run("cp", "-a", *(str(ROOT / name) for name in FILES), str(tree / "intercode"))
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--target", str(tree / "intercode/lib"), "--only-binary=:all:"),
        *("--python-version", PYTHON, *NEEDED),
    )
    run("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(disk), ROOM)
    shutil.rmtree(tree)
    return disk


def boot(disk: Path, kernel: Path, initrd: Path, bare: bool) -> str:
    """Boot a machine, with systemd or without, which turns itself off: what its console said."""
    words = [
        *("root=/dev/vda", "rw", f"console={CONSOLE}", "quiet", "panic=-1"),
        # Emulated: QEMU 7.2 ends the kernel's use of cmpxchg16b with a double fault, and a slow
        # machine's clocks are not to be watched.
        *("clearcpuid=cx16", "tsc=reliable", "nowatchdog", "mitigations=off"),
        # Drivers that nothing here needs would take most of the time.
        *(f"systemd.mask=systemd-udev{name}.service" for name in ("d", "-trigger", "-settle")),
        *(f"systemd.run_{end}_action=poweroff" for end in ("success", "failure")),
        "systemd.show_status=no",
        f"init={GUEST}" if bare else f'systemd.run="{GUEST}"',
    ]
    fast = has_kvm()
    argv = [
        f"qemu-system-{platform.machine()}",
        *("-machine", "q35,hpet=off" if X86 else "virt", "-accel", "kvm" if fast else "tcg"),
        *("-cpu", "host" if fast else EMULATED, "-smp", "2", "-m", "3G"),
        *("-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"),
        *("-kernel", str(kernel), "-initrd", str(initrd), "-append", " ".join(words)),
        *("-drive", f"file={disk},format=raw,if=virtio,snapshot=on"),
    ]
    print(shlex.join(argv), flush=True)
    said = []
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.decode(errors="replace"))
            print(said[-1], end="", flush=True)
    return "".join(said)


def has_kvm() -> bool:
    """Whether the processor itself runs machines. A KVM without it does not know all of Linux."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and (not X86 or bool(flags & {"vmx", "svm"}))


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    sys.exit(main())
