"""The image ``base``: a small Debian system, equal on all machines of one architecture.

A lock file for each architecture, beside this module, pins each package by its hash, and, if known,
the image's tree by its digest.
The installation scripts of the packages are not run: they need privileges that an ordinary user
lacks, and their results vary. The script `FINISH` does the necessary part of their work, in a
sandbox.
"""

from __future__ import annotations

import calendar
import io
import platform
import re
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from intercode_sandbox.errors import ImageError
from intercode_sandbox.host_files import joint_digest, remove_tree
from intercode_sandbox.images.base import HOSTNAME, Image, ImageBuilderContext, Progress
from intercode_sandbox.images.debian_packages import DebianPackage, fetch, open_package
from intercode_sandbox.images.tarballs import DAMAGE, LayerUnpacker
from intercode_sandbox.images.tree import content_digest, set_times

VERSION = "1"
SPEC = "base"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name of an architecture → Debian's name."""

FINISH = """\
set -eu
umask 022
export LC_ALL=C PYTHONHASHSEED=0

cd /usr/share
cp base-passwd/passwd.master /etc/passwd
cp base-passwd/group.master /etc/group
cp base-files/profile /etc/profile
cp base-files/dot.bashrc /root/.bashrc
cp base-files/dot.profile /root/.profile
cp libc-bin/nsswitch.conf /etc/nsswitch.conf
printf '/bin/sh\\n/usr/bin/sh\\n/bin/bash\\n/usr/bin/bash\\n' >/etc/shells
printf 'Etc/UTC\\n' >/etc/timezone
ln -s /usr/share/zoneinfo/Etc/UTC /etc/localtime
: >/etc/machine-id
mkdir -p /media /mnt /opt /srv /var/mail /var/opt
mkdir -p /usr/local/bin /usr/local/etc /usr/local/include /usr/local/lib /usr/local/sbin \\
    /usr/local/share /usr/local/src
test -e /lib64 || rm /lib64
mkdir -m 1777 /run/lock
rmdir /var/run /var/lock
ln -s /run /var/run
ln -s /run/lock /var/lock

# Of several programs with one name, the one that is meant by it.
choose() {
    ln -s "/usr/bin/$2" "/etc/alternatives/$1"
    ln -s "/etc/alternatives/$1" "/usr/bin/$1"
}
choose awk mawk
choose nawk mawk
choose nc nc.openbsd
choose netcat nc.openbsd
choose pager less
choose which which.debianutils

# Else a program that imports a module would change the system's files.
python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.*
ldconfig
rm -rf /var/cache/ldconfig
find / -xdev -mindepth 1 \\( -path /dev -o -path /proc -o -path /sys \\) -prune \\
    -o -newermt @TIME -exec touch -h -d @TIME {} +
"""
"""The set-up script, run as root in a sandbox. The text ``TIME`` is replaced by the lock's time."""

_FOLDER = Path(__file__).parent
_LINKS = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    "etc/mtab": "/proc/mounts",
}
"""Path of a symbolic link → its target. The links are created before the packages are unpacked,
because some packages have files below them."""
# The script cannot write these files: in a container an engine mounts its own files over some.
_TEXTS = {
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",
}
_UNNEEDED_FILES = re.compile(
    r"\./usr/share/(?:doc/.*/(?!copyright$)[^/]+|(?:bug|doc-base|info|lintian|locale|man)/.+)"
)
"""Pattern of files that no program needs, and that are not unpacked. Debian's small images for
containers lack the same files. Licences are unpacked."""


@dataclass(frozen=True, slots=True)
class PackageLockFile:
    """The content of a lock file: the packages of the image for one architecture."""

    release: str
    """Debian's point release, such as ``12.15``."""
    snapshot: str
    """A time at which Debian's archive had all packages, such as ``20260712T000000Z``. The files
    that no package contains get this time."""
    tree: str
    """The digest of the finished tree: see `content_digest`. Empty: unknown."""
    packages: tuple[DebianPackage, ...]


def lock_file(architecture: str) -> Path:
    """Return the path of an architecture's lock file."""
    return _FOLDER / f"base-{architecture}.lock"


def parse_lock(text: str) -> PackageLockFile:
    """Parse the text of a lock file.

    The text has a head of ``NAME VALUE`` lines, an empty line, and a line for each package.
    """
    head, _, package_lines = text.partition("\n\n")
    head_fields = dict(line.split(" ", 1) for line in head.splitlines() if not line.startswith("#"))
    package_rows = [line.split() for line in package_lines.splitlines()]
    return PackageLockFile(
        release=head_fields["release"],
        snapshot=head_fields["snapshot"],
        tree=head_fields.get("tree", ""),
        packages=tuple(
            DebianPackage(name, version, path, int(size), sha256)
            for name, version, path, size, sha256 in package_rows
        ),
    )


def trees() -> set[str]:
    """Return the digests of the images whose lock names the tree: the digests of their trees."""
    locks = (parse_lock(path.read_text(encoding="ascii")) for path in _FOLDER.glob("*.lock"))
    return {lock.tree for lock in locks if lock.tree}


