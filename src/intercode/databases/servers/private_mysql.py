"""How a private MariaDB or MySQL is started."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from intercode.databases.servers.private import Recipe, find_binary
from intercode.errors import UsageError

_FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/mysql/bin")
_CASE = "--lower-case-table-names=1"
_SERVE = (
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
    # Speed: what is here can be made again, so nothing waits for a disk.
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-innodb-doublewrite",
    "--skip-innodb-stats-persistent",
    "--innodb-buffer-pool-size=96M",
    "--innodb-autoextend-increment=1",
)
_MARIADB = (
    "--innodb-log-file-size=32M",
    "--debug-no-sync",
    "--skip-sync-frm",
    # What one session may use, and cannot raise.
    "--max-session-mem-used=1G",
    "--maximum-max-session-mem-used=1G",
    "--maximum-max-heap-table-size=128M",
    "--tmp-disk-table-size=1G",
    "--maximum-tmp-disk-table-size=1G",
)
_MYSQL = (
    "--mysqlx=OFF",
    "--sql-mode=STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
)


def recipe() -> Recipe:
    """The recipe for what is installed; MariaDB where both are.

    Raises:
        UsageError: Neither is installed.
    """
    binary = find_binary(("mariadbd", "mysqld"), _FOLDERS, "mariadb-server")
    is_mariadb = "mariadb" in binary.resolve().name
    return Recipe(
        product="mariadb" if is_mariadb else "mysql",
        binary=binary,
        users=("mysql",),
        memory=0,
        ending=signal.SIGKILL,  # it leaves nothing in the kernel, and a shutdown takes long
        initialise=_initialise_mariadb if is_mariadb else partial(_initialise_mysql, binary),
        command=partial(_command, binary, _MARIADB if is_mariadb else _MYSQL),
        prepare=_prepare,
        connect_args=_connect_args,
        probe=_probe,
    )


def driver() -> Any:
    """The module `pymysql`.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import pymysql
    except ImportError:
        raise UsageError("MySQL needs a driver: pip install 'intercode-gym[mysql]'") from None
    return pymysql


def _initialise_mariadb(folder: Path) -> Sequence[str]:
    binary = find_binary(("mariadb-install-db", "mysql_install_db"), _FOLDERS, "mariadb-server")
    return (
        *(str(binary), "--no-defaults", f"--datadir={folder / 'data'}"),
        *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        *(_CASE, "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=0"),
        "--skip-innodb-doublewrite",
    )


def _initialise_mysql(binary: Path, folder: Path) -> Sequence[str]:
    data = f"--datadir={folder / 'data'}"
    return (str(binary), "--no-defaults", "--initialize-insecure", data, _CASE)


def _command(binary: Path, product: Sequence[str], folder: Path) -> Sequence[str]:
    return (
        *(str(binary), "--no-defaults", *_SERVE, *product),
        f"--datadir={folder / 'data'}",
        f"--socket={folder / 'socket'}",
        f"--pid-file={folder / 'pid'}",
        f"--tmpdir={folder / 'tmp'}",
        f"--secure-file-priv={folder / 'nothing'}",
        f"--init-file={folder / 'init.sql'}",
    )


def _prepare(folder: Path, password: str) -> None:
    (folder / "tmp").mkdir()
    (folder / "nothing").mkdir()
    (folder / "init.sql").write_text(
        f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n"
        "DROP USER IF EXISTS ''@'localhost';\n",
        encoding="ascii",
    )


def _connect_args(folder: Path, password: str) -> dict[str, Any]:
    return {
        "unix_socket": str(folder / "socket"),
        "user": "root",
        "password": password,
        "ssl_disabled": True,  # on a socket it secures nothing, and takes 20 ms for each connection
    }


def _probe(connect_args: Mapping[str, Any]) -> None:
    from intercode.databases.servers.mysql_client import MySQLConnection
    from intercode.databases.servers.session import Unreachable

    try:
        MySQLConnection(connect_args).close()
    except Unreachable as error:
        raise ConnectionError(str(error)) from None
