"""The spawner: a small single-threaded process that forks sandboxes for a large threaded one.

Forking the caller would copy its memory map and its locks, and a sandbox would die with the thread
that started it. The spawner owns a private mount namespace with the images' layers, makes each
sandbox's process 1, writes its id maps, keeps the cgroups, and goes, with all of its sandboxes,
when the caller's socket closes: that is what kill -9 of the caller leaves behind — nothing.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

from intercode.sandbox.native import cgroup, launch, layers, wire
from intercode.sandbox.native.syscalls import hide_arguments


class Spawner:
    """The event loop of the spawner."""

    def __init__(self, caller: socket.socket, name: str) -> None:
        self.caller = caller
        self.poll = select.poll()
        self.handshakes: dict[int, int] = {}
        self.cgroups = cgroup.Cgroups(name)
        self.live: dict[int, str] = {}
        self.leaving: list[str] = []
        self.count = 0
        root = layers.prepare_namespaces()
        self.machine = launch.Machine(root, launch.filter_program())
        self.layers = layers.Layers(root)
        self.wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the caller goes away; then end every sandbox and clean up."""
        # What is shared with every child should stay shared: no collector, no moved counts.
        gc.disable()
        gc.freeze()
        self.poll.register(self.caller, select.POLLIN)
        self.poll.register(self.wake_read, select.POLLIN)
        try:
            while True:
                for fd, _ in self.poll.poll(1000 if self.leaving else None):
                    if fd == self.wake_read:
                        with suppress(BlockingIOError):
                            os.read(self.wake_read, 4096)
                    elif fd == self.caller.fileno():
                        if not self.take_request():
                            return
                    else:
                        self.write_id_maps(fd)
                self.reap()
        finally:
            self.close()

    def take_request(self) -> bool:
        """Start a sandbox, or say why not on the sandbox's own socket. False: the caller left."""
        try:
            spec, fds = wire.receive(self.caller)
        except (EOFError, OSError):
            return False
        if not fds:
            wire.send(self.caller, self.facts())
            return True
        with socket.socket(fileno=fds[0]) as control:
            try:
                self.start(spec, control)
            except OSError as error:
                report(control, error)
        return True

    def facts(self) -> dict[str, Any]:
        """What the run's record and `doctor` want to know."""
        return {
            "root": self.machine.root,
            "cgroup": self.cgroups.version,
            "idmapped": self.layers.idmapped,
        }

    def start(self, spec: dict[str, Any], control: socket.socket) -> None:
        """Fork one sandbox. It announces itself on its socket when it is ready."""
        spec = self.layers.prepare(spec)
        ours_fd, their_fd = socket.socketpair()
        pid = launch.clone()
        if pid == 0:
            become_sandbox(spec, control, their_fd.fileno(), self.machine)
        their_fd.close()
        self.count += 1
        name = str(self.count)
        self.live[pid] = name
        try:
            if self.cgroups.available:
                limits = spec["limits"]
                # Files in memory count as memory: they have a limit of their own to fill.
                total = limits["memory"] + limits["disk"]
                self.cgroups.add(name, pid, total, limits["processes"] + 1)
        except OSError:
            ours_fd.close()
            os.kill(pid, signal.SIGKILL)
            raise
        handshake = ours_fd.detach()
        self.handshakes[handshake] = pid
        self.poll.register(handshake, select.POLLIN)

    def write_id_maps(self, handshake: int) -> None:
        """A sandbox has entered its user namespace: say who is who in it."""
        pid = self.handshakes.pop(handshake)
        self.poll.unregister(handshake)
        try:
            if os.read(handshake, 1) == b"u":
                layers.write_id_maps(pid, self.machine.root)
                os.write(handshake, b"k")
        except OSError:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(handshake)

    def reap(self) -> None:
        """Collect ended sandboxes and remove their cgroups."""
        while self.live:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            name = self.live.pop(pid, None)
            if name is not None and self.cgroups.available:
                self.leaving.append(name)
        self.leaving = [name for name in self.leaving if not self.cgroups.remove(name)]

    def close(self) -> None:
        """End every sandbox and leave nothing."""
        for pid in self.live:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in list(self.live):
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self.leaving.append(self.live.pop(pid))
        for name in self.leaving:
            self.cgroups.remove(name)
        self.cgroups.close()


def become_sandbox(
    spec: dict[str, Any], control: socket.socket, handshake: int, machine: launch.Machine
) -> None:
    """In the child: never returns into the spawner's loop."""
    status = 1
    try:
        control, handshake = launch.keep_only(control, handshake)
        try:
            launch.run(spec, control, handshake, machine)
            status = 0
        except BaseException as error:  # noqa: BLE001 - must not unwind into the spawner
            report(control, error)
    finally:
        os._exit(status)


def report(control: socket.socket, error: BaseException) -> None:
    """Tell the caller why a sandbox did not start."""
    known = isinstance(error, OSError)
    message = {
        "failed": str(error) if known else traceback.format_exc(),
        "errno": (error.errno or 0) if isinstance(error, OSError) else 0,
    }
    with suppress(OSError):
        wire.send(control, message)


def main(caller_fd: int, name: str) -> None:
    """Run a spawner for the caller at the other end of `caller_fd`."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # The caller's Ctrl-C is for the caller to handle; its end is what ends us. Children start
        # with the default again.
        signal.signal(number, signal.SIG_DFL)
    sys.setrecursionlimit(10_000)
    hide_arguments(b"init")  # every sandbox's process 1 is a copy of this one
    caller = socket.socket(fileno=caller_fd)
    try:
        spawner = Spawner(caller, name)
    except OSError as error:
        report(caller, error)
        return
    wire.send(caller, spawner.facts())
    spawner.run()
