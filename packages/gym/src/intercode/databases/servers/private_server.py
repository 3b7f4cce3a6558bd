"""Private database servers, started from the installed binaries and ended with this process.

A server listens on a socket in its own folder, which no other user may enter, and on no network.
The server does not flush to disk, because its content can be recreated. The cache keeps an
initialised data folder for each version of a server, so only the first start takes long. The
classes come first, then a recipe for each product, which describes how its server is started.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from intercode.databases.servers import driver, supervisor
from intercode.errors import DatabaseError, InterCodeError, UsageError
from intercode_sandbox.host_files import cache_root, hold_folder, remove_tree
from intercode_sandbox.ownership import is_gone, new_lease

_PREFIX = "ic-db-"
_START_SECONDS = 60.0
_LOG_TAIL_BYTES = 2000
_SOCKET_NAME_LIMIT = 60  # bytes of the socket's name, of 107 bytes for its whole path
_MYSQL_FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/mysql/bin")
_CASE = "--lower-case-table-names=1"
_MYSQL_SERVE = (
    _CASE,
    "--skip-networking",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--skip-symbolic-links",
    "--local-infile=0",
    "--event-scheduler=OFF",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--max-connections=1000",
    "--max-allowed-packet=16M",
    "--max-connect-errors=1000000",
    "--performance-schema=OFF",
    # Speed: the content can be recreated, so no statement waits for a disk.
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-innodb-doublewrite",
    "--skip-innodb-stats-persistent",
    "--innodb-buffer-pool-size=96M",
    "--innodb-autoextend-increment=1",
)
_MARIADB_ONLY = (
    "--innodb-log-file-size=32M",
    "--debug-no-sync",
    "--skip-sync-frm",
    # These limits of one session cannot be raised by the session.
    "--max-session-mem-used=1G",
    "--maximum-max-session-mem-used=1G",
    "--maximum-max-heap-table-size=128M",
    "--tmp-disk-table-size=1G",
    "--maximum-tmp-disk-table-size=1G",
)
_MYSQL_ONLY = (
    "--mysqlx=OFF",
    "--sql-mode=STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
)
_ADMINISTRATOR = "intercode"
_DEBIAN = Path("/usr/lib/postgresql")
_POSTGRESQL_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "600",
    "shared_buffers": "128MB",
    "temp_file_limit": "1GB",
    "max_prepared_transactions": "0",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Speed: the content can be recreated, so no statement waits for a disk.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "1h",
    # A query reads the same rows in the same order in every run.
    "autovacuum": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class DatabaseServerRecipe:
    """The commands and settings by which the server of one product is started."""

    product: str
    binary: Path
    users: tuple[str, ...]
    """Accounts for the server of a root process: the first that exists is used, else ``nobody``."""
    memory: int
    """Maximum bytes of data of each process of the server; 0: no limit."""
    ending: int
    """Signal that ends the server immediately; no shared memory may remain in the kernel."""
    initialise: Callable[[Path], Sequence[str]]
    """Returns the command that creates the data folder in the server's folder."""
    command: Callable[[Path], Sequence[str]]
    """Returns the command that starts the server on the data in the server's folder."""
    prepare: Callable[[Path, str], None]
    """Writes files that `command` needs, such as a file that sets the administrator's password."""
    connect_args: Callable[[Path, str], dict[str, Any]]
    """Returns the arguments of the driver's ``connect``, from the folder and the password."""
    probe: Callable[[Mapping[str, Any]], None]
    """Connects and disconnects; raises `ConnectionError` if the server does not respond."""


