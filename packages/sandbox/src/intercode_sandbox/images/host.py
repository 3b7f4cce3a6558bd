"""The image ``host``: a clean writable root, with this machine's own ``/usr`` mounted read-only.

The image is created in milliseconds. Only files of ``/etc`` that programs need are copied from the
machine. The copies contain no name, account, address or key of the machine's owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from intercode_sandbox.errors import ImageError
from intercode_sandbox.extensions import PACKAGES
from intercode_sandbox.host_files import cache_root, joint_digest, write_atomically
from intercode_sandbox.images.base import (
    HOSTNAME,
    SEARCH_PATH,
    BuiltImageStore,
    Image,
    ImageBuilderContext,
)

VERSION = "2"
SPEC = "host"

_ETC = Path("/etc")
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32")
"""Names in the root that are links into ``/usr`` on most systems, and folders on others."""
_PROGRAMS = {
    "bash": "bash",
    "ls": "coreutils",
    "find": "findutils",
    "grep": "grep",
    "sed": "sed",
    "awk": "mawk",
    "tar": "tar",
    "gzip": "gzip",
    "diff": "diffutils",
}
_PLAIN_FOLDERS = """
dev etc home media mnt opt proc run srv sys usr
var var/backups var/cache var/lib var/local var/log var/mail var/opt var/spool
"""
_FOLDERS = {
    "root": 0o700,
    "tmp": 0o1777,
    "var/tmp": 0o1777,
    "run/lock": 0o1777,
    **dict.fromkeys(_PLAIN_FOLDERS.split(), 0o755),
}
_LINKS = {
    "etc/localtime": "/usr/share/zoneinfo/Etc/UTC",
    "etc/mtab": "/proc/mounts",
    "var/lock": "/run/lock",
    "var/run": "/run",
}
# These files of /etc are copied. They are public, and ordinary programs read them. They are equal
# on every machine of the distribution, except for the search path of the dynamic loader.
_COPIED_NAMES = (
    "debian_version",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "protocols",
    "services",
)
_MAX_PRIVATE_PATHS = 200
"""Maximum number of files and folders that are closed to other users. Each is hidden by a mount in
every sandbox, which takes time."""
_hidden_paths: set[Path] = set()
"""The paths that callers have passed to `hide`."""
_PACKAGES = (Path("/var/lib/dpkg/status"), Path("/var/lib/rpm"))
"""The files or folders in which package managers list the installed packages."""
_UNFINISHED_ENDINGS = (".dpkg-new", ".dpkg-tmp")
"""Endings of files that dpkg has not finished writing."""
_SYSTEM_USERS = """\
root 0 0 /root /bin/bash
daemon 1 1 /usr/sbin
bin 2 2 /bin
sys 3 3 /dev
sync 4 65534 /bin /bin/sync
games 5 60 /usr/games
man 6 12 /var/cache/man
lp 7 7 /var/spool/lpd
mail 8 8 /var/mail
news 9 9 /var/spool/news
uucp 10 10 /var/spool/uucp
proxy 13 13 /bin
www-data 33 33 /var/www
backup 34 34 /var/backups
list 38 38 /var/list
irc 39 39 /run/ircd
"""
_SYSTEM_USERS += " ".join(("nobody", "65534", "65534", "/nonexistent"))
_SYSTEM_GROUPS = """
root 0 daemon 1 bin 2 sys 3 adm 4 tty 5 disk 6 lp 7 mail 8 news 9 uucp 10 man 12 proxy 13 kmem 15
dialout 20 fax 21 voice 22 cdrom 24 floppy 25 tape 26 sudo 27 audio 29 dip 30 www-data 33
backup 34 operator 37 list 38 irc 39 src 40 shadow 42 utmp 43 video 44 sasl 45 plugdev 46 staff 50
games 60 users 100 nogroup 65534
"""


def host_mounts() -> tuple[str, ...]:
    """Return the machine's folders that are mounted read-only over the image.

    The folders are ``/usr``, and those of ``/bin``, ``/lib``, … that are not links into ``/usr``.
    """
    folders = [f"/{name}" for name in _SYSTEM_FOLDERS if _is_folder(Path("/", name))]
    return ("/usr", *folders)


def hide(*paths: str | Path | None) -> None:
    """Hide files and folders, which contain golds, from all sandboxes that start later.

    Golds are reference solutions.
    """
    _hidden_paths.update(Path(path).absolute() for path in paths if path is not None)


def resolve_hidden_paths() -> list[str]:
    """Return the paths below `host_mounts()` that must be hidden from sandboxes.

    Only these folders of the machine are visible in sandboxes. So no other path needs to be hidden,
    and sandboxes do not even learn the names of other paths. No path in the list is below another.
    Not all of the paths exist. Hidden are:

    - the working directory, the user's home, and the cache;
    - InterCode itself, which has the bundled reference solutions (golds) and generates the flags of
      puzzles;
    - the paths of `hide`: data, databases, repositories, runs;
    - files that are closed to other users. Root of a sandbox could read them, because files of the
      machine's root belong to root of the sandbox.
    """
    paths = [cache_root(), Path(os.environ.get("HOME", "/root")), *sorted(_hidden_paths)]
    with contextlib.suppress(OSError):
        paths.append(Path.cwd())
    paths += _cached_private_paths(str(cache_root()))
    mount_prefixes = tuple(f"{path}/" for path in host_mounts())
    package_folders = (Path(__file__).parents[1], *PACKAGES.values())
    outermost_paths = _outermost_paths(package_folders, tuple(sys.path), tuple(paths))
    return [path for path in outermost_paths if path.startswith(mount_prefixes)]


@lru_cache(maxsize=2)
def _cached_private_paths(cache_path: str) -> tuple[Path, ...]:
    """Return the files and folders below `host_mounts()` that are closed to other users.

    A full scan takes a second. So a file in the cache keeps the result until a package or a program
    of the machine changes. The folder /usr/local has files of the administrator, not of packages.
    Each process scans it again.

    Args:
        cache_path: The path of the cache folder.

    Raises:
        ImageError: The machine has more such files and folders than `_MAX_PRIVATE_PATHS`.
    """
    record_file = Path(cache_path, "private-places.json")
    stamp_digest = joint_digest(VERSION, *host_mounts(), *map(_path_stamp, _watched_paths()))
    local_folder = "/usr/local"
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
        packaged_paths = record["places"] if record["key"] == stamp_digest else None
    except (OSError, ValueError, LookupError, TypeError):
        packaged_paths = None
    if packaged_paths is None:
        packaged_paths = [
            path
            for mount in host_mounts()
            for path in _private_paths(mount, excluded_path=local_folder)
        ]
        # If the cache cannot be written, images cannot be stored either. `ImageCache` then raises
        # the error.
        with contextlib.suppress(OSError):
            write_atomically(
                record_file, json.dumps({"key": stamp_digest, "places": packaged_paths})
            )
            record_file.chmod(0o600)
    private_paths = [*packaged_paths, *_private_paths(local_folder)]
    if len(private_paths) > _MAX_PRIVATE_PATHS:
        raise ImageError(
            f"the image {SPEC!r} cannot hide {len(private_paths)} files and folders below /usr "
            f"without permissions for other users ({private_paths[0]} …): move them elsewhere, or "
            "use the image 'base'"
        )
    return tuple(map(Path, private_paths))


def _path_stamp(path: Path) -> str:
    info = path.stat() if path.exists() else None
    return f"{path} {info and info.st_mtime_ns}"


def _private_paths(top_folder: str, excluded_path: str = "") -> Iterator[str]:
    """Yield the files and folders below a folder that are closed to other users.

    Other users can neither read nor execute such a file, and cannot enter such a folder.

    Args:
        top_folder: The folder.
        excluded_path: A path that is not examined.
    """
    folders = [top_folder]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # another process has just removed the folder
            continue
        for entry in entries:
            if entry.is_symlink() or entry.path == excluded_path:
                continue
            with contextlib.suppress(OSError):
                mode = entry.stat(follow_symlinks=False).st_mode
                is_folder = stat.S_ISDIR(mode)
                if not mode & (stat.S_IXOTH if is_folder else stat.S_IROTH | stat.S_IXOTH):
                    yield entry.path
                elif is_folder:
                    folders.append(entry.path)


@lru_cache(maxsize=8)
def _outermost_paths(
    packages: tuple[Path, ...], import_path: tuple[str, ...], hidden_paths: tuple[Path, ...]
) -> tuple[str, ...]:
    """Return hidden paths and InterCode's folders, without paths that lie below another one.

    Links in the paths are resolved. The result is cached, because every start of a sandbox needs
    it. Therefore all inputs that may change during a process are arguments.

    Args:
        packages: The folders of InterCode's registered packages.
        import_path: Python's import path.
        hidden_paths: The hidden paths.
    """
    resolved_paths = {
        hidden_path.resolve() for hidden_path in hidden_paths if hidden_path.is_absolute()
    }
    resolved_paths |= set(map(_checkout, _package_folders(packages, import_path)))
    return tuple(
        sorted(str(path) for path in resolved_paths if resolved_paths.isdisjoint(path.parents))
    )


def _package_folders(packages: tuple[Path, ...], import_path: tuple[str, ...]) -> set[Path]:
    """Return the folders of InterCode's installed packages, and of their metadata.

    The function also finds packages that are not registered. A process that never imports
    ``intercode`` starts sandboxes, too, and the golds of that package lie on the same machine.

    Args:
        packages: The folders of the registered packages.
        import_path: Python's import path.
    """
    sites = {*(package.parent for package in packages), *map(Path, import_path)}
    folders = {*packages}
    for site in sites:
        with contextlib.suppress(OSError):  # this user may not read the folder, or import from it
            # The slash matches folders only. The import path may begin with a folder of programs,
            # such as the program ``intercode``.
            folders.update(site.glob("intercode*/"))
    return folders


def _checkout(package: Path) -> Path:
    """Return the source checkout that contains a package, or the package's own folder.

    In a checkout a package lies in ``packages/NAME/src``.
    """
    package = package.resolve()
    site = package.parent
    checkout = site.parent.parent.parent
    if site.name == "src" and (site.parent / "pyproject.toml").is_file():
        return checkout if (checkout / "pyproject.toml").is_file() else site.parent
    return package


def make(argument: str, context: ImageBuilderContext) -> Image:
    """Return the image ``host``, built if this machine's programs have changed.

    Args:
        argument: The text after ``host:``, which must be empty.
        context: See `ImageBuilderContext`.

    Raises:
        ImageError: The argument is not empty, the machine lacks a program, or the build failed.
    """
    if argument:
        raise ImageError(f"the image {SPEC!r} takes no argument, not {argument!r}")
    _check_programs()
    context.inputs.update(_watched_paths())
    files, alternatives = _files(), _alternatives()
    template = Image(name=SPEC, digest=_digest(files, alternatives), layers=(), host=True)

    def fill(layer: Path, lock_fd: int) -> Mapping[str, object]:
        return _fill(layer, files, alternatives)

    return context.cache.build(template, SPEC, fill, context.progress)


def _check_programs() -> None:
    missing_programs = {
        program: package
        for program, package in _PROGRAMS.items()
        if shutil.which(program, path=SEARCH_PATH) is None
    }
    if missing_programs:
        raise ImageError(
            f"the image 'host' needs {', '.join(missing_programs)}, which this machine lacks; "
            f"apt-get install {' '.join(sorted(set(missing_programs.values())))}"
        )


def _digest(files: Mapping[str, bytes], alternatives: Mapping[str, str]) -> str:
    """Return the image's digest, which covers all copied files and the machine's programs.

    Args:
        files: Name in ``/etc`` → content.
        alternatives: Name in ``/etc/alternatives`` → the link's target.
    """
    digest_inputs: list[str | bytes] = [SPEC, VERSION, *host_mounts()]
    for name, content in files.items():
        digest_inputs += [name, content]
    for name, target in sorted(alternatives.items()):
        digest_inputs += [name, target]
    for program_folder in _program_folders():
        digest_inputs += [program_folder, *_programs(program_folder)]
    return joint_digest(*digest_inputs, *_packages())


def _program_folders() -> list[str]:
    return list(dict.fromkeys(os.path.realpath(folder) for folder in SEARCH_PATH.split(":")))


def _watched_paths() -> list[Path]:
    """Return the paths whose times change when a package is installed or a program is replaced."""
    package_lists = [path for path in _PACKAGES if path.exists()]
    return [*map(Path, _program_folders()), _ETC / "alternatives", *package_lists]


def _packages() -> list[str]:
    """Return the installed packages with their versions; empty if the machine has no dpkg.

    The image's digest covers all packages, because the new version of a library may change the
    behaviour of a program.
    """
    packages = []
    if _PACKAGES[0].is_file():
        for block in _PACKAGES[0].read_text(encoding="utf-8", errors="replace").split("\n\n"):
            package_fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
            if package_fields.get("Status", "").endswith(" installed"):
                packages.append(f"{package_fields.get('Package')} {package_fields.get('Version')}")
    return sorted(packages)


def _programs(folder: str) -> list[str]:
    """Return a text for each program in a folder, sorted.

    The text has the program's name, mode, size and time, or the target of a link. The times come
    from the packages, not from the installation. So the list is unchanged after a package was
    installed and removed again.
    """
    programs = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_UNFINISHED_ENDINGS):
                continue
            with contextlib.suppress(FileNotFoundError):  # the file was replaced just now
                info = entry.stat(follow_symlinks=False)
                stamp = f"{info.st_size} {info.st_mtime_ns}"
                # The time of a link may be that of the installation, so only its target counts.
                if entry.is_symlink():
                    stamp = os.readlink(entry.path)  # noqa: PTH115 - it is one of thousands
                programs.append(f"{entry.name}\0{info.st_mode:o} {stamp}")
    return sorted(programs)


def _alternatives() -> dict[str, str]:
    targets = {}
    for path in _finished_files(_ETC / "alternatives"):
        with contextlib.suppress(FileNotFoundError):  # the link was replaced just now
            if path.is_symlink():
                targets[path.name] = str(path.readlink())
    return targets


def _finished_files(folder: Path) -> list[Path]:
    """Return the files of a folder, except files that dpkg has not finished writing.

    The list is empty if the folder does not exist.
    """
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.endswith(_UNFINISHED_ENDINGS))


def _fill(
    layer: Path, files: Mapping[str, bytes], alternatives: Mapping[str, str]
) -> Mapping[str, object]:
    for name in (*_FOLDERS, "etc/alternatives"):
        (layer / name).mkdir(parents=True, exist_ok=True)
    for name in _SYSTEM_FOLDERS:
        machine_path = Path("/", name)
        if machine_path.is_symlink():
            (layer / name).symlink_to(machine_path.readlink())
        elif machine_path.is_dir():
            (layer / name).mkdir()
    for name, target in _LINKS.items():
        (layer / name).symlink_to(target)
    for name, target in alternatives.items():
        (layer / "etc/alternatives" / name).symlink_to(target)
    for name, content in files.items():
        (layer / "etc" / name).parent.mkdir(exist_ok=True)
        (layer / "etc" / name).write_bytes(content)
    _set_modes(layer)
    return {"version": VERSION, "installed": _installed_versions()}


def _installed_versions() -> dict[str, str]:
    """Return the machine's packages and programs, for the image's record.

    Returns:
        Package → version, and path of a program → the text of `_programs`.
    """
    package_versions = dict(line.split(" ", 1) for line in _packages())
    program_stamps = [
        (f"{program_folder}/{name}", program_stamp)
        for program_folder in _program_folders()
        for name, _, program_stamp in (line.partition("\0") for line in _programs(program_folder))
    ]
    return package_versions | dict(program_stamps)


def changes(previous_digest: str, current_digest: str, cache: BuiltImageStore) -> list[str]:
    """List the packages installed, removed or upgraded between two images based on ``host``.

    Args:
        previous_digest: The digest of the first image.
        current_digest: The digest of the second image.
        cache: The store of images, which may lack an image.

    Returns:
        A text for each package that differs. If all packages are equal: a text for each program
        that differs. Empty if the cache does not have both images.
    """
    previous_versions, current_versions = (
        _read_installed(digest, cache) for digest in (previous_digest, current_digest)
    )
    if not (previous_versions and current_versions):
        return []
    changed_names = sorted(
        name
        for name in previous_versions | current_versions
        if previous_versions.get(name) != current_versions.get(name)
    )
    changed_packages = [name for name in changed_names if not name.startswith("/")]
    return [
        _describe_change(name, previous_versions.get(name), current_versions.get(name))
        for name in changed_packages or changed_names
    ]


def _read_installed(digest: str, cache: BuiltImageStore) -> dict[str, str]:
    """Return the machine's packages and programs when an image's lowest layer was built.

    `_installed_versions` describes the result, which is empty if the cache lacks the image.
    """
    record = cache.read(digest) or {"layers": [digest]}
    base_record = cache.read(str(record["layers"][0]).partition("/")[0]) or {}
    versions: dict[str, str] = base_record.get("built", {}).get("installed", {})
    return versions


def _describe_change(name: str, previous_version: str | None, current_version: str | None) -> str:
    is_program = name.startswith("/")
    if previous_version is None:
        return f"{name} installed" if is_program else f"{name} {current_version} installed"
    if current_version is None:
        return f"{name} removed"
    return f"{name} changed" if is_program else f"{name} {previous_version} → {current_version}"


def _files() -> dict[str, bytes]:
    """Return the files of the image's ``/etc``: name → content.

    The files are copies of this machine's files, and fixed texts.
    """
    contents = {}
    for path in map(_ETC.joinpath, _COPIED_NAMES):
        for file in _finished_files(path) if path.is_dir() else [path]:
            if file.is_file():
                with contextlib.suppress(FileNotFoundError):  # the file was replaced just now
                    contents[str(file.relative_to(_ETC))] = file.read_bytes()
    return contents | {name: text.encode() for name, text in _texts().items()}


def _texts() -> dict[str, str]:
    user_rows = [line.split() for line in _SYSTEM_USERS.splitlines()]
    nologin = "/usr/sbin/nologin"
    group_words = _SYSTEM_GROUPS.split()
    release_file = _ETC / "os-release"
    return {
        "passwd": "".join(
            f"{name}:x:{uid}:{gid}:{name}:{home}:{shell_fields[0] if shell_fields else nologin}\n"
            for name, uid, gid, home, *shell_fields in user_rows
        ),
        "group": "".join(
            f"{name}:x:{gid}:\n"
            for name, gid in zip(group_words[::2], group_words[1::2], strict=True)
        ),
        "hostname": f"{HOSTNAME}\n",
        "hosts": f"127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n"
        "networks: files\nprotocols: files\nservices: files\n",
        "os-release": release_file.read_text(encoding="utf-8") if release_file.is_file() else "",
        "shells": "/bin/sh\n/bin/bash\n",
        "timezone": "Etc/UTC\n",
    }


def _set_modes(layer: Path) -> None:
    """Set the modes, and as root the owners, of all files and folders of the layer to fixed values.

    Otherwise they would depend on the umask, on the group of the cache, and on the machine's files.
    """
    for folder, folders, files in os.walk(layer):
        relative_path = os.path.relpath(folder, layer)
        if os.geteuid() == 0:
            for name in (".", *folders, *files):
                os.lchown(os.path.join(folder, name), 0, 0)  # noqa: PTH118
        Path(folder).chmod(_FOLDERS.get(relative_path, 0o755))
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o644)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
