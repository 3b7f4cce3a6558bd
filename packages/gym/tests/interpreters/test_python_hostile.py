"""Whatever an action does to its interpreter, it is told, and the episode goes on."""

from __future__ import annotations

import os
import re
from contextlib import closing

import pytest

from intercode.errors import SandboxClosedError
from intercode.interpreters.python import PythonInterpreter
from intercode.interpreters.python_start import provider
from intercode_sandbox import Limits
from waiting import PATIENCE, eventually

from .conftest import OpenPython

pytestmark = pytest.mark.ordinary

KEPT = {
    "input": ("input()", "EOFError"),
    "input of stdin": ("import sys; sys.stdin.read()", "''"),
    "exit": ("exit()", r"\[exit\(0\) ends nothing here"),
    "exit with a code": ("import sys; sys.exit(3)", r"\[exit\(3\) ends"),
    "exit with many words": ("raise SystemExit('y' * 10 ** 7)", r"\[exit\(y{200}\) ends"),
    "exit with words": ("raise SystemExit('bye')", r"\[exit\(bye\) ends"),
    "recursion": ("def f(): f()\nf()", "RecursionError"),
    "memory": ("bytes(10 ** 10)", "MemoryError"),
    "half a surrogate": ("print('\\ud800')", r"\\ud800"),
    "its repr": ("'\\ud800'", r"'\\ud800'"),
    "closed output": ("import os; os.close(1); os.close(2); print(1)", "Bad file descriptor"),
    "closed input": ("import os; os.close(0)", ""),
    "closed streams": ("import sys; sys.stdout.close(); sys.stderr.close(); print()", "ValueError"),
    "other streams": ("import io, sys; sys.stdout = sys.stderr = io.StringIO(); print(1)", ""),
    "no streams": ("import sys; sys.stdout = sys.stderr = sys.stdin = None", ""),
    "output elsewhere": ("import os; os.dup2(os.open('/dev/null', 1), 1); print(1)", ""),
    "output that does not block": ("import os; os.set_blocking(1, False); print('x' * 10**6)", "x"),
    "descriptors": ("import os; os.closerange(3, 256)", ""),
    "no print": ("import builtins; builtins.print = None", ""),
    "no builtins": (
        "import builtins\nfor n in 'len repr compile exec isinstance type str'.split():\n"
        "    setattr(builtins, n, None)",
        "",
    ),
    "__builtins__ gone": ("del __builtins__", ""),
    "no modules": ("import sys; sys.modules.clear()", ""),
    "no traceback": ("import traceback; traceback.TracebackException = None\n1 / 0", "Zero"),
    "a trace": ("import sys; sys.settrace(lambda *a: 1 / 0)", ""),
    "a hook": ("import sys; sys.excepthook = sys.displayhook = None\n1 / 0", "ZeroDivision"),
    "few frames": ("import sys; sys.setrecursionlimit(40)", ""),
    "a failing repr": ("class A:\n    def __repr__(self): 1 / 0\nA()", "ZeroDivisionError"),
    "a repr that prints": ("class A:\n    def __repr__(self): print(1); return '2'\nA()", "1\n2"),
    "a failing str": ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E"),
    "an exit in a repr": ("class A:\n    def __repr__(self): exit(4)\nA()", r"\[exit\(4\)"),
    "a late alarm": (
        "import signal\ndef ring(*a):\n    os.mkdir('/tmp/rung')\n    raise TimeoutError('ring')\n"
        "signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.01)",
        "",
    ),
    "an audit hook": ("import sys; sys.addaudithook(lambda *a: None)", ""),
    "a child that runs on": ("import os\nif os.fork() == 0: 1 / 0\nelse: os.wait()", "Zero"),
    "children": ("import os\nfor _ in range(5):\n    os.fork() or os._exit(0)", ""),
    "collected": ("import gc; gc.callbacks.append(lambda *a: 1 / 0); gc.collect()", ""),
    "another directory": ("import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')", ""),
    "asked to end": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
    "another main": ("import sys; sys.modules['__main__'] = None; globals().pop('__name__')", ""),
    "a nested source": ("(" * 100_000, "Error"),
    "half a surrogate in the source": ("x = '\udcff'", "Error"),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_names_are_kept(python: PythonInterpreter, case: str) -> None:
    python.execute("import os; kept = 5")  # without any modules not every Python imports it
    action, expected = KEPT[case]
    done = python.execute(action)
    assert re.search(expected, done.observation)
    assert "restarted" not in done.info
    if case == "a late alarm":
        assert eventually(lambda: python.sandbox.exec(["test", "-e", "/tmp/rung"]).ok)
    assert python.execute("kept").observation == "5\n"
    assert "ZeroDivisionError" in python.execute("1 / 0").observation
    assert b"sub\n" in python.execute("os.system('echo sub')").output


LOST = {
    "os._exit": ("import os; os._exit(3)", "ended with exit code 3"),
    "another program": (
        "import os; os.execv('/bin/echo', ['echo', 'said'])",
        "^said\n.*exit code 0",
    ),
    "a crash": ("import ctypes; ctypes.string_at(0)", "crashed .Segmentation fault"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "killed"),
    "all descriptors": ("import os; os.closerange(0, 5000)", "ended with exit code"),
}


@pytest.mark.parametrize("case", LOST)
def test_it_is_started_anew(python: PythonInterpreter, case: str) -> None:
    python.execute("lost = 5")
    action, expected = LOST[case]
    done = python.execute(action)
    assert re.search(expected, done.observation, re.DOTALL)
    assert "all names are lost" in done.observation
    assert (done.ok, done.info) == (False, {"restarted": True})
    assert "NameError" in python.execute("lost").observation


INTERRUPTED = {
    "a loop": "while True: pass",
    "sleep": "import time; time.sleep(999)",
    "a program": "import os\nos.system('sleep 999')",
    "a subprocess": "import subprocess; subprocess.run(['sleep', '999'])",
    "a lock": "import threading\nlock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a repr": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    "a text": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    "a comprehension": "[None for n in iter(int, 1) if n] and 0",
    "a program that is begun late": """
import os, signal
def again(*_):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.system("sleep 999")
signal.signal(signal.SIGINT, again)
while True: pass
""",
}


@pytest.mark.parametrize("case", INTERRUPTED)
def test_a_time_limit_interrupts(
    open_python: OpenPython, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("intercode.interpreters.python._GRACE_SECONDS", PATIENCE)  # it heeds it
    python = open_python(timeout=PATIENCE)
    assert python.execute("kept = 5").ok
    done = python.execute(INTERRUPTED[case], 0.4)  # allow limit: it has no end
    assert "[timed out after 0.4 s]\n[interrupted: " in done.observation
    assert (done.ok, done.info["timed_out"], done.info["interrupted"]) == (False, True, True)
    assert python.execute("kept").observation == "5\n"
    # Who was killed is there until it is collected.
    assert eventually(lambda: python.sandbox.processes() == [python._process.pid])


@pytest.mark.parametrize(
    "action",
    [
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('/tmp/deaf', 'w')\nwhile True: pass",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "open('/tmp/deaf', 'w'); os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_what_heeds_no_interrupt_is_killed(
    open_python: OpenPython, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(
        "intercode.interpreters.python._GRACE_SECONDS", 0.5
    )  # allow limit: it is deaf
    python = open_python(timeout=PATIENCE)
    for limit in (0.3, 4.0, 20.0, PATIENCE):  # on a slow machine it does not come so far at once
        python.execute("import os, signal")
        done = python.execute(action, limit)
        if python.sandbox.exec(["test", "-e", "/tmp/deaf"]).ok:
            break
    assert done.observation.endswith(
        f"[timed out after {limit:g} s]\n"
        "[the interpreter was killed; it was started again, and all names are lost]"
    )
    assert (done.info["timed_out"], done.info["restarted"]) == (True, True)
    assert python.execute("1").ok


def test_much_output_is_cut(open_python: OpenPython) -> None:
    python = open_python(output=2000, timeout=PATIENCE)
    done = python.execute("print('a' * 5000)\nprint('end')")
    assert done.info == {"truncated": True}
    assert len(done.output) < 2100
    assert done.output.endswith(b"aend\n".replace(b"aend", b"a\nend"))
    value = python.execute("'b' * 5000").observation
    assert " cut ...]\n" in value
    assert value.endswith("b'\n")


def test_a_flood_is_stopped(open_python: OpenPython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercode.interpreters.python._GRACE_SECONDS", PATIENCE)  # it heeds it
    python = open_python(output=2000, timeout=PATIENCE)
    python.execute("kept = 5")
    done = python.execute("while True: print('x' * 1000)")
    assert "[stopped after" in done.observation
    assert python.execute("kept").observation == "5\n"


WAITS = """
import os, threading, time
def f():
    while not os.path.exists('/tmp/go'): time.sleep(0.01)
    print(*said, sep='\\n')
t = threading.Thread(target=f); t.start()
"""


def test_a_thread_prints_later(python: PythonInterpreter) -> None:
    assert python.execute(f"said = ['late']\n{WAITS}").output == b""
    python.sandbox.write_file("/tmp/go", b"")
    assert python.execute("t.join(); print('now')").output == b"late\nnow\n"


def test_a_thread_floods_meanwhile(open_python: OpenPython) -> None:
    python = open_python(output=2000, timeout=PATIENCE)
    python.execute(f"said = ['x' * 1000] * 110\n{WAITS}")
    python.sandbox.write_file("/tmp/go", b"")
    done = python.execute("t.join()")
    assert done.ok
    assert done.output.startswith(b"xxx")


@pytest.mark.parametrize(
    "module", ["intercode", "intercode.interpreters", "intercode_sandbox.native.wire"]
)
def test_no_module_of_ours_can_be_imported(python: PythonInterpreter, module: str) -> None:
    """The worker's packages are there while it starts, and show nothing of the machine's."""
    name = module.partition(".")[0]
    assert f"No module named '{name}'" in python.execute(f"import {module}").observation


def test_forged_answers_harm_only_their_own_episode(open_python: OpenPython) -> None:
    python = open_python(timeout=PATIENCE)
    python.execute(
        "import os, struct\nfor fd in range(3, 1024):\n    for junk in (b'\\xff' * 100,):\n"
        "        try: os.write(fd, junk)\n        except OSError: pass"
    )
    assert python.execute("1 + 1").observation.startswith(("2\n", "[the interpreter"))
    assert python.execute("1 + 1").observation == "2\n"


def test_a_large_environment() -> None:
    with closing(provider().start("host", Limits(timeout=PATIENCE))) as sandbox:
        more = {f"V{n}": "x" * 1000 for n in range(300)}
        sandbox.env = {**sandbox.env, **more}  # type: ignore[misc] # as of an image that has it
        with closing(PythonInterpreter(sandbox)) as python:
            assert python.execute("import os; len(os.environ) >= 300").output == b"True\n"


def test_no_descriptor_can_be_sent_to_us(python: PythonInterpreter) -> None:
    """Closing it may take as long as the action likes: a TCP socket that lingers, for one."""
    look = (
        "import os, stat\n"
        "fds = [int(n) for n in os.listdir('/proc/self/fd')]\n"
        "print([n for n in fds if os.path.exists(f'/proc/self/fd/{n}') "
        "and stat.S_ISSOCK(os.fstat(n).st_mode)])"
    )
    assert python.execute(look).output == b"[]\n"


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_fork_of_ours_does_not_speak_to_it(python: PythonInterpreter) -> None:
    python.execute("x = 1")
    child = os.fork()
    if child == 0:
        try:
            python.execute("x = 2")
        except SandboxClosedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert python.execute("print(x)").output == b"1\n"
