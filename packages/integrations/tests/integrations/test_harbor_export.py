"""Exported tasks judge by themselves: what their scripts say of right, wrong and excessive work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.errors import TaskError, UsageError
from intercode.task import Dataset, Task
from intercode_integrations.harbor.export import HarborExporter
from intercode_integrations.harbor.writer import ANSWER, folder_name
from intercode_sandbox import Limits, SandboxBackend, get_provider
from intercode_sandbox.units import MIB

Export = Callable[..., Path]


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Export]:
    """A function that exports a bundled task, or one of the test's own."""

    def exported(name: str, task: str | Task) -> Path:
        own = {} if isinstance(task, str) else {"data": Dataset([task])}
        with closing(intercode.make(name, **own)) as env:
            chosen: Any = env
            found = chosen.dataset[task] if isinstance(task, str) else task
            return HarborExporter(chosen, tmp_path / "out").export(found)

    yield exported


def played(folder: Path, work: str) -> float:
    """Work in the folder's environment as Harbor's agents do, and return the reward of its test."""
    limits = Limits(memory=512 * MIB, timeout=60)
    with closing(get_provider().start(str(folder / "environment/Dockerfile"), limits)) as place:
        _run(place, "mkdir -p /logs/agent /logs/verifier")
        if work == "solution":
            work = (folder / "solution/solve.sh").read_text()
        place.exec(["/bin/bash", "-c", work])
        for file in filter(Path.is_file, (folder / "tests").rglob("*")):
            place.write_file(f"/tests/{file.relative_to(folder / 'tests')}", file.read_bytes())
        _run(place, "bash /tests/test.sh")
        return float(place.read_file("/logs/verifier/reward.txt"))


def _run(place: SandboxBackend, command: str) -> None:
    done = place.exec(["/bin/bash", "-c", command])
    assert done.ok, done


def solved(folder: Path, after: str) -> float:
    """Run the solution, and something after it."""
    return played(folder, f"{(folder / 'solution/solve.sh').read_text()}\n{after}")


def test_files_count_whole(export: Export) -> None:
    folder = export("bash", "archive-07")
    assert played(folder, "true") == 0
    assert played(folder, "solution") == 1
    for change in ("touch /data/more", "chmod 700 /data/archive/restore", "rm -r /data/archive/p*"):
        assert solved(folder, f"cd / && {change}") == 0, change


def test_the_rest_of_the_system_and_scratch_do_not_count(export: Export) -> None:
    folder = export("bash", "archive-07")
    rest = "touch /tmp/scratch /root/.agent /usr/local/bin/agent"
    assert solved(folder, rest) == 1


def test_an_answer_is_compared_as_a_terminal_shows_it(export: Export) -> None:
    folder = export("bash", "archive-01")
    assert ANSWER in (folder / "instruction.md").read_text()
    assert played(folder, "solution") == 1
    assert solved(folder, f"sed -i 's/$/ \\r/; $a\\\\' {ANSWER}; echo >> {ANSWER}") == 1
    assert solved(folder, f"echo 7 > {ANSWER}") == 0
    assert solved(folder, f"sed -i 's/^/ /' {ANSWER}") == 0
    assert solved(folder, f"rm {ANSWER}") == 0


def test_gold_s_own_scratch_does_not_count(export: Export) -> None:
    gold = "echo b > /tmp/own && cp /tmp/own /srv/copy"
    task = Task("scratch", "Write b to /srv/copy.", gold=(gold,), setup="mkdir -p /srv/more")
    folder = export("bash", task)
    assert played(folder, "echo b > /srv/copy") == 1
    assert played(folder, "echo b > /srv/copy; touch /srv/more/else") == 0
    assert played(folder, "echo b > /tmp/own") == 0


def test_scratch_that_the_task_speaks_of_counts(export: Export) -> None:
    folder = export("bash", Task("tmp", "Write b to /tmp/it.", gold=("echo b > /tmp/it",)))
    assert played(folder, "echo b > /tmp/it") == 1
    assert played(folder, "echo c > /tmp/it") == 0


def test_each_gold_will_do(export: Export) -> None:
    golds = ("ln -s /etc/hosts /srv/to", "rm -r /srv/old")
    task = Task("two", "Do one.", gold=golds, setup="mkdir -p /srv/old/in; touch /srv/old/in/f")
    folder = export("bash", task)
    assert [played(folder, gold) for gold in golds] == [1, 1]
    assert played(folder, "; ".join(golds)) == 0
    assert played(folder, "ln -s /etc/passwd /srv/to") == 0


def test_a_command_decides(export: Export) -> None:
    command = '[ "$(cat note)" = b ]'
    task = Task("note", "Write b to note.", gold=("echo b > note",), verification=command)
    folder = export("bash", task)
    assert played(folder, "true") == 0
    assert played(folder, "solution") == 1


