"""A worker for the tests: it answers an expression of Python, one in a packet, with its value."""

from __future__ import annotations

import _imp
import gc
import os
import queue
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any


def mentions(*parts: str) -> list[str]:
    """Texts with `parts` in a row, of all that can be reached from here; not from the question."""
    wanted = "".join(parts)
    gc.unfreeze()
    frame = sys._getframe(2)  # above who asks
    pending = [*gc.get_objects()]
    while frame is not None:
        pending += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    seen = {id(pending): pending}  # kept, or another would get the same id
    found = []
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, (str, bytes)):
            text = thing if isinstance(thing, str) else thing.decode("latin-1")
            if wanted in text and thing is not wanted:
                found.append(text)
        else:
            # Of a dict with texts for keys, the collector looks at the values only.
            pending += [*gc.get_referents(thing), *(thing if isinstance(thing, dict) else ())]
    return found


forks = 0


def count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=count_fork)


def run_thread(function: Callable[[], Any]) -> Any:
    results: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=lambda: results.put(function())).start()
    return results.get(timeout=60)


MODULES = {
    **{"_imp": _imp, "gc": gc, "os": os, "random": random, "signal": signal, "socket": socket},
    **{"threading": threading, "mentions": mentions, "run_thread": run_thread},
}


def main(channel: socket.socket) -> None:
    while True:
        text, fds, _, _ = socket.recv_fds(channel, 65536, 1)
        if text in (b"", b"end"):
            return
        try:
            value = repr(eval(text, {**MODULES, "forks": forks, "received": fds}))
        except Exception as error:  # noqa: BLE001 - it is the answer
            value = repr(error)
        channel.sendall(value.encode())