def make(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``base`` for this machine's architecture, built if necessary.

    Args:
        argument: The text after ``base:``, which must be empty.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The argument is not empty, the architecture has no lock file, or see
            `make_locked`.
    """
    if argument:
        raise ImageError(f"the image {SPEC!r} takes no argument, not {argument!r}")
    machine = platform.machine()
    lock_path = lock_file(ARCHITECTURES.get(machine, machine))
    if not lock_path.is_file():
        platforms_text = ", ".join(
            sorted(path.stem.removeprefix("base-") for path in _FOLDER.glob("*.lock"))
        )
        raise ImageError(
            f"the image 'base' has packages for {platforms_text}, and this machine is {machine}; "
            "use "
            "debian:bookworm[PACKAGE,PACKAGE], which follows Debian's archive"
        )
    return make_locked(parse_lock(lock_path.read_text(encoding="ascii")), context)


def make_locked(lock: PackageLockFile, context: ImageBuilderContext) -> Image:
    """Return the image that a lock describes, built if necessary.

    Raises:
        ImageError: A package is not available, or the finished tree differs from the lock's.
    """
    ingredients = (replace(lock, tree=""), _LINKS, _TEXTS, _UNNEEDED_FILES.pattern)
    packages_digest = joint_digest("packages", VERSION, repr(ingredients))
    template = Image(
        name=SPEC, digest=lock.tree or joint_digest(packages_digest, FINISH), layers=()
    )
    if cached_image := context.cache.lookup(template.digest):
        return cached_image

    def unpack(layer: Path, _: int) -> Mapping[str, object]:
        return _unpack(lock, layer, context.progress)

    packages_template = replace(template, name=f"{SPEC} (packages)", digest=packages_digest)
    packages_image = context.cache.build(packages_template, SPEC, unpack, context.progress)

    def finish(layer: Path, _: int) -> Mapping[str, object]:
        script = FINISH.replace("TIME", str(_seconds(lock.snapshot)))
        context.build_script(packages_image, script.encode(), layer)
        (layer / ".dockerenv").unlink(missing_ok=True)  # an engine creates it in its containers
        tree_digest = content_digest((*packages_image.layers, layer))
        if lock.tree not in ("", tree_digest):
            raise ImageError(
                "the image 'base' differs from that of other machines: its tree is "
                f"{tree_digest}, but "
                f"that of the lock is {lock.tree}. 'intercode images import FILE' imports an "
                "image from another machine; please report this with the output of 'intercode "
                "doctor'"
            )
        return {"release": lock.release, "tree": tree_digest}

    template = replace(template, layers=packages_image.layers)
    return context.cache.build(template, SPEC, finish, context.progress)


def _unpack(lock: PackageLockFile, layer: Path, progress: Progress) -> Mapping[str, object]:
    """Download the packages, and unpack them into a layer, in the lock's order.

    Args:
        lock: The lock.
        layer: The empty folder of the layer.
        progress: A function that receives the messages.

    Returns:
        Facts for the image's record.
    """
    package_count, size_mib = (
        len(lock.packages),
        sum(package.size for package in lock.packages) / 2**20,
    )
    progress(f"fetching {package_count} packages of Debian {lock.release}, {size_mib:.0f} MiB")
    download_folder = layer.with_name("packages")
    download_folder.mkdir()
    try:
        fetch(lock.packages, lock.snapshot, download_folder, progress)
        progress(f"unpacking {package_count} packages")
        package_entries = _unpack_packages(lock, download_folder, layer)
    finally:
        remove_tree(download_folder)
    database_files = {
        f"var/lib/dpkg/info/{name}.list": file_list
        for name, (_, file_list) in package_entries.items()
    }
    database_files["var/lib/dpkg/info/format"] = "1\n"
    database_files["var/lib/dpkg/status"] = "".join(
        control for control, _ in package_entries.values()
    )
    for name, text in {**_TEXTS, **database_files}.items():
        (layer / name).write_text(text, encoding="utf-8")
        (layer / name).chmod(0o644)
    timestamp = _seconds(lock.snapshot)
    set_times(layer, timestamp, timestamp)
    return {"release": lock.release, "packages": package_count}


def _unpack_packages(
    lock: PackageLockFile, download_folder: Path, layer: Path
) -> dict[str, tuple[str, str]]:
    """Unpack the downloaded packages into a layer.

    Args:
        lock: The lock.
        download_folder: The folder with the files of the packages.
        layer: The empty folder of the layer.

    Returns:
        The package's name in dpkg's database → the package's paragraph and its list of files there.
    """
    unpacker, package_entries = LayerUnpacker(layer, (), ()), {}
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as empty_archive:
        for name, target in _LINKS.items():
            unpacker.add(empty_archive, _link(name, target, _seconds(lock.snapshot)))
    for package in lock.packages:
        try:
            with open_package(download_folder / package.sha256) as (control, archive):
                member_names = []
                for member in archive:
                    member_names.append(member.name)
                    if not _UNNEEDED_FILES.fullmatch(member.name):
                        unpacker.add(archive, member)
        except DAMAGE as error:
            raise ImageError(f"cannot unpack the package {package.name}: {error}") from error
        package_line, _, remaining_lines = control.partition("\n")
        is_coinstallable = "\nMulti-Arch: same\n" in control
        architecture = next(
            field_line[14:]
            for field_line in remaining_lines.splitlines()
            if field_line.startswith("Architecture: ")
        )
        package_entries[f"{package.name}:{architecture}" if is_coinstallable else package.name] = (
            f"{package_line}\nStatus: install ok installed\n{remaining_lines.rstrip()}\n\n",
            "".join(f"{name[1:].rstrip('/') or '/.'}\n" for name in member_names),
        )
    unpacker.finish()
    return package_entries


def _link(name: str, target: str, mtime: int) -> tarfile.TarInfo:
    link = tarfile.TarInfo(name)
    link.type, link.linkname, link.mtime = tarfile.SYMTYPE, target, mtime
    return link


def _seconds(snapshot_time: str) -> int:
    return calendar.timegm(time.strptime(snapshot_time, "%Y%m%dT%H%M%SZ"))