class PrivateDatabaseServer:
    """A running private server.

    Args:
        recipe: The commands and settings that start the server.

    Raises:
        DatabaseError: The server did not start.

    Attributes:
        product: ``mariadb``, ``mysql`` or ``postgresql``.
        folder: The folder that holds the data, the socket and the log of the server.
        connect_args: The arguments of the driver's ``connect``, for the administrator's account.
    """

    def __init__(self, recipe: DatabaseServerRecipe) -> None:
        _sweep()
        self.product = recipe.product
        self.folder = _new_folder()
        password = secrets.token_urlsafe(18)
        self.connect_args = recipe.connect_args(self.folder, password)
        self._recipe = recipe
        self._process: subprocess.Popen[bytes] | None = None
        self._close_lock = threading.Lock()
        try:
            self._fill()
            recipe.prepare(self.folder, password)
            self._change_owner()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the server and remove its folder. Idempotent."""
        with self._close_lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
                self._process.wait()
            remove_tree(self.folder)

    def _fill(self) -> None:
        """Create an initialised data folder, or copy it from the cache."""
        cached_folder = cache_root() / "servers" / _version(self._recipe)
        with suppress(OSError):  # a cache that cannot be written to fails later, in `_cache_data`
            hold_folder(cached_folder.parent)
        data_folder = self.folder / "data"
        try:
            if cached_folder.is_dir():
                shutil.copytree(cached_folder, data_folder, symlinks=True)
                return
            self._change_owner()
            self._run(self._recipe.initialise(self.folder))
            _cache_data(data_folder, cached_folder)
        except OSError as error:
            if isinstance(error, InterCodeError):
                raise
            raise DatabaseError(
                f"cannot store the data of {self.product} in {cached_folder.parent} and "
                f"{self.folder}: {error}; set INTERCODE_CACHE and TMPDIR to folders that you may "
                "write, on a disk with room"
            ) from error

    def _change_owner(self) -> None:
        """Make the user as which the server runs the owner of the folder."""
        uid, gid = _user(self._recipe)
        if uid == os.geteuid():
            return
        try:
            os.chown(self.folder, uid, gid)
            for parent, folders, files in os.walk(self.folder):
                for name in (*folders, *files):
                    os.chown(Path(parent, name), uid, gid, follow_symlinks=False)
        except OSError as error:  # in a user namespace, root may be the only user
            raise DatabaseError(
                f"cannot give {self.folder} to user {uid}, who runs {self.product}: "
                f"{error.strerror}; name a running server: --engine URL"
            ) from error

    def _run(self, command: Sequence[str]) -> None:
        uid, gid = _user(self._recipe)
        has_other_user = uid != os.geteuid()
        env = {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
        try:
            result = subprocess.run(
                command,
                cwd=self.folder,
                env=env,
                capture_output=True,
                check=False,
                user=uid if has_other_user else None,
                group=gid if has_other_user else None,
                extra_groups=[] if has_other_user else None,
            )
        except OSError as error:
            raise DatabaseError(
                f"{self.product}: its data folder cannot be created: {command[0]} cannot run: "
                f"{error.strerror}"
            ) from error
        if result.returncode != 0:
            output_text = (result.stdout + result.stderr).decode(errors="replace")[
                -_LOG_TAIL_BYTES:
            ]
            raise DatabaseError(
                f"{self.product}: its data folder cannot be created:\n{output_text}"
            )

    def _start(self) -> None:
        uid, gid = _user(self._recipe)
        # This process opens the log itself. If the server ends while it starts, the supervisor
        # removes the folder with the log.
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
                    log_bytes = os.pread(log, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
                    log_tail = log_bytes.decode(errors="replace").strip()
                    raise DatabaseError(
                        f"{self.product} did not start ({error}); its log ends:\n{log_tail}"
                    ) from None
            time.sleep(0.01)


def start_mariadb() -> PrivateDatabaseServer:
    """Start a private MariaDB, or MySQL if only MySQL is installed; the caller closes it.

    The attribute ``connect_args`` holds arguments of ``pymysql.connect``. The configuration is that
    of the 2023 release: table names are in lower case, text is ``utf8mb4_general_ci``, and
    ``ONLY_FULL_GROUP_BY`` is off.

    Raises:
        UsageError: Neither MariaDB nor MySQL is installed, or the driver is not.
        DatabaseError: The server did not start.
    """
    return PrivateDatabaseServer(mysql_recipe())


def start_postgresql() -> PrivateDatabaseServer:
    """Start a private PostgreSQL; the caller closes it.

    The attribute ``connect_args`` holds arguments of ``psycopg.connect``.

    Raises:
        UsageError: PostgreSQL or its driver is not installed.
        DatabaseError: The server did not start.
    """
    return PrivateDatabaseServer(postgresql_recipe())


def _user(recipe: DatabaseServerRecipe) -> tuple[int, int]:
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
    """Remove the folders of servers whose owner process and supervisor were both killed."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for folder in parent.glob(f"{_PREFIX}*"):
            if folder.is_dir() and is_gone(folder.name.removeprefix(_PREFIX)):
                with suppress(OSError):  # another user owns the folder
                    remove_tree(folder)


