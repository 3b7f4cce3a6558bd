"""Servers of local models: llama.cpp's own, each in a process of its own that ends with ours.

A server listens on the loopback, at a port that the system chooses, for callers with its key.
Within a process there is one server of a file, shared by all of its callers (`acquire_server`). It
ends at the end of its standard input, which a kill of its parent brings about, too; its program is
`intercode.models.local.program`.

The weights are read by llama.cpp, outside of any sandbox: its process gets no keys of the
environment, but can do what its user can. A file of unknown origin deserves the care that a program
of unknown origin does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intercode.errors import ModelAccessError, UsageError
from intercode.models.local.store import Weights, folder
from intercode_sandbox.units import MIB

MOST_SLOTS = 16
"""Dialogues that are answered at a time, at most: cores, not slots, limit a machine."""
MOST_CONTEXT = 32_768
"""Tokens of a dialogue where a quarter of the memory that is free holds them: programs of others
begin with 10,000."""
CONTEXT = 8192
"""Tokens of a dialogue before fewer are answered at a time."""
LEAST_CONTEXT = 2048
"""Tokens below which a dialogue of several turns makes no sense."""
BUFFERS = 512 * MIB
"""Bytes for all but weights and key-value cache: for Qwen2.5's vocabulary llama.cpp takes 300 MiB
for the logits of a batch of 512 tokens."""
MOST_PROMPT_CACHE = 2048 * MIB
"""Bytes for dialogues that wait for their next turn while others have the slots, at most."""
_PROGRAM = Path(__file__).with_name("program.py")
_PACKAGE = "xllamacpp"
_ERROR = re.compile(r"^(?:[\d.]+ E (?:\w{3,4} +)?|(?=\w+Error: ))(.*\S)", re.MULTILINE)
"""A line of the log that tells of an error: llama.cpp's, or the last one of Python's."""
_LAST_LINES = 3
"""Errors of a log that a message quotes."""
_NO_PORT = "couldn't bind"
"""The words of llama.cpp's log for a port that another process has."""
_CLOSE_SECONDS = 5.0
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_ENVIRONMENTS = ("LC_", "PYTHON", "GGML_", "LLAMA_", "OMP_", "CUDA_", "HIP_", "ROCR_", "VK_")
"""Variables, and beginnings of their names, that the process gets: no key of anything else."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The size of a server."""

    slots: int
    """Dialogues that are answered at a time."""
    context: int
    """Tokens of each of them."""
    threads: int
    cache_mib: int
    """MiB for dialogues that wait for their next turn."""


def available_memory() -> int:
    """Return the bytes that a new process may take: the machine's, within this cgroup's limit."""
    table = Path("/proc/meminfo").read_text(encoding="ascii").split("\n")
    lines = (line.split() for line in table if line)
    free_bytes = 1024 * next(int(line[1]) for line in lines if line[0] == "MemAvailable:")
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such hierarchy, or no limit ("max")
            root = Path("/sys/fs/cgroup")
            limit_bytes, used_bytes = (
                int((root / name).read_text("ascii")) for name in (limit, usage)
            )
            free_bytes = min(free_bytes, limit_bytes - used_bytes)
    return free_bytes


