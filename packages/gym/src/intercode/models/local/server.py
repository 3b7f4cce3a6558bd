"""Servers of local models: child processes that run llama.cpp's server, one for each model file.

A server listens on the loopback interface, at a requested or a free port, and requires a key. In
one InterCode process, all clients of a model file and a port share a server (`acquire_server`). The
child process runs `intercode.models.local.program`. A server ends when its standard input ends,
even if InterCode's process was killed.

llama.cpp reads the weights outside any sandbox. The server process receives only the environment
variables that this module lists, without keys such as ``OPENAI_API_KEY``. The process has all
privileges of its user. A model file of unknown origin therefore needs the same caution as a program
of unknown origin.
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
from intercode.models.local.store import ModelWeightsFile, folder
from intercode.secrets import is_secret_name
from intercode_sandbox.units import MIB

MOST_SLOTS = 16
"""Maximum number of slots, which are concurrent dialogues. More slots give no more speed, because
the machine's cores limit the speed."""
MOST_CONTEXT = 32_768
"""Maximum tokens of a dialogue, used if all dialogues fit into a quarter of the free memory. The
maximum is large, because the first prompts of external agents have 10,000 tokens."""
CONTEXT = 8192
"""Tokens of a dialogue, if the model's file states no length. Scarce memory halves longer dialogues
to at most this length; then it reduces the number of dialogues to one; then it halves the length
again."""
LEAST_CONTEXT = 2048
"""Tokens of a dialogue at which scarce memory reduces the length no further. A shorter context
holds no dialogue of several turns."""
BUFFERS = 512 * MIB
"""Bytes that llama.cpp needs in addition to the weights and the key-value cache. For example, with
Qwen2.5's vocabulary the logits of a batch of 512 tokens need 300 MiB."""
MOST_PROMPT_CACHE = 2048 * MIB
"""Maximum bytes for dialogues that wait for their next turn while others occupy the slots."""
_PROGRAM = Path(__file__).with_name("program.py")
_PACKAGE = "xllamacpp"
_ERROR = re.compile(r"^(?:[\d.]+ E (?:\w{3,4} +)?|(?=\w+Error: ))(.*\S)", re.MULTILINE)
"""A line of the log with an error of llama.cpp, or the last line of a Python traceback."""
_LAST_LINES = 3
"""Maximum number of the log's errors that a message quotes."""
_NO_PORT = "couldn't bind"
"""The text of llama.cpp's log if another process uses the port."""
_CLOSE_SECONDS = 5.0
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_ENVIRONMENTS = ("LC_", "PYTHON", "GGML_", "LLAMA_", "OMP_", "CUDA_", "HIP_", "ROCR_", "VK_")
"""Names and prefixes of the environment variables that the server process receives: the variables
that configure the process, Python, llama.cpp and its drivers, without secrets."""


@dataclass(frozen=True, slots=True)
class ModelServerOptions:
    """The resources of a server."""

    slots: int
    """The number of concurrent dialogues."""
    context: int
    """The maximum tokens of each dialogue."""
    threads: int
    cache_mib: int
    """The memory in MiB for dialogues that wait for their next turn."""


def available_memory() -> int:
    """Return the bytes available to a new process, within the cgroup's limit."""
    table = Path("/proc/meminfo").read_text(encoding="ascii").split("\n")
    lines = (line.split() for line in table if line)
    free_bytes = 1024 * next(int(line[1]) for line in lines if line[0] == "MemAvailable:")
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        # The file is missing if the machine uses the other cgroup version. The file contains "max"
        # if the cgroup has no limit.
        with suppress(OSError, ValueError):
            root = Path("/sys/fs/cgroup")
            limit_bytes, used_bytes = (
                int((root / name).read_text("ascii")) for name in (limit, usage)
            )
            free_bytes = min(free_bytes, limit_bytes - used_bytes)
    return free_bytes


