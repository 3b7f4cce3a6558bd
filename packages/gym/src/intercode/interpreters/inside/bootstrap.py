"""Start of a forked worker: a fork of a sandbox's process 1 becomes an ordinary Python process.

The process that starts sandboxes (the spawner) imports this module before it enters any sandbox,
while the host's files are readable. The standard library is read at that time.
"""

from __future__ import annotations

import importlib
import json
import os
import site
import socket
import struct
import sys
import warnings
from typing import Any

from intercode.interpreters.inside.library import StdlibMemoryLoader, extensions
from intercode.interpreters.inside.wire import HostChannel

_COMMON = """
abc argparse ast base64 bisect calendar cmath collections contextlib copy csv dataclasses datetime
decimal enum fractions functools glob hashlib heapq inspect io itertools json keyword linecache math
operator os pathlib pickle pprint queue random re secrets shutil signal statistics string struct
subprocess sys tempfile textwrap threading time timeit tokenize traceback types typing unicodedata
unittest unittest.mock urllib.parse uuid warnings weakref xml.etree.ElementTree zlib zoneinfo
"""
"""Modules that every worker has loaded, so their import in an action takes no time."""
_fork_callbacks: list[dict[str, Any]] = []
"""Callbacks that these modules register for forks.

An action that forks needs these callbacks. The fork that creates a worker does not: the forking
process has only one thread. After that fork, only new random numbers are needed, and the new kernel
id of that thread, because Python still has the host's.
"""


def _load() -> StdlibMemoryLoader:
    library = StdlibMemoryLoader()
    sys.meta_path.insert(0, library)
    register = os.register_at_fork
    vars(os)["register_at_fork"] = lambda **calls: _fork_callbacks.append(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*extensions(), *_COMMON.split()]:
            try:
                importlib.import_module(name)
            except ImportError:  # this Python was built without the module
                continue
    vars(os)["register_at_fork"] = register
    sys.meta_path.remove(library)
    for name, module in sys.modules.items():
        if library.find_spec(name) is not None and module.__spec__ is not None:
            module.__loader__ = module.__spec__.loader = library  # the library holds the source
    return library


_library = _load()
import random  # noqa: E402 - not before `_load`, which records the callbacks of both modules
import threading  # noqa: E402


def main(sock: socket.socket) -> None:
    """Turn this process into an ordinary Python, and serve as the requested worker.

    The socket delivers three pipes, for output, requests and responses. The pipes then replace the
    socket. The first message names the worker's module. The same message has ``env`` and ``cwd`` of
    the sandbox's programs, and the output limit.

    Args:
        sock: The socket to the host.
    """
    _, fds, _, _ = socket.recv_fds(sock, 1, 3, socket.MSG_CMSG_CLOEXEC)
    output_fd, read, write = fds
    start = json.loads(_read_exactly(read, *struct.unpack("=I", _read_exactly(read, 4))))
    for calls in _fork_callbacks:
        os.register_at_fork(**calls)
    random.seed()
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()
    for name in [*os.environ]:
        del os.environ[name]
    for name, value in start["env"].items():
        os.environ[name] = value
    try:
        os.chdir(start["cwd"])
    except OSError:
        os.chdir("/")
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    worker = sys.modules[start["worker"]]
    _settle()
    sock.close()
    worker.serve(HostChannel(read, write), output_fd, start["limit"])


def _read_exactly(fd: int, count: int) -> bytes:
    content = b""
    while len(content) < count:
        content += (chunk := os.read(fd, count - len(content)))
        if not chunk:
            raise EOFError
    return content


def _settle() -> None:
    """Replace the spawner's settings of Python by those of an ordinary Python."""
    sys.setrecursionlimit(1000)
    sys.argv = [""]
    sys.path = [""]
    if _library not in sys.meta_path:
        sys.meta_path.append(_library)
    sys.dont_write_bytecode = True
    program = "/usr/bin/python3"
    sys.executable = program if os.access(program, os.X_OK) else ""
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = "/usr"
    for package in ("intercode", "intercode_sandbox"):
        del sys.modules[package]  # so none of their modules can be imported
    site.setquit()
    site.sethelper()
