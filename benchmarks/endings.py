"""The time that a sandbox takes to end, by what its programs have made within its limits.

    python benchmarks/endings.py [SECONDS [NAME …]]

Each maker runs in as many processes as there may be, for so long. Then the sandbox is closed while
a peer starts one sandbox after the other. A row tells how many things there were, how long
`close()` took, how long the kernel took until the last process had ended, and the median and the
longest start of the peer meanwhile; "busy loop" is what the others compare to.
"""

from __future__ import annotations

import os
import select
import statistics
import sys
import threading
import time
from contextlib import closing

from intercode_sandbox import Limits
from intercode_sandbox.native.provider import NativeProvider

PROCESSES = 200
FEWEST_STARTS = 10
HEAD = """
import array, ctypes, fcntl, itertools, mmap, os, resource, select, signal, socket, struct, sys
import tempfile, threading, time
for number in (signal.SIGIO, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [64])
libc = ctypes.CDLL(None, use_errno=True)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.makedirs("/tmp/m", exist_ok=True)
os.chdir("/tmp/m")
until, workers = time.monotonic() + {seconds}, {workers}
counts = mmap.mmap(-1, 8 * workers)
def lock(kind, at):
    return struct.pack("hhqqixxxx", kind, 0, at, 1, 0)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def make(me, number):
{body}
for me in range(workers):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        kept, number = [], 0
        path = f"f{{me}}"
        try:
            while time.monotonic() < until:
                kept.append(make(me, number))
                number += 1
        except (OSError, MemoryError, RuntimeError) as error:
            if not number:
                os.write(2, f"{{getattr(error, 'strerror', error)}}.".encode())
        counts[8 * me : 8 * me + 8] = struct.pack("=q", number)
        signal.pause()
while time.monotonic() < until + 0.5:
    time.sleep(0.1)
print(sum(struct.unpack(f"={{workers}}q", counts[:])), flush=True)
signal.pause()
"""
JOIN = "s.setsockopt(0, 35, struct.pack('=II', socket.htonl(0xE1000000 + n), 0x0100007F))"
MAKERS = {
    "busy loop": "pass",
    "multicast memberships": (
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"for n in range(20):\n    {JOIN}\nreturn s"
    ),
    "flock": (
        "fd = os.open('/tmp/m/f', os.O_RDONLY | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_SH)\nreturn fd"
    ),
    "OFD locks": (
        "fd = os.open('/tmp/m/f', os.O_RDWR | os.O_CREAT)\n"
        "for n in range(100):\n"
        "    at = 1 << 40\n"
        "    fcntl.fcntl(fd, 37, lock(fcntl.F_RDLCK, at - 3 * n - 1000 * (number + 1000 * me)))\n"
        "return fd"
    ),
    "POSIX locks, descriptors": (
        "global held\n"
        "if me % 10:\n    return os.open('/tmp/m/f', os.O_RDWR | os.O_CREAT)\n"
        "held = os.open('/tmp/m/f', os.O_RDWR | os.O_CREAT) if not number else held\n"
        "for n in range(100):\n"
        "    fcntl.fcntl(held, 6, lock(fcntl.F_RDLCK, (1 << 40) - 3 * n - 300 * number))"
    ),
    "POSIX locks in a ring of files": (
        "global held\n"
        "if number < 900:\n"
        "    return os.open(f'/tmp/m/f{(me + 1) % workers}', os.O_RDWR | os.O_CREAT)\n"
        "held = os.open(f'/tmp/m/f{me}', os.O_RDWR | os.O_CREAT) if number == 900 else held\n"
        "for n in range(100):\n"
        "    fcntl.fcntl(held, 6, lock(fcntl.F_RDLCK, (1 << 40) - 3 * n - 300 * number))"
    ),
    "leases": (
        "fd = os.open(f'/tmp/m/{me}-{number}', os.O_RDONLY | os.O_CREAT)\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)\nreturn fd"
    ),
    "F_NOTIFY": (
        "fd = os.open('/tmp/m', os.O_RDONLY)\n"
        "fcntl.fcntl(fd, fcntl.F_NOTIFY, 0x80000002)\nreturn fd"
    ),
    "O_ASYNC on one pipe": (
        "number or me or os.mkfifo('/tmp/p')\n"
        "while not os.path.exists('/tmp/p'): pass\n"
        "fd = os.open('/tmp/p', os.O_RDWR | os.O_NONBLOCK)\n"
        "fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nreturn fd"
    ),
    "inotify watches": (
        "global held\nheld = libc.inotify_init() if not number else held\nchecked(held)\n"
        "os.mkdir(name := f'/tmp/m/{me}-{number}')\n"
        "checked(libc.inotify_add_watch(held, name.encode(), 0xFFF))"
    ),
    "keys": "checked(libc.syscall(248, b'user', f'{me}-{number}'.encode(), b'x', 1, -2))",
    "POSIX timers": (
        "checked(libc.timer_create(1, None, ctypes.byref(at := ctypes.c_void_p())))\n"
        "libc.timer_settime(at, 0, struct.pack('qqqq', 0, 1000000, 0, 1000000), None)"
    ),
    "timerfds": (
        "fd = checked(libc.timerfd_create(1, 0))\n"
        "libc.timerfd_settime(fd, 0, struct.pack('qqqq', 0, 100000, 0, 100000), None)"
    ),
    "full pipes": ("r, w = os.pipe2(os.O_NONBLOCK)\nos.write(w, bytes(65536))\nreturn r, w"),
    "one huge directory": "os.close(os.open(f'/tmp/m/{me}-{number}', os.O_CREAT))",
    "deep trees": (
        "number or (os.mkdir(f'/tmp/m/{me}'), os.chdir(f'/tmp/m/{me}'))\n"
        "os.mkdir('d')\nos.chdir('d')"
    ),
    "names that do not exist": "for n in range(100): os.path.exists(f'/tmp/m/{me}-{number}-{n}')",
    "memfds": "fd = os.memfd_create('x')\nos.ftruncate(fd, 1 << 29)\nos.pwrite(fd, b'x', 1 << 28)",
    "threads": "threading.Thread(target=signal.pause).start()",
    "epoll chains": (
        "global last\n"
        "poll = select.epoll()\n"
        "if number % 4:\n    poll.register(last, 1)\n"
        "last = poll\nreturn poll"
    ),
    "epolls of many descriptors": (
        "global pipes\n"
        "pipes = [os.pipe() for _ in range(200)] if not number else pipes\n"
        "poll = select.epoll()\n"
        "for pipe in pipes:\n    poll.register(pipe[0], 1)\n    poll.register(pipe[1], 4)\n"
        "return poll"
    ),
    "System V queues, semaphores": (
        "checked(libc.msgget(0, 0o1666))\nset = checked(libc.semget(0, 100, 0o1666))\n"
        "for n in range(100): libc.semop(set, struct.pack('Hhh', n, 1, 0x1000), 1)"
    ),
    "semaphores to undo": (
        "global sets\n"
        "sets = [libc.semget(77 + n, 64, 0o1666) for n in range(120)] if not number else sets\n"
        "for set in sets: checked(libc.semop(set, struct.pack('Hhh', number % 64, 1, 0x1000), 1))"
    ),
    "shared memory attached": (
        "global held\n"
        "held = checked(libc.shmget(78, 4096, 0o1666)) if not number else held\n"
        "libc.shmat.restype = ctypes.c_void_p\n"
        "if libc.shmat(held, None, 0) in (None, 2**64 - 1): raise OSError('full')"
    ),
    "mappings of one file": (
        "global held\n"
        "if not number:\n"
        "    held = os.open('/tmp/m/f', os.O_RDWR | os.O_CREAT)\n    os.ftruncate(held, 1 << 20)\n"
        "return mmap.mmap(held, 8192, offset=number % 100 * 8192)"
    ),
    "sockets in flight": (
        "a, b = socket.socketpair()\nc, d = socket.socketpair()\n"
        "socket.send_fds(a, [b'x'], [b.fileno(), c.fileno()] * 60)\n"
        "socket.send_fds(c, [b'x'], [d.fileno(), a.fileno()] * 60)"
    ),
    "UDP sockets of one port": (
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('127.0.0.1', 999 + 8000))\nreturn s"
    ),
    "TCP connections": (
        "global server\n"
        "server = socket.create_server(('127.0.0.1', 0), backlog=999) if not number else server\n"
        "one = socket.create_connection(server.getsockname())\n"
        "return one, server.accept()"
    ),
    "netlink sockets": (
        "s = socket.socket(16, 3, 0)\ns.bind((0, 0))\n"
        "for group in range(1, 20): s.setsockopt(270, 1, group)\nreturn s"
    ),
    "queued signals": "checked(libc.sigqueue(os.getppid(), 64, None))",
    "extended attributes": (
        "global held\nheld = os.open(path, os.O_CREAT) if number % 200 == 0 else held\n"
        "os.setxattr(held, f'user.{me}-{number}', b'x' * 200)"
    ),
}