def _version(recipe: DatabaseServerRecipe) -> str:
    """Return a name for the cached data folder of a server.

    The name depends on the server's version and on the command that creates the folder.
    """
    result = subprocess.run([recipe.binary, "--version"], capture_output=True, check=False)
    command = "\0".join(recipe.initialise(Path("/"))).encode()
    return f"{recipe.product}-{hashlib.blake2b(result.stdout + command, digest_size=8).hexdigest()}"


def _cache_data(data_folder: Path, cached_folder: Path) -> None:
    """Copy an initialised data folder into the cache; an incomplete copy never appears there."""
    cached_folder.parent.mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(dir=cached_folder.parent, prefix=f"{cached_folder.name}.tmp-"))
    try:
        shutil.copytree(data_folder, copy / "data", symlinks=True)
        (copy / "data").rename(cached_folder)
    except OSError:
        if not cached_folder.is_dir():  # if it exists, another process was faster
            raise
    finally:
        remove_tree(copy)


def find_binary(names: Sequence[str], folders: Sequence[str], package: str) -> Path:
    """Return the path of a server's binary. Packages often install it outside of ``PATH``.

    Args:
        names: Possible names of the binary, the preferred name first.
        folders: Folders to search before those of ``PATH``.
        package: The package that contains the binary, for the error message.

    Raises:
        UsageError: No such binary is installed.
    """
    path = os.pathsep.join((*folders, os.environ.get("PATH", os.defpath)))
    for name in names:
        if binary_path := shutil.which(name, path=path):
            return Path(binary_path)
    raise UsageError(
        f"no {' or '.join(names)} is installed: `apt-get install {package}`, "
        "or give the URL of a server"
    )


def mysql_recipe() -> DatabaseServerRecipe:
    """Return the recipe of MariaDB, or of MySQL if only MySQL is installed.

    Raises:
        UsageError: Neither MariaDB nor MySQL is installed.
    """
    binary = find_binary(("mariadbd", "mysqld"), _MYSQL_FOLDERS, "mariadb-server")
    is_mariadb = "mariadb" in binary.resolve().name
    return DatabaseServerRecipe(
        product="mariadb" if is_mariadb else "mysql",
        binary=binary,
        users=("mysql",),
        memory=0,
        ending=signal.SIGKILL,  # a shutdown takes long, and a kill leaves nothing in the kernel
        initialise=_initialise_mariadb if is_mariadb else partial(_initialise_mysql, binary),
        command=partial(_serve_mysql, binary, _MARIADB_ONLY if is_mariadb else _MYSQL_ONLY),
        prepare=_prepare_mysql,
        connect_args=_mysql_connect_args,
        probe=_probe_mysql,
    )


def _initialise_mariadb(folder: Path) -> Sequence[str]:
    binary = find_binary(
        ("mariadb-install-db", "mysql_install_db"), _MYSQL_FOLDERS, "mariadb-server"
    )
    return (
        *(str(binary), "--no-defaults", f"--datadir={folder / 'data'}"),
        *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        *(_CASE, "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=0"),
        "--skip-innodb-doublewrite",
    )


def _initialise_mysql(binary: Path, folder: Path) -> Sequence[str]:
    data_option = f"--datadir={folder / 'data'}"
    return (str(binary), "--no-defaults", "--initialize-insecure", data_option, _CASE)