def plan_server(name: str, weights: Weights, calls: int) -> ServerOptions:
    """Choose a server's size by this machine's cores and memory.

    Args:
        name: The model's name, for messages.
        weights: The model's file.
        calls: Calls that are made at a time.

    Raises:
        UsageError: The memory that is free is too small.
    """
    memory = available_memory() - weights.size - BUFFERS
    context = min(MOST_CONTEXT, weights.header.context or CONTEXT)
    slots = max(1, min(calls, MOST_SLOTS))
    while context > CONTEXT and weights.header.cache_bytes(slots * context) > memory // 4:
        context //= 2
    while slots > 1 and weights.header.cache_bytes(slots * context) > memory // 2:
        slots -= 1  # half of the memory that is free is for sandboxes and others
    while context > LEAST_CONTEXT and weights.header.cache_bytes(slots * context) > memory:
        context //= 2
    if (required_memory := weights.header.cache_bytes(slots * context)) > memory:
        required_memory += weights.size + BUFFERS
        raise UsageError(
            f"local/{name} needs {required_memory / 1e9:.1f} GB of memory, and "
            f"{max(0, memory + weights.size + BUFFERS) / 1e9:.1f} GB are free: "
            "choose a smaller model ('intercode models list')"
        )
    spare = min(MOST_PROMPT_CACHE, (memory - required_memory) // 4)
    return ServerOptions(slots, context, len(os.sched_getaffinity(0)), spare // MIB)


def check_package() -> None:
    """Refuse to go on without llama.cpp's server.

    Raises:
        UsageError: The package is not installed.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise UsageError(
            f"models of this machine need the package {_PACKAGE!r}: "
            "pip install 'intercode-gym[local]'"
        )


class LocalServer:
    """A running server.

    Args:
        name: The model's name.
        weights: Its file.
        options: The server's size.
        port: Its port; 0: one that is free.

    Raises:
        ModelAccessError: It cannot be started; the message says where its log is.
    """

    def __init__(self, name: str, weights: Weights, options: ServerOptions, port: int = 0) -> None:
        self.name = name
        self.key = secrets.token_urlsafe(32)
        """The key of its callers: others on this machine reach the loopback, too."""
        logs = folder() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.log = logs / f"{Path(name).stem}-{stamp}-{secrets.token_hex(3)}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,  # an interrupt at the terminal is for us: replies go on
            )
        _servers.add(self)
        model = {"model": str(weights.path), "alias": name, "log": str(self.log)}
        try:
            self.url = self._begin({**asdict(options), **model, "port": port, "key": self.key})
        except BaseException:
            self._end()
            raise

    def _begin(self, options: dict[str, Any]) -> str:
        """Send the options, and wait for the address; the program's end ends the wait, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: its log tells why
            self._process.stdin.write(json.dumps(options).encode() + b"\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            self._process.wait()
            raise ModelAccessError(self._obituary(options["port"]))
        return line.decode().strip()

    def _obituary(self, port: int = 0) -> str:
        text = self.log.read_text("utf-8", "replace")
        if port and _NO_PORT in text:
            return f"local/{self.name}: port {port} is taken: choose another one by the base URL"
        reasons = "; ".join(_ERROR.findall(text)[-_LAST_LINES:])
        return (
            f"the server of local/{self.name} ended ({_ending(self._process.poll())})"
            f"{': ' if reasons else ''}{reasons} (its log: {self.log})"
        )

    def check(self) -> None:
        """Refuse to go on if the process has ended.

        Raises:
            ModelAccessError: It has.
        """
        if self._process.poll() is not None:
            raise ModelAccessError(self._obituary())

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def close(self) -> None:
        """End the process; its log stays only where it ended by itself. Idempotent."""
        if self._process.poll() is None:
            self._end()
            self.log.unlink(missing_ok=True)
        else:
            self._end()

    def _end(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def disown(self) -> None:
        """In a fork: let go of the pipes, so that the server ends with its own parent."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _ending(code: int | None) -> str:
    if code is None:
        return "no answer"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or name.startswith(_ENVIRONMENTS)
    }


_servers: weakref.WeakSet[LocalServer] = weakref.WeakSet()


def _disown_all() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not in the fork may hold it
    for server in list(_servers):
        server.disown()
    _servers.clear()
    _shared_servers.clear()


os.register_at_fork(after_in_child=_disown_all)


@dataclass(slots=True)
class _SharedServer:
    server: LocalServer
    callers: int = 0


_shared_servers: dict[tuple[Path, int], _SharedServer] = {}
_lock = threading.Lock()


def is_running(weights: Weights, port: int = 0) -> bool:
    """Tell whether this process has a server of a file."""
    return (weights.path, port) in _shared_servers


def acquire_server(
    name: str, weights: Weights, calls: int, port: int = 0
) -> tuple[LocalServer, Callable[[], None]]:
    """Return a file's server, started unless it runs, and the function that releases it.

    Args:
        name: The model's name.
        weights: Its file.
        calls: Calls that are made at a time, for a server that is started.
        port: The server's port; 0: one that is free.

    Raises:
        UsageError: The memory that is free is too small.
        ModelAccessError: The server cannot be started.
    """
    key = weights.path, port
    with _lock:
        shared_server = _shared_servers.get(key)
        if shared_server is None:
            options = plan_server(name, weights, calls)
            shared_server = _shared_servers[key] = _SharedServer(
                LocalServer(name, weights, options, port)
            )
        shared_server.callers += 1
    release_event = threading.Event()

    def release() -> None:
        with _lock:
            if release_event.is_set():
                return
            release_event.set()
            shared_server.callers -= 1
            if not shared_server.callers:
                _shared_servers.pop(key, None)
                shared_server.server.close()

    return shared_server.server, release
