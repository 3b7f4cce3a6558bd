"""The linter of the tests: what it finds, what is allowed, and which marks allow nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules import check, main

BROKEN = {
    "sleep": [
        "import time\ntime.sleep(1)",  # allow sleep: it is to be found
        "from time import sleep as nap\nnap(x)",
        "asyncio.sleep(0.1)",  # allow sleep: it is to be found
        "code = 'import time\\ntime.sleep(2)'",
    ],
    "limit": [
        "process.wait(5)",
        "thread.join(0.1)",
        "queue.get(timeout=1)",
        "task = replace(task, test_timeout=9.9)",
        "def run(code, timeout=3): pass",
        "def run(code, *, seconds: float = 3): pass",
        "GRACE_SECONDS = 2",
        "monkeypatch.setattr('pool._GRACE_SECONDS', 0.5)",
        "monkeypatch.setattr(pool, 'TIMEOUT', 0.5)",
        "@pytest.mark.timeout(5)\ndef test(): pass",
    ],
    "ps": [
        "sh('ps aux')",
        "sh(f'until pgrep -x {name}; do :; done')",  # allow ps: it is to be found
        "run(['pidof', 'bash'])",
    ],
    "shared": [
        "len(Path(f'/proc/{pid}/mountinfo').read_text().splitlines())",
        "before = Path('/proc/mounts').read_text().count('\\n')",
        "len(os.listdir('/sys/fs/cgroup/memory'))",
    ],
    "port": ["server.bind(('127.0.0.1', 8080))", "HTTPServer(('', 8000), Handler)"],
    "kill": ["ray.kill(actor)"],
    "clock": [
        "assert time.monotonic() - began < 20",
        "assert done and (time.time() >= until) is True",
    ],
}
FINE = [
    "assert eventually(lambda: done)",
    "process.wait(PATIENCE)",
    "lock.acquire(timeout=0)",
    "event.wait(60)",
    "queue.get(timeout=60)",
    "','.join(names)",
    "Turn('ls', seconds=0.5)",
    "action = 'import time; time.sleep(999)'",
    "code = 'while not done(): time.sleep(0.01)'",
    "words = {'bash', 'ps'}",
    "began = time.monotonic()",
    "sum(map(is_ours, Path('/proc/self/mountinfo').read_text().splitlines()))",
    "socket.create_server(('127.0.0.1', 0))",
    "os.kill(pid, 9)",
    "'''A docstring that runs ps aux.'''",
]


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in BROKEN.items() for text in texts]
)
def test_what_breaks_a_rule_is_found_unless_it_is_allowed(rule: str, text: str) -> None:
    (line, found), *more = check(text)
    assert (found, more) == (rule, [])
    lines = text.split("\n")
    lines[line - 1] += f"  # allow {rule}: nothing else will do"
    assert check("\n".join(lines)) == []


@pytest.mark.parametrize("text", FINE)
def test_what_is_fine(text: str) -> None:
    assert check(text) == []


def test_a_mark_may_be_at_the_end_of_a_statement() -> None:
    assert check("run(\n    timeout=1,\n)  # allow limit: it has no end") == []
    assert check("with run(\n    timeout=1,\n):\n    pass  # allow limit: too far") == [
        (2, "limit"),
        (4, "mark"),
    ]


@pytest.mark.parametrize(
    "mark",
    ["# allow limit", "# allow limit:", "# allow", "# allow sleep: another rule", "# noqa"],
)
def test_a_mark_needs_its_rule_and_a_reason(mark: str) -> None:
    assert check(f"process.wait(5)  {mark}")[0] == (1, "limit")


def test_a_mark_that_allows_nothing() -> None:
    assert check("process.wait(PATIENCE)  # allow limit: it has no end") == [(1, "mark")]


def test_a_file_with_a_fault_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "test_it.py").write_text("x = 1\nprocess.wait(5)\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path}/deep/test_it.py:2: limit: ")
