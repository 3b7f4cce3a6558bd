"""The images ``debian:SUITE[PKG,…]``: systems that debootstrap installs from Debian's archive.

The image ``nl2bash``, of `RECIPES`, is such a system, too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import joint_digest, remove_tree, sha256
from intercode_sandbox.images.base import (
    HOSTNAME,
    SEARCH_PATH,
    Image,
    ImageBuilderContext,
    Progress,
    clean_environment,
)

VERSION = "1"
MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

_ARGUMENT = re.compile(r"(?P<suite>[a-z][a-z0-9-]*)(?:\[(?P<packages>[^\[\]]*)\])?")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_EMPTIED_FOLDERS = ("run", "tmp", "var/cache/apt", "var/lib/apt/lists", "var/tmp")
"""Folders whose content is removed after the installation."""
_TEXTS = {
    # These texts replace the files of this machine that debootstrap copies into the system.
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",
    "etc/machine-id": "",
}


@dataclass(frozen=True, slots=True)
class DebianSystem:
    """A description of a Debian system: its packages, and changes after their installation."""

    suite: str
    """The name of Debian's release, such as ``bookworm``."""
    packages: tuple[str, ...] = ()
    """Packages that are installed with their dependencies only."""
    with_recommended: tuple[str, ...] = ()
    """Packages that are installed with their dependencies and recommended packages."""
    absent: tuple[str, ...] = ()
    """Programs that are removed after the installation."""
    finish: str = ""
    """A shell script that runs as root in the system at the end of the installation."""
    keep_logs: bool = False
    """Whether the image keeps the installation's logs in ``/var/log``."""
    env: Mapping[str, str] = field(default_factory=clean_environment)
    cwd: str = "/root"


