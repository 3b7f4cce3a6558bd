"""How a private PostgreSQL is started."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from intercode.databases.servers.private import Recipe, find_binary
from intercode.errors import UsageError

ADMINISTRATOR = "intercode"
_DEBIAN = Path("/usr/lib/postgresql")
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "600",
    "shared_buffers": "128MB",
    "temp_file_limit": "1GB",
    "max_prepared_transactions": "0",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Speed: what is here can be made again, so nothing waits for a disk.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "1h",
    # What a query reads, and in which order, is the same in every run.
    "autovacuum": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "jit": "off",
}


def recipe() -> Recipe:
    """The recipe for the newest version that is installed.

    Raises:
        UsageError: None is installed, or the driver is not.
    """
    folders = [str(path) for path in sorted(_DEBIAN.glob("*/bin"), key=_major, reverse=True)]
    binary = find_binary(("postgres",), folders, "postgresql")
    driver()
    return Recipe(
        product="postgresql",
        binary=binary,
        users=("postgres",),
        memory=512 << 20,
        ending=signal.SIGQUIT,  # at once, but gives back its shared memory
        initialise=partial(_initialise, binary.with_name("initdb")),
        command=partial(_command, binary),
        prepare=_prepare,
        connect_args=_connect_args,
        probe=_probe,
    )


def driver() -> Any:
    """The module `psycopg`.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise UsageError(
            "PostgreSQL needs a driver: pip install 'intercode-gym[postgresql]'"
        ) from None
    return psycopg


def _major(path: Path) -> int:
    found = re.match(r"\d+", path.parent.name)
    return int(found[0]) if found else 0


def _initialise(initdb: Path, folder: Path) -> Sequence[str]:
    return (
        *(str(initdb), "--pgdata", str(folder / "data"), "--username", ADMINISTRATOR),
        *("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
    )


def _command(binary: Path, folder: Path) -> Sequence[str]:
    settings = {
        **_SETTINGS,
        "unix_socket_directories": str(folder),
        "hba_file": str(folder / "hba.conf"),
    }
    options = [f"--{name}={value}" for name, value in settings.items()]
    return (str(binary), "-D", str(folder / "data"), *options)


def _prepare(folder: Path, password: str) -> None:
    # Nobody but us may enter the folder, and who works in a database of ours cannot connect from
    # there to anywhere: a password would defend nothing, and costs 5 ms for each connection.
    (folder / "hba.conf").write_text(
        f"local all {ADMINISTRATOR} trust\nlocal sameuser all trust\n", encoding="ascii"
    )


def _connect_args(folder: Path, password: str) -> dict[str, Any]:
    return {"host": str(folder), "user": ADMINISTRATOR, "dbname": "postgres"}


def _probe(connect_args: Mapping[str, Any]) -> None:
    psycopg = driver()
    try:
        psycopg.connect(**connect_args).close()
    except psycopg.OperationalError as error:
        raise ConnectionError(str(error)) from None
