"""The program of a model server: llama.cpp's server, from the package ``xllamacpp``.

InterCode runs this file by its path in a child process, so the process imports nothing of
InterCode. The first line of standard input holds the options as JSON. The program then writes the
server's address as a line to standard output, or exits after a failure. The program also ends at
the end of standard input, for example when InterCode's process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve requests until standard input ends."""
    options = json.loads(_first_line())
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # llama.cpp's own output goes to the log
    watchdog_thread = threading.Thread(target=exit_with_parent, args=(options["log"],), daemon=True)
    # The watchdog starts before the weights are loaded, because loading takes seconds.
    watchdog_thread.start()
    server = start(options)
    print(server.listening_address, file=answer, flush=True)
    watchdog_thread.join()


def _first_line() -> bytes:
    """Read the first line of standard input byte by byte.

    A buffered read might consume input that `exit_with_parent` waits for.
    """
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line


def exit_with_parent(log: str) -> None:
    """Wait for the end of standard input, then remove the log and exit the process.

    Args:
        log: The path of the server's log, which has no use after an exit without a failure.
    """
    while os.read(sys.stdin.fileno(), 1024):
        pass
    with contextlib.suppress(OSError):
        Path(log).unlink()
    os._exit(0)  # llama.cpp's own shutdown would wait for running replies


def start(options: dict[str, Any]) -> Any:
    """Load the weights, start the server and return it.

    Args:
        options: ``model`` (path), ``alias`` (the model's name), ``port``, ``key``, ``slots``
            (concurrent dialogues), ``context`` (tokens per dialogue), ``threads`` and
            ``cache_mib`` (MiB for waiting dialogues).
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.api_keys = [options["key"]]
    params.n_parallel = options["slots"]
    params.n_ctx = options["slots"] * options["context"]
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = options["threads"]
        cpu.poll = 0  # waiting threads sleep, because sandboxes use the same cores
    params.cache_ram_mib = options["cache_mib"]
    params.cors_origins = ""
    params.endpoint_slots = False  # the endpoint would expose dialogues of other callers
    params.offline = True
    params.ui = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
