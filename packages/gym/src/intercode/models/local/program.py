"""The program that serves a model: llama.cpp's server, from the package ``xllamacpp``.

It is run by its path, so that it loads nothing of ours. Its first line of standard input has its
options as JSON; it answers with its address, as a line of standard output, or ends.
The end of standard input, as when its parent is killed, ends it, too.
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
    """Serve until standard input ends."""
    options = json.loads(_first_line())
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # llama.cpp's own lines belong to the log
    watch = threading.Thread(target=exit_with_parent, args=(options["log"],), daemon=True)
    watch.start()  # before the weights are loaded, which takes seconds
    server = start(options)
    print(server.listening_address, file=answer, flush=True)
    watch.join()


def _first_line() -> bytes:
    """Read a line and not a byte more: `exit_with_parent` reads on, without a buffer."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line


def exit_with_parent(log: str) -> None:
    """End this process when standard input ends, without its log: nothing failed."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    with contextlib.suppress(OSError):
        Path(log).unlink()
    os._exit(0)  # without llama.cpp's own end, which waits for replies under way


def start(options: dict[str, Any]) -> Any:
    """Load the weights and begin to listen."""
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
        cpu.poll = 0  # threads that wait sleep: sandboxes use the same cores
    params.cache_ram_mib = options["cache_mib"]
    params.cors_origins = ""
    params.endpoint_slots = False  # they show the dialogues of others
    params.offline = True
    params.ui = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
