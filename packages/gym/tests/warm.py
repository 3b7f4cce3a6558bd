"""Start commands of InterCode from a process that has imported it: a start costs 0.02 s, not 1 s.

``Warm`` is a server that forks for each command. A command is then a process as any other: it has
the folder, environment, streams and arguments of the program that asked, and ends as Python ends.
``Warm.folder`` has that program under the names ``intercode`` and ``python``, for a ``PATH``.

SIGINT and SIGTERM are passed on to it. What a start imports, and how a terminal finds a command, is
not tested by this: such a test starts Python itself.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

CHANNEL = "INTERCODE_TEST_WARM"
"""The variable that has the number of the descriptor on which commands are asked for."""
CLIENT = f"""#!{{python}} -IS
import _signal, _socket, marshal, os, struct, sys
words, name = sys.argv[1:], os.path.basename(sys.argv[0])
real = os.path.dirname("{{python}}") + "/" + name
within = "{CHANNEL}" not in os.environ  # started by a command that is warm itself
if within or name == "python" and (not words or words[0] != "-m" and words[0].startswith("-")):
    os.execv(real, [real, *words])
environment = dict(os.environ)
channel = _socket.socket(fileno=int(environment.pop("{CHANNEL}")))
mine, other = _socket.socketpair()
request = marshal.dumps((os.getcwd(), words if name == "python" else [real, *words], environment))
sent = struct.pack("4i", 0, 1, 2, other.fileno())
channel.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])
other.close()
pid = int.from_bytes(mine.recv(4), sys.byteorder) or os._exit(125)
for number in (_signal.SIGINT, _signal.SIGTERM):
    _signal.signal(number, lambda number, frame: os.kill(pid, number))
answer = mine.recv(4)
os._exit(struct.unpack("i", answer)[0] & 255 if answer else 125)
"""
LARGEST = 1 << 20


class Warm:
    """A server, and the folder of its clients; both end with the context.

    Args:
        python: The interpreter of the environment whose commands are started.
    """

    def __init__(self, python: Path = Path(sys.executable)) -> None:
        self.python = python

    def __enter__(self) -> Warm:
        self._folder = tempfile.TemporaryDirectory(prefix="intercode-warm-")
        self.folder = Path(self._folder.name)
        for name in ("intercode", "python"):
            (self.folder / name).write_text(CLIENT.format(python=self.python))
            (self.folder / name).chmod(0o755)
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._server = subprocess.Popen(
                [str(self.python), __file__, str(other.fileno())],
                pass_fds=[other.fileno()],
                # Threads of a library would not survive a fork.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._server.wait()
        self._folder.cleanup()

    def run(
        self, argv: list[str], *, env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python …``, or a program that runs ours, as ``subprocess.run`` does.

        A variable that Python reads when it starts makes it start.
        """
        given = {**os.environ, **(env or {})}
        bin_folder = self.python.parent
        number = self._channel.fileno()
        if argv[0] == "python":
            early = any(name.startswith(("PYTHON", "LC_", "LANG")) for name in env or {})
            argv = [str((bin_folder if early else self.folder) / "python"), *argv[1:]]
        else:
            given["PATH"] = f"{self.folder}:{bin_folder}:{given['PATH']}"
        return subprocess.run(
            argv, pass_fds=[number], env={**given, CHANNEL: str(number)}, text=True, **options
        )


class Command(NamedTuple):
    """A command that runs."""

    pid: int
    reply: socket.socket


def serve(channel: socket.socket) -> None:
    """Fork for each request, until nobody is left who could send one."""
    running: dict[int, Command] = {}
    while True:
        replies = [command.reply for command in running.values()]
        ready, _, _ = select.select([channel, *running, *replies], [], [])
        for descriptor, command in list(running.items()):
            if command.reply in ready:  # nothing is sent on it, so its client has ended
                os.kill(command.pid, signal.SIGKILL)
            if descriptor in ready or command.reply in ready:
                _, status = os.waitpid(command.pid, 0)
                code = os.waitstatus_to_exitcode(status)
                tell(command.reply, code if code >= 0 else 128 - code)
                os.close(descriptor)
                del running[descriptor]
        if channel in ready:
            request, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 4)
            if not request:
                break
            if not (pid := os.fork()):
                for descriptor, command in running.items():
                    os.close(descriptor)
                    command.reply.close()
                channel.close()
                become(request, descriptors)
            reply = socket.socket(fileno=descriptors.pop())
            with suppress(BrokenPipeError):
                reply.send(pid.to_bytes(4, sys.byteorder))
            running[os.pidfd_open(pid)] = Command(pid, reply)
            for descriptor in descriptors:
                os.close(descriptor)
    for command in running.values():
        os.kill(command.pid, signal.SIGKILL)


def tell(reply: socket.socket, code: int) -> None:
    """Send the exit code to the client, if it is still there."""
    with reply, suppress(BrokenPipeError):
        reply.send(code.to_bytes(4, sys.byteorder))


def become(request: bytes, descriptors: list[int]) -> NoReturn:
    """Be the process that was asked for."""
    folder, words, environment = marshal.loads(request)
    for number, descriptor in enumerate(descriptors):
        if number < 3:
            os.dup2(descriptor, number)
        os.close(descriptor)
    coding = sys.stdout.encoding
    sys.stdin = open(0, encoding=coding, closefd=False)
    sys.stdout = open(1, "w", encoding=coding, closefd=False)
    sys.stderr = open(2, "w", 1, encoding=coding, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    sys.exit()


def prepare() -> None:
    """Import what commands import."""
    from intercode.cli.main import COMMANDS
    from intercode.registry import ENVS

    for name in COMMANDS.names(packages=False):
        COMMANDS.get(name)
        importlib.import_module(f"intercode.cli.{name}")
    for name in ENVS.names(packages=False):
        ENVS.get(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    prepare()
    serve(socket.socket(fileno=int(sys.argv[1])))
