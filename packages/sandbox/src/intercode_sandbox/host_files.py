"""Operations on files and folders: atomic writes, locks, removal, digests.

Programs that must start fast load this module. So it imports only the standard library, and two
modules of this package that do the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Self

from intercode_sandbox.errors import SandboxUnavailableError, UsageError
from intercode_sandbox.privileges import cache_folder, needs_stand_in, unsupported_system

try:
    import fcntl
except ImportError:  # Windows has no fcntl, and cannot run sandboxes either
    raise SandboxUnavailableError(unsupported_system()) from None

_CHUNK = 1 << 20


class FileDescriptor(int):
    """A file descriptor that is closed at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self)


@contextlib.contextmanager
def preserve_working_directory() -> Iterator[None]:
    """Restore the working directory at the end of a block that runs code of the user."""
    try:
        folder_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the working directory was removed, or must not be opened
        yield
        return
    try:
        yield
    finally:
        try:
            with contextlib.suppress(OSError):
                os.fchdir(folder_fd)
        finally:
            os.close(folder_fd)


def cache_root() -> Path:
    """Return the folder of InterCode's cache; all of its content can be created again.

    Raises:
        UsageError: Another user of the machine could change the cached images, programs or
            databases.
        SandboxUnavailableError: No folder is configured, and this user has no home.
    """
    folder = cache_folder()
    is_configured = "INTERCODE_CACHE" in os.environ
    if not is_configured and folder == Path("/root/.cache/intercode") and needs_stand_in():
        # The stand-in user, under which sandboxes run, cannot enter the home of root.
        folder = Path("/var/cache/intercode")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        _check_owner(folder, folder.stat())
    return folder


def _check_owner(folder: Path, info: os.stat_result) -> None:
    if info.st_uid not in (os.geteuid(), 0):
        reason = f"belongs to another user ({info.st_uid}), who could change what is in it"
        fix = "set INTERCODE_CACHE to a folder of your own"
    elif info.st_mode & stat.S_IWOTH:
        reason, fix = "can be written by all users", f"chmod o-w {folder}"
    else:
        return
    raise UsageError(f"the cache {folder} {reason}: {fix}")


@contextlib.contextmanager
def atomic_file(path: Path, *, parallel: bool = False, sync: bool = False) -> Iterator[Path]:
    """Write a file atomically: `path` has the complete file, or is unchanged.

    Yields a temporary path in the same folder, to which the block writes. At the block's end the
    temporary file is moved to `path`. If the block fails, the temporary file is removed.

    Args:
        path: The final path.
        parallel: Whether several processes or threads may write the same file at once. Each then
            gets a unique temporary path, so a killed process leaves a temporary file behind. If
            False, the next writer overwrites the temporary file of a killed process.
        sync: Whether the file must survive a power cut after the block's end.

    Raises:
        OSError: The file cannot be written, or the block did not write it.
    """
    suffix = f"-{os.getpid()}-{secrets.token_hex(4)}" if parallel else ""
    temporary_path = path.with_name(f".{path.name}.new{suffix}")
    temporary_path.unlink(missing_ok=True)  # a link there would be written through
    try:
        yield temporary_path
        if sync:
            _sync(temporary_path)
        temporary_path.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary_path.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write bytes, or a text as UTF-8, atomically: see `atomic_file`.

    Raises:
        OSError: The file cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with atomic_file(path, sync=sync) as temporary_path:
        temporary_path.write_bytes(data)


class DiskBudget:
    """The part of a disk that data may fill: half of the space that is free when the budget begins.

    Some data is a thousand times as large after its expansion: a compressed archive, a file with
    holes, a script's output. Without a budget such data could fill the disk.

    Args:
        folder: A folder on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        free_bytes, free_files = free_space(folder)
        self.bytes = free_bytes // 2
        """Remaining bytes of the budget."""
        self.files = free_files // 2
        """Remaining files of the budget."""
        self._min_free_bytes = free_bytes - self.bytes

    def take(self, byte_count: int, file_count: int = 0) -> None:
        """Reserve bytes and files of the budget before they are written.

        Args:
            byte_count: The number of bytes.
            file_count: The number of files.

        Raises:
            OSError: The request exceeds the remaining budget.
        """
        self.bytes -= byte_count
        self.files -= file_count
        if self.bytes < 0 or self.files < 0:
            raise OSError(errno.ENOSPC, f"more than half of what is free on its disk: {_LARGE}")

    def is_spent(self) -> bool:
        """Return whether the disk has less free space than the half that the budget must leave.

        Other programs that write to the disk use up the budget, too.
        """
        return free_space(self._folder)[0] < self._min_free_bytes


_LARGE = "it needs a larger disk, or contains more than any dataset needs"


def free_space(folder: Path) -> tuple[int, int]:
    """Return the free bytes of a folder's disk, and the number of files that can be created."""
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize, info.f_favail if info.f_files else sys.maxsize


def open_regular(path: Path) -> BinaryIO:
    """Open a file of untrusted data for reading, if the file is a regular one.

    Reading a FIFO or a device might never end.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to disk: new names then survive a power cut."""
    _sync(folder, os.O_DIRECTORY)