def make(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``debian:SUITE`` or ``debian:SUITE[PKG,…]``, built if necessary.

    Args:
        argument: The text after ``debian:``.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The argument is malformed, or see `make_system`.
    """
    match = _ARGUMENT.fullmatch(argument)
    if match is None:
        raise ImageError(
            f"cannot understand 'debian:{argument}'; write debian:SUITE or debian:SUITE[PKG,PKG], "
            "for instance debian:bookworm[python3,jq]"
        )
    packages = sorted({package.strip() for package in (match["packages"] or "").split(",")} - {""})
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise ImageError(f"{package!r} is not the name of a Debian package")
    system = DebianSystem(match["suite"], packages=tuple(packages))
    package_suffix = f"[{','.join(packages)}]" if packages else ""
    return make_system(f"debian:{system.suite}{package_suffix}", system, context)


def make_system(name: str, system: DebianSystem, context: ImageBuilderContext) -> Image:
    """Return the image of a system, built if necessary.

    Args:
        name: The image's name.
        system: The description of the system.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: This process is not root's, debootstrap is not installed, or the build failed.
    """
    system_json = json.dumps(dataclasses.asdict(system), sort_keys=True)
    template = Image(
        name=name,
        digest=joint_digest("debian", VERSION, platform.machine(), system_json),
        layers=(),
        env=system.env,
        cwd=system.cwd,
    )

    def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
        _check_machine(name, system)
        return _install(system, BuildChroot(layer, lock_fd, context.progress))

    return context.cache.build(template, name, fill, context.progress)


def _check_machine(image_name: str, system: DebianSystem) -> None:
    if os.geteuid():
        packages_text = ",".join((*system.packages, *system.with_recommended))
        include_option = f" --include={packages_text}" if packages_text else ""
        target_folder = f"/var/tmp/{system.suite}"
        tarball_name = f"{system.suite}.tar.gz"
        raise ImageError(
            f"the image {image_name!r} can only be built by root, because Debian's files belong "
            "to its "
            "system users. Run this command as root, or create a tarball with these two commands "
            f"and name the image 'scratch+./{tarball_name}':\n  sudo debootstrap "
            f"--variant=minbase{include_option} {system.suite} {target_folder}\n  sudo tar -C "
            f"{target_folder} "
            f"--exclude='./dev/*' -czf {tarball_name} ."
        )
    missing_packages = [] if shutil.which("debootstrap", path=SEARCH_PATH) else ["debootstrap"]
    # Without the keyring debootstrap verifies nothing, and only prints a warning.
    if not KEYRING.exists():
        missing_packages.append("debian-archive-keyring")
    if missing_packages:
        raise ImageError(
            f"building {image_name!r} needs {' and '.join(missing_packages)}: apt-get install "
            f"{' '.join(missing_packages)}"
        )


def _install(system: DebianSystem, chroot: BuildChroot) -> Mapping[str, object]:
    mirror = os.environ.get("INTERCODE_DEBIAN_MIRROR") or MIRROR
    root = chroot.root
    argv = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}"]
    run([*argv, system.suite, str(root), mirror], chroot.lock, chroot.progress)
    policy_path = root / "usr/sbin/policy-rc.d"
    # Because of this script, packages start no services when they are installed.
    policy_path.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    policy_path.chmod(0o755)
    apt_command = ["apt-get", "-q", "-y", "-o", "Acquire::Retries=3", "-o", "Dpkg::Use-Pty=0"]
    if system.packages or system.with_recommended:
        chroot.run([*apt_command, "update"])
    if system.packages:
        chroot.run([*apt_command, "install", "--no-install-recommends", *system.packages])
    if system.with_recommended:
        chroot.run([*apt_command, "install", *system.with_recommended])
    _clean_root(root, system)
    if system.finish:
        chroot.run(["/bin/sh", "-eu", "-c", system.finish])
    _empty_folder(root / "dev")
    dpkg_status = (root / "var/lib/dpkg/status").read_bytes()
    return {
        "version": VERSION,
        "mirror": mirror,
        "packages": dpkg_status.count(b"\nStatus: install ok installed\n"),
        "packages_sha256": sha256(dpkg_status),
    }


def _clean_root(root: Path, system: DebianSystem) -> None:
    for relative_path in _EMPTIED_FOLDERS:
        _empty_folder(root / relative_path)
    for relative_path, mode in (("run/lock", 0o1777), ("var/cache/apt/archives/partial", 0o700)):
        (root / relative_path).mkdir(parents=True)
        (root / relative_path).chmod(mode)
    if not system.keep_logs:
        for folder, _, files in os.walk(root / "var/log"):
            for relative_path in files:
                os.truncate(Path(folder, relative_path), 0)
    else:  # the log must not contain the path of the system's folder on this machine
        log_path = root / "var/log/bootstrap.log"
        log_path.write_bytes(log_path.read_bytes().replace(os.fsencode(root), b""))
    for path in (*(root / "var/lib/dpkg").glob("*-old"), *(root / "etc").glob("*-")):
        path.unlink()
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for relative_path, text in _TEXTS.items():
        path = root / relative_path
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="ascii")
        path.chmod(0o644)
    for program in system.absent:
        for folder in ("usr/local/bin", "usr/local/sbin", "usr/bin", "usr/sbin", "usr/games"):
            (root / folder / program).unlink(missing_ok=True)


def _empty_folder(folder: Path) -> None:
    # A symbolic link is not followed. For instance, /var/run of the image is a link to /run. This
    # process, outside the image, would empty /run of the machine.
    if folder.is_dir() and not folder.is_symlink():
        for path in folder.iterdir():
            remove_tree(path)


# The image nl2bash reproduces properties of the image of the 2023 release: its programs, the names
# in its root, and environment variables without a locale. The properties are taken from recorded
# runs. The system of 2023 was Ubuntu 22.04, which no archive keeps unchanged.
_NL2BASH_FINISH = """\
rm -rf /tmp /mnt
mkdir -p /usr/lib32 /usr/libx32
ln -sfn usr/lib32 /lib32
ln -sfn usr/libx32 /libx32

# The account that Ubuntu gives another name.
sed -i 's/^ssh:/_ssh:/' /etc/group /etc/gshadow

ln -sfn /proc/mounts /etc/mtab
printf 'nameserver 127.0.0.1\\n' >/etc/resolv.conf
sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf
{
  echo '# symbolic names for networks, see networks(5) for more information'
  echo 'link-local 169.254.0.0'
} >/etc/networks
{
  printf '127.0.0.1\\tlocalhost\\n'
  printf '::1\\tlocalhost ip6-localhost ip6-loopback\\n'
  printf 'fe00::0\\tip6-localnet\\nff00::0\\tip6-mcastprefix\\n'
  printf 'ff02::1\\tip6-allnodes\\nff02::2\\tip6-allrouters\\n'
  printf '172.17.0.2\\t%s\\n' "$(cat /etc/hostname)"
} >/etc/hosts

: >/.dockerenv
chmod 755 /.dockerenv
for name in bin boot dev etc home lib media opt proc root run sbin srv sys usr var .dockerenv; do
  echo "$name"
done >/.gitignore
git -c init.defaultBranch=master init -q /

# The stub of a minimized Ubuntu.
cat >/usr/bin/man <<'STUB'
#!/bin/sh
echo "This system has been minimized by removing packages and content that are"
echo "not required on a system that users do not log into."
echo ""
echo "To restore this content, including manpages, you can run the 'unminimize'"
echo "command. You will still need to ensure the 'man-db' package is installed."
STUB
chmod 755 /usr/bin/man

# The image was days old when it was used.
find /var/log -exec touch -h -d '2023-06-01 12:00 UTC' {} +
"""

_NL2BASH_PACKAGES = """
bash python3 psmisc procps bsdmainutils imagemagick dnsutils git less tree net-tools iputils-ping
curl cpio jq netbase
"""
_NL2BASH_ABSENT = """
md5deep xxd sudo bc rsync parallel wget python file vi vim nano gcc c++ make unzip zip rename
compress ip gawk
"""

RECIPES: dict[str, DebianSystem] = {
    "nl2bash": DebianSystem(
        suite="bullseye",
        # Debian's package cron recommends a mail server, which Ubuntu's package does not. So cron
        # is installed without recommended packages.
        packages=("cron",),
        with_recommended=tuple(_NL2BASH_PACKAGES.split()),
        absent=tuple(_NL2BASH_ABSENT.split()),
        finish=_NL2BASH_FINISH,
        keep_logs=True,
        env={"PATH": SEARCH_PATH, "HOME": "/root"},
        cwd="/",
    ),
}


# The command runs a build's program as process 1 of new pid and mount namespaces. If this process
# ends, for any cause, the kernel kills that program and all processes that it has started. The file
# systems that the program has mounted disappear, too.
_CONTAINMENT_COMMAND = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
)
_IN_ROOT = 'mount -t proc proc "$0/proc" 2>/dev/null || :; exec chroot "$0" "$@"'
_PROXY_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
"""Names of the environment variables that a build's programs inherit from this process."""
_LAST_LINES = 15
"""Number of output lines that the error of a failed program shows."""


@dataclass(frozen=True, slots=True)
class BuildChroot:
    """A root file system under construction, in which Debian's own programs run.

    The programs must be trusted, because a chroot does not isolate them as a sandbox does.
    """

    root: Path
    lock: int
    """The descriptor of the build's lock. All programs of the build inherit it. So the lock is held
    until they have ended."""
    progress: Progress

    def run(self, argv: Sequence[str]) -> None:
        """Run a program in the root file system, as root."""
        run(["/bin/sh", "-c", _IN_ROOT, str(self.root), *argv], self.lock, self.progress)


def run(argv: Sequence[str], lock_fd: int, progress: Progress) -> None:
    """Run a program of a build to its end, and report each line of its output.

    Args:
        argv: The program and its arguments.
        lock_fd: The descriptor of the build's lock: see `BuildChroot.lock`.
        progress: A function that receives the lines.

    Raises:
        ImageError: The program failed; the message has the last lines of the output.
    """
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        [*_CONTAINMENT_COMMAND, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        cwd="/",
        pass_fds=(lock_fd,),
        start_new_session=True,  # Ctrl-C reaches only this process, which then kills the program
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                progress(lines[-1])
        except BaseException:
            process.kill()
            # The read ends when all writing processes have ended. Then the build's files can be
            # removed.
            process.stdout.read()
            raise
    if process.returncode:
        output_tail = "\n".join(f"  {line}" for line in lines)
        raise ImageError(f"{argv[0]} failed with exit code {process.returncode}:\n{output_tail}")


def _environment() -> dict[str, str]:
    proxy_variables = {
        name: value for name, value in os.environ.items() if name.lower() in _PROXY_NAMES
    }
    return {
        **proxy_variables,
        "PATH": SEARCH_PATH,
        "HOME": "/root",
        "LC_ALL": "C",
        "DEBIAN_FRONTEND": "noninteractive",
    }