def test_statements(export: Export) -> None:
    folder = export("sql", "clinic-01")
    write = f"cat > {ANSWER} <<< "
    assert played(folder, "true") == 0
    assert played(folder, "solution") == 1
    assert played(folder, f"{write}'SELECT 12'") == 0
    assert played(folder, f"{write}'SELECT'") == 0
    assert played(folder, f"{write}'SELECT 11.0000000001; -- as text'") == 1


def test_a_statement_without_an_end(export: Export) -> None:
    folder = export("sql", "clinic-01")
    check = folder / "tests/check.py"
    check.write_text(check.read_text().replace("MOST_STEPS = 200_000", "MOST_STEPS = 200"))
    forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    assert played(folder, f"cat > {ANSWER} <<< '{forever}'") == 0


def test_statements_that_change(export: Export) -> None:
    with closing(intercode.make("sql")) as env:
        chosen: Any = env
        task = next(t for t in chosen.dataset if t.gold[0].startswith("DELETE"))
    folder = export("sql", task.task_id)
    assert played(folder, "solution") == 1
    assert played(folder, f"echo 'SELECT 1' > {ANSWER}") == 0
    assert solved(folder, f"echo '; DELETE FROM patients' >> {ANSWER}") == 0


def test_a_program_s_share(export: Export) -> None:
    tests = ("assert double(2) == 4", "assert double(0) == 0")
    gold = "def double(x):\n    return 2 * x"
    folder = export("python", Task("double", "Write `double`.", gold=(gold,), tests=tests))
    assert played(folder, "true") == 0
    assert played(folder, "solution") == 1
    assert played(folder, f"echo 'double = abs' > {ANSWER}") == 0.5
    assert played(folder, f"echo 'raise SystemExit(0)' > {ANSWER}") == 0


def test_a_program_that_prints(export: Export) -> None:
    case = {"stdin": "2\n", "stdout": "4\n"}
    gold = "print(2 * int(input()))"
    folder = export("python", Task("io", "Double it.", gold=(gold,), metadata={"stdio": [case]}))
    assert played(folder, "solution") == 1
    assert played(folder, f"echo 'print(5)' > {ANSWER}") == 0


def test_a_flag(export: Export) -> None:
    folder = export("ctf", "layers")
    assert played(folder, f"echo 'intercode{{42}}' > {ANSWER}") == 0
    assert played(folder, "solution") == 1


def test_a_repository(export: Export) -> None:
    folder = export("swe", "swe-taskline")
    assert played(folder, "true") == 0
    assert played(folder, "solution") == 1
    assert played(folder, "rm -r tests && git add -A && git commit -qm 'No tests'") == 0
    assert solved(folder, "echo 'raise SystemExit(0)' > tests/test_groups.py") == 1


@pytest.mark.parametrize(
    ("name", "task"), [("bash", "archive-07"), ("ctf", "layers"), ("sql", "clinic-01")]
)
def test_the_environment_has_no_solution(export: Export, name: str, task: str) -> None:
    folder = export(name, task)
    with closing(intercode.make(name)) as env:
        chosen: Any = env
        gold = chosen.dataset[task].gold[0].encode()
    shown = [folder / "instruction.md", folder / "task.toml", *(folder / "environment").rglob("*")]
    assert not [file for file in shown if file.is_file() and gold in file.read_bytes()]
    assert gold in (folder / "solution/solve.sh").read_bytes()


def test_what_cannot_be_carried_is_refused(export: Export) -> None:
    with pytest.raises(TaskError, match="service with a secret beside the agent"):
        export("ctf", "hosts")
    cases = {"cases": [{"input": [1], "expected": 1}], "entry_point": "f"}
    with pytest.raises(TaskError, match="only InterCode's own grader"):
        export("python", Task("c", "Write f.", gold=("def f(x): return x",), metadata=cases))
    with pytest.raises(TaskError, match="depends on the clock"):
        export("bash", Task("c", "Print the day.", gold=("date",), metadata={"clock": {}}))
    export("bash", "archive-01")
    with pytest.raises(UsageError, match="exists already"):
        export("bash", "archive-01")


def test_exported_tasks_run_under_our_runner_too(export: Export) -> None:
    folder = export("bash", "archive-07")
    with closing(intercode.make(f"harbor:{folder}")) as env:
        chosen: Any = env
        for solve in (False, True):
            chosen.reset()
            actions = chosen.solution(chosen.dataset[0]) if solve else ["submit"]
            assert [chosen.step(action) for action in actions][-1][1] == solve


def test_names_of_folders() -> None:
    names = [folder_name(Task(one, "q")) for one in ("a-1", "a/1", "a 1", "..", "ä")]
    assert names[0] == "a-1"
    assert len(set(names)) == 5
    assert all(name.isascii() and "/" not in name and not name.startswith(".") for name in names)