def _serve_mysql(binary: Path, product: Sequence[str], folder: Path) -> Sequence[str]:
    return (
        *(str(binary), "--no-defaults", *_MYSQL_SERVE, *product),
        f"--datadir={folder / 'data'}",
        f"--socket={folder / 'socket'}",
        f"--pid-file={folder / 'pid'}",
        f"--tmpdir={folder / 'tmp'}",
        f"--secure-file-priv={folder / 'nothing'}",
        f"--init-file={folder / 'init.sql'}",
    )


def _prepare_mysql(folder: Path, password: str) -> None:
    (folder / "tmp").mkdir()
    (folder / "nothing").mkdir()
    (folder / "init.sql").write_text(
        f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n"
        "DROP USER IF EXISTS ''@'localhost';\n",
        encoding="ascii",
    )


def _mysql_connect_args(folder: Path, password: str) -> dict[str, Any]:
    return {
        "unix_socket": str(folder / "socket"),
        "user": "root",
        "password": password,
        "ssl_disabled": True,  # TLS on a socket adds no security, and costs 20 ms a connection
    }


def _probe_mysql(connect_args: Mapping[str, Any]) -> None:
    from intercode.databases.servers.mysql_client import MySQLConnection
    from intercode.databases.servers.session import UnreachableDatabaseServer

    try:
        MySQLConnection(connect_args).close()
    except UnreachableDatabaseServer as error:
        raise ConnectionError(str(error)) from None


def postgresql_recipe() -> DatabaseServerRecipe:
    """Return the recipe of the newest installed PostgreSQL.

    Raises:
        UsageError: PostgreSQL or its driver is not installed.
    """
    folders = [
        str(path) for path in sorted(_DEBIAN.glob("*/bin"), key=_major_version, reverse=True)
    ]
    binary = find_binary(("postgres",), folders, "postgresql")
    driver("PostgreSQL")
    return DatabaseServerRecipe(
        product="postgresql",
        binary=binary,
        users=("postgres",),
        memory=512 << 20,
        ending=signal.SIGQUIT,  # ends at once, but frees the server's shared memory
        initialise=partial(_initialise_postgresql, binary.with_name("initdb")),
        command=partial(_serve_postgresql, binary),
        prepare=_prepare_postgresql,
        connect_args=_postgresql_connect_args,
        probe=_probe_postgresql,
    )


def _major_version(path: Path) -> int:
    match = re.match(r"\d+", path.parent.name)
    return int(match[0]) if match else 0


def _initialise_postgresql(initdb: Path, folder: Path) -> Sequence[str]:
    return (
        *(str(initdb), "--pgdata", str(folder / "data"), "--username", _ADMINISTRATOR),
        *("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
    )


def _serve_postgresql(binary: Path, folder: Path) -> Sequence[str]:
    settings = {
        **_POSTGRESQL_SETTINGS,
        "unix_socket_directories": str(folder),
        "hba_file": str(folder / "hba.conf"),
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    return (str(binary), "-D", str(folder / "data"), *options)


def _prepare_postgresql(folder: Path, password: str) -> None:
    # No other user may enter the folder. The SQL of an agent cannot open a connection from the
    # server to anything. A password would add no security, and costs 5 ms for each connection.
    (folder / "hba.conf").write_text(
        f"local all {_ADMINISTRATOR} trust\nlocal sameuser all trust\n", encoding="ascii"
    )


def _postgresql_connect_args(folder: Path, password: str) -> dict[str, Any]:
    return {"host": str(folder), "user": _ADMINISTRATOR, "dbname": "postgres"}


def _probe_postgresql(connect_args: Mapping[str, Any]) -> None:
    psycopg = driver("PostgreSQL")
    try:
        psycopg.connect(**connect_args).close()
    except psycopg.OperationalError as error:
        raise ConnectionError(str(error)) from None


RECIPES: dict[str, Callable[[], DatabaseServerRecipe]] = {
    "mysql": mysql_recipe,
    "postgresql": postgresql_recipe,
}
"""Name of the engine → function that returns the recipe of its private server."""