def plan_server(name: str, weights: ModelWeightsFile, calls: int) -> ModelServerOptions:
    """Return a server's resources for this machine's cores and free memory.

    Args:
        name: The model's name, for messages.
        weights: The model's file.
        calls: The number of concurrent calls to expect.

    Raises:
        UsageError: The free memory is too small.
    """
    memory = available_memory() - weights.size - BUFFERS
    context = min(MOST_CONTEXT, weights.header.context or CONTEXT)
    slot_count = max(1, min(calls, MOST_SLOTS))
    while context > CONTEXT and weights.header.cache_bytes(slot_count * context) > memory // 4:
        context = max(context // 2, CONTEXT)
    while slot_count > 1 and weights.header.cache_bytes(slot_count * context) > memory // 2:
        # Half of the free memory remains for sandboxes and other processes.
        slot_count -= 1
    while context > LEAST_CONTEXT and weights.header.cache_bytes(slot_count * context) > memory:
        context = max(context // 2, LEAST_CONTEXT)
    if (required_memory := weights.header.cache_bytes(slot_count * context)) > memory:
        required_memory += weights.size + BUFFERS
        raise UsageError(
            f"local/{name} needs {required_memory / 1e9:.1f} GB of memory, and "
            f"{max(0, memory + weights.size + BUFFERS) / 1e9:.1f} GB are free: "
            "choose a smaller model ('intercode models list')"
        )
    spare_memory = min(MOST_PROMPT_CACHE, (memory - required_memory) // 4)
    return ModelServerOptions(
        slot_count, context, len(os.sched_getaffinity(0)), spare_memory // MIB
    )


def check_package() -> None:
    """Refuse to continue without the package of llama.cpp's server.

    Raises:
        UsageError: The package is not installed.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise UsageError(
            f"models of this machine need the package {_PACKAGE!r}: "
            "pip install 'intercode-gym[local]'"
        )


class LocalModelServer:
    """A running model server, started by the constructor.

    Args:
        name: The model's name.
        weights: The model's file.
        options: The server's resources.
        port: The server's port; 0: a free port.

    Raises:
        ModelAccessError: The server cannot be started. The message contains the path of its log,
            or the port if another process uses the port.
    """

    def __init__(
        self, name: str, weights: ModelWeightsFile, options: ModelServerOptions, port: int = 0
    ) -> None:
        self.name = name
        self.key = secrets.token_urlsafe(32)
        """The key that each request must contain, because every user of this machine can reach the
        loopback interface."""
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
                # Ctrl-C in the terminal must not reach the server: after the first Ctrl-C, a run
                # still waits for running replies.
                start_new_session=True,
            )
        _servers.add(self)
        model = {"model": str(weights.path), "alias": name, "log": str(self.log)}
        try:
            self.url = self._begin({**asdict(options), **model, "port": port, "key": self.key})
        except BaseException:
            self._end()
            raise

    def _begin(self, options: dict[str, Any]) -> str:
        """Send the options to the server program, and return the server's address.

        Raises:
            ModelAccessError: The program exited without writing an address.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # If the program has already exited, its log contains the reason, which is reported below.
        with suppress(BrokenPipeError):
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
        """Refuse to continue if the server process has ended.

        Raises:
            ModelAccessError: The server process has ended.
        """
        if self._process.poll() is not None:
            raise ModelAccessError(self._obituary())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def close(self) -> None:
        """End the server process and remove its log. Idempotent.

        If the process had already ended by itself, the log remains, because it has the reason.
        """
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
        """Close the pipes to the server in a forked child of InterCode's process.

        Otherwise the server would not see the end of its standard input when the process that
        started the server ends.
        """
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
        if name in _ENVIRONMENT or (name.startswith(_ENVIRONMENTS) and not is_secret_name(name))
    }


_servers: weakref.WeakSet[LocalModelServer] = weakref.WeakSet()


def _disown_all() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that exists only in the parent may hold the old lock
    for server in list(_servers):
        server.disown()
    _servers.clear()
    _shared_servers.clear()


os.register_at_fork(after_in_child=_disown_all)


@dataclass(slots=True)
class _SharedModelServer:
    server: LocalModelServer
    callers: int = 0


_shared_servers: dict[tuple[Path, int], _SharedModelServer] = {}
_lock = threading.Lock()


def is_running(weights: ModelWeightsFile, port: int = 0) -> bool:
    """Return whether this process has a shared server for a model file and a requested port."""
    return (weights.path, port) in _shared_servers


def acquire_server(
    name: str, weights: ModelWeightsFile, calls: int, port: int = 0
) -> tuple[LocalModelServer, Callable[[], None]]:
    """Return the server of a model file, which callers in this process share.

    The first call for a file and a port starts the server, and the last release ends the server.

    Args:
        name: The model's name.
        weights: The model's file.
        calls: The number of concurrent calls to expect, for a new server.
        port: The server's port; 0: a free port.

    Returns:
        The server, and a function without arguments that releases the server. The function is
        idempotent.

    Raises:
        UsageError: The free memory is too small.
        ModelAccessError: The server cannot be started.
    """
    key = weights.path, port
    with _lock:
        shared_server = _shared_servers.get(key)
        if shared_server is None:
            options = plan_server(name, weights, calls)
            shared_server = _shared_servers[key] = _SharedModelServer(
                LocalModelServer(name, weights, options, port)
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