def _sync(path: Path, open_flags: int = 0) -> None:
    with FileDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | open_flags)) as descriptor:
        os.fsync(descriptor)


def sha256(content: str | bytes | Path | BinaryIO) -> str:
    """Return the SHA-256 of a text (as UTF-8), of bytes, or of a file's content, in hexadecimal.

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    if isinstance(content, Path):
        with content.open("rb") as file:
            return sha256(file)
    hasher = hashlib.sha256()
    while chunk := content.read(_CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def joint_digest(*values: str | bytes) -> str:
    """Return one BLAKE2b-128 digest of several values, in hexadecimal.

    Unequal lists of values have unequal digests, because the length of each value is hashed, too.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for value in values:
        encoded_value = (
            value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        )
        hasher.update(b"%d:" % len(encoded_value))
        hasher.update(encoded_value)
    return hasher.hexdigest()


def file_digest(content: Path | BinaryIO) -> str:
    """Return the BLAKE2b-128 of a file's content, in hexadecimal.

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(content, Path):
        with content.open("rb") as file:
            return file_digest(file)
    hasher = hashlib.blake2b(digest_size=16)
    while chunk := content.read(_CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder of any depth, even with unreadable directories. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
    for _ in range(3):  # another process may be removing the same tree
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        with contextlib.suppress(OSError):
            _flatten(path)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _flatten(path: Path) -> None:
    """Move all directories of a tree directly below its root, and let their owner access them.

    Agents create trees that are deeper than a path can be long, or than a function can recurse.
    """
    open_flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    path.chmod(0o700)
    with FileDescriptor(os.open(path, open_flags)) as top_fd:
        folder_names = _subfolders(top_fd)
        while folder_names:
            with FileDescriptor(
                os.open(folder_names.pop(), open_flags, dir_fd=top_fd)
            ) as folder_fd:
                for name in _subfolders(folder_fd):
                    new_name = secrets.token_hex(16)
                    os.rename(name, new_name, src_dir_fd=folder_fd, dst_dir_fd=top_fd)
                    folder_names.append(new_name)


def _subfolders(folder_fd: int) -> list[str]:
    """Return the names of an open folder's subfolders, after setting the mode of each to 0700.

    The mode lets the owner list, empty and move the subfolders.

    Args:
        folder_fd: A descriptor of the folder.
    """
    with os.scandir(folder_fd) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        os.chmod(name, 0o700, dir_fd=folder_fd)
    return names


def tree_size(path: Path) -> int:
    """Return the bytes that a folder's content takes on disk.

    A file with several names (hard links) counts once.
    """
    total = 0
    inodes: set[tuple[int, int]] = set()
    folders = [path]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:  # the path is too long, or the file was removed
                continue
            if stat.S_ISDIR(info.st_mode):
                folders.append(Path(entry.path))
            elif info.st_nlink > 1:
                if (info.st_dev, info.st_ino) in inodes:
                    continue
                inodes.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total


@contextlib.contextmanager
def file_lock(
    path: Path,
    *,
    shared: bool = False,
    wait: bool = True,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[int | None]:
    """Hold a lock among processes and threads while the block runs.

    Yields the descriptor of the lock's file, or None if the lock is taken and `wait` is False. A
    child process that inherits the descriptor holds the lock until the child's end. A holder that
    is not `shared` removes the file at the block's end.

    Args:
        path: The lock's file.
        shared: Whether other holders with `shared` may hold the lock at the same time.
        wait: Whether to wait for a lock that is taken.
        on_wait: A function that is called once before a wait.
    """
    descriptor = _acquire(path, shared, wait and on_wait is None)
    if descriptor is None and wait and on_wait is not None:
        on_wait()
        descriptor = _acquire(path, shared, wait)
    if descriptor is None:
        yield None
        return
    try:
        yield descriptor
    finally:
        if not shared:
            # The file is removed before the lock is released: `_acquire` detects the removal.
            path.unlink(missing_ok=True)
        os.close(descriptor)


_folder_locks: dict[str, int] = {}
"""Folder that this process holds by `hold_folder` → the descriptor with the lock.

A fork inherits the entries and the locks of its parent.
"""


def hold_folder(folder: Path) -> None:
    """Create a cache folder, and lock it: `empty_folder` leaves it alone until this process ends.

    Raises:
        OSError: The folder cannot be created.
    """
    if str(folder) in _folder_locks:
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    # Another thread may have locked the folder since the check above.
    if _folder_locks.setdefault(str(folder), descriptor) != descriptor:
        os.close(descriptor)


def empty_folder(folder: Path, dry_run: bool = False) -> int | None:
    """Remove the content of a cache folder, unless a process holds it: see `hold_folder`.

    Returns:
        The bytes on disk that were, or would be, freed; None if the folder is in use.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        freed_bytes = tree_size(folder)
        for path in () if dry_run else list(folder.iterdir()):
            remove_tree(path)
        return freed_bytes
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)


def _acquire(path: Path, shared: bool, wait: bool) -> int | None:
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            # The previous holder may have removed the file during the wait. Then a lock on the
            # removed file has no effect, and the loop opens the file again.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
