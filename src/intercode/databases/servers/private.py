"""Private database servers, started from the installed binaries and gone with this process.

A server listens on a socket in a folder of its own that nobody else may enter, and on no network.
It does not flush to disk: what it holds can be made again. An initialised data folder is kept in
the cache, by the server's version, so that only the first start pays for it.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.databases.servers import supervisor
from intercode.errors import DatabaseError, UsageError
from intercode.files import cache_root, remove_tree
from intercode.sandbox.ownership import is_gone, new_lease

_PREFIX = "ic-db-"
_START_SECONDS = 60.0
_LOG_SHOWN = 2000
_SOCKET_NAME_LIMIT = 60  # of the 107 bytes that a socket's whole path may have


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one product is started."""

    product: str
    binary: Path
    users: tuple[str, ...]
    """Whom it runs as where we are root: the first of them that exists."""
    memory: int
    """Bytes that each of its processes may have for itself; 0: any number."""
    ending: int
    """The signal that ends it at once and cleanly enough to leave nothing in the kernel."""
    initialise: Callable[[Path], Sequence[str]]
    """The command that fills the data folder."""
    command: Callable[[Path], Sequence[str]]
    """The command that serves what is in a folder."""
    prepare: Callable[[Path, str], None]
    """Puts files with the administrator's password where `command` expects them."""
    connect_args: Callable[[Path, str], dict[str, Any]]
    """What the driver's ``connect`` takes."""
    probe: Callable[[Mapping[str, Any]], None]
    """Connects and disconnects; raises `ConnectionError` as long as that cannot be."""


class Server:
    """A private server that runs.

    Attributes:
        product: ``mariadb``, ``mysql`` or ``postgresql``.
        connect_args: What the driver's ``connect`` takes to be its administrator.
    """

    def __init__(self, recipe: Recipe) -> None:
        _sweep()
        self.product = recipe.product
        self.folder = _new_folder()
        password = secrets.token_urlsafe(18)
        self.connect_args = recipe.connect_args(self.folder, password)
        self._recipe = recipe
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Lock()
        try:
            self._fill()
            recipe.prepare(self.folder, password)
            self._own()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End it and remove its folder. Idempotent."""
        with self._closing:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
                self._process.wait()
            remove_tree(self.folder)

    def _fill(self) -> None:
        """An initialised data folder, from the cache if that has one."""
        kept = cache_root() / "servers" / _version(self._recipe)
        data = self.folder / "data"
        if kept.is_dir():
            shutil.copytree(kept, data, symlinks=True)
            return
        self._own()
        self._run(self._recipe.initialise(self.folder))
        _keep(data, kept)

    def _own(self) -> None:
        """Give the folder to whom the server runs as."""
        uid, gid = _user(self._recipe)
        if uid == os.geteuid():
            return
        try:
            os.chown(self.folder, uid, gid)
            for parent, folders, files in os.walk(self.folder):
                for name in (*folders, *files):
                    os.chown(Path(parent, name), uid, gid, follow_symlinks=False)
        except OSError as error:  # in a user namespace root may be the only user that there is
            raise DatabaseError(
                f"cannot give {self.folder} to user {uid}, as whom {self.product} is to run: "
                f"{error.strerror}; name a server that runs: --engine URL"
            ) from error

    def _run(self, command: Sequence[str]) -> None:
        uid, gid = _user(self._recipe)
        change = uid != os.geteuid()
        env = {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            capture_output=True,
            check=False,
            user=uid if change else None,
            group=gid if change else None,
            extra_groups=[] if change else None,
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace")[-_LOG_SHOWN:]
            raise DatabaseError(f"{self.product}: its data folder cannot be made:\n{said}")

    def _start(self) -> None:
        uid, gid = _user(self._recipe)
        # Ours too, and at once: the folder goes with the server, which may end as it starts.
        with (self.folder / "log").open("a+b") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", supervisor.__file__, str(self.folder)),
                    *(str(uid), str(gid), str(self._recipe.memory), str(int(self._recipe.ending))),
                    *self._recipe.command(self.folder),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._wait(log.fileno())

    def _wait(self, log: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return self._recipe.probe(self.connect_args)
            except ConnectionError as error:
                if not self.alive or time.monotonic() > deadline:
                    size = os.fstat(log).st_size
                    said = os.pread(log, _LOG_SHOWN, max(0, size - _LOG_SHOWN))
                    tail = said.decode(errors="replace").strip()
                    raise DatabaseError(
                        f"{self.product} did not start ({error}); its log ends:\n{tail}"
                    ) from None
            time.sleep(0.01)


def start_mariadb() -> Server:
    """A private MariaDB, or MySQL where only that is installed; the caller's to close.

    Its ``connect_args`` are for ``pymysql.connect``. It is configured as the 2023 release's was:
    names of tables are lower case, text is ``utf8mb4_general_ci``, and ``ONLY_FULL_GROUP_BY`` is
    off.

    Raises:
        UsageError: Neither is installed.
        DatabaseError: It did not start.
    """
    from intercode.databases.servers.private_mysql import recipe

    return Server(recipe())


def start_postgresql() -> Server:
    """A private PostgreSQL, the caller's to close; ``connect_args`` for ``psycopg.connect``.

    Raises:
        UsageError: It is not installed.
        DatabaseError: It did not start.
    """
    from intercode.databases.servers.private_postgresql import recipe

    return Server(recipe())


def find_binary(names: Sequence[str], folders: Sequence[str], package: str) -> Path:
    """A server's binary, where packages put it: often in no folder of the path.

    Raises:
        UsageError: It is not installed.
    """
    path = os.pathsep.join((*folders, os.environ.get("PATH", os.defpath)))
    for name in names:
        if found := shutil.which(name, path=path):
            return Path(found)
    raise UsageError(
        f"no {' or '.join(names)} is installed: `apt-get install {package}`, "
        "or give the URL of a server"
    )


def _user(recipe: Recipe) -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in (*recipe.users, "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise DatabaseError(f"{recipe.product} refuses to run as root, and there is no user for it")


def _new_folder() -> Path:
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > 107 - _SOCKET_NAME_LIMIT:
        parent = Path("/tmp")
    folder = parent / f"{_PREFIX}{new_lease()}"
    folder.mkdir(0o700)
    return folder


def _sweep() -> None:
    """Remove the folders of servers whose owner and supervisor were both killed."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for folder in parent.glob(f"{_PREFIX}*"):
            if folder.is_dir() and is_gone(folder.name.removeprefix(_PREFIX)):
                with suppress(OSError):  # it is another user's
                    remove_tree(folder)


def _version(recipe: Recipe) -> str:
    """What an initialised data folder depends on, as a name."""
    done = subprocess.run([recipe.binary, "--version"], capture_output=True, check=False)
    how = "\0".join(recipe.initialise(Path("/"))).encode()
    return f"{recipe.product}-{hashlib.blake2b(done.stdout + how, digest_size=8).hexdigest()}"


def _keep(data: Path, kept: Path) -> None:
    """Copy an initialised data folder into the cache, whole or not at all."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(dir=kept.parent, prefix=f"{kept.name}.tmp-"))
    try:
        shutil.copytree(data, copy / "data", symlinks=True)
        (copy / "data").rename(kept)
    except OSError:
        if not kept.is_dir():  # else another process was first
            raise
    finally:
        remove_tree(copy)