def indented(body: str) -> str:
    return "".join(f"    {line}\n" for line in body.splitlines())


class Peer(threading.Thread):
    """Somebody who starts one sandbox after the other, and notes how long each start takes."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []
        self.over = False
        self._provider = NativeProvider()
        self._provider.start().close()  # so that the spawner's own start does not count

    def run(self) -> None:
        with closing(self._provider) as provider:
            while not self.over or len(self.starts) < FEWEST_STARTS:
                begin = time.monotonic()
                sandbox = provider.start()
                self.starts.append(time.monotonic() - begin)
                sandbox.close()


def measure(name: str, seconds: float) -> None:
    """Print the row of one maker."""
    with closing(NativeProvider()) as provider:
        sandbox = provider.start(limits=Limits(timeout=600))
        process = os.pidfd_open(sandbox._process.pid)
        body = indented(MAKERS[name])
        script = HEAD.format(seconds=seconds, workers=PROCESSES, body=body)
        maker = sandbox.popen(
            ["python3", "-c", script], channels={1: "w", 2: "w"}, merge_stderr=False
        )
        out = open(maker.fds[1], "rb", closefd=False)
        count = int(out.readline() or -1)
        os.set_blocking(maker.fds[2], False)
        error = b"" if count else os.read(maker.fds[2], 200)
        peer = Peer()
        peer.start()
        before = time.monotonic()
        sandbox.close()
        closed = time.monotonic() - before
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.poll()
        os.close(process)
        ended = time.monotonic() - before
        peer.over = True
        peer.join()
    middle = statistics.median(peer.starts)
    figures = f"{closed:.2f} | {ended:.2f} | {middle * 1000:.0f} | {max(peer.starts) * 1000:.0f}"
    what = f"refused: {error.decode().partition(chr(46))[0]}" if error else f"{count:,}"
    print(f"| {name} | {what} | {figures} |", flush=True)


def main(seconds: float = 5.0, *names: str) -> None:
    """Print the table."""
    print("| Made | Number | `close()`, s | ended, s | peer's start, ms: median | longest |")
    print("|---|---|---|---|---|---|")
    for name in names or MAKERS:
        measure(name, seconds)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])
