"""The checks of a dataset, on environments that fail in every way; and exclusion lists."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import intercode
from intercode import load_dataset
from intercode.envs.traits import detect_environment
from intercode.errors import RewardError, SandboxError, UsageError
from intercode.evaluate import evaluate, task_checks
from intercode.evaluate.task_checks import CHECKS, GARBAGE, GOLD, GOLD_REPEAT, NOOP, TrialResult
from intercode.evaluate.task_selection import ExcludedTasks, read_exclusion
from intercode.evaluate.validate import GoldRepeatDelay, ValidationResult, validate
from intercode.evaluate.verifier_exploits import NO_PROGRAM
from intercode.records import read_latest, read_manifest
from intercode.task import Dataset, Task
from intercode_sandbox.base import Limits
from sandbox import rootfs
from waiting import PATIENCE

from .fakes import Factory, dataset

TASKS = dataset(4)
BASH = Dataset(
    [
        Task("sound", "?", gold=("echo 1",)),
        Task("loose", "?", gold=("echo 42",)),
        Task("clock", "?", gold=("date +%N > /root/now; cat /root/now",), verification="true"),
        Task("late", "?", gold=("sleep 999",), verification="test -e /root/x",
             timeout=0.5),  # allow limit: its gold sleeps on, and scores nothing
        Task("slow", "?", gold=("sleep 0.7; touch x",), verification="test -e x", timeout=60.0),
        Task("unsolved", "?", verification="test -e x"),
        Task("mistake", "?", gold=("nothing-of-that-name",), verification="test -e x"),
        Task("idle", "?", gold=("true",)),
    ],
    "bash-tasks",
)  # fmt: skip


def texts(found: ValidationResult) -> dict[str, list[str]]:
    """Task → ``kind: problem`` of each."""
    problems: dict[str, list[str]] = {}
    for problem in found.problems:
        problems.setdefault(problem.task_id, []).append(f"{problem.kind}: {problem.problem}")
    return problems


def test_tricks_that_a_verification_lets_pass(tmp_path: Path) -> None:
    """It asks for a command, and would take any program; the other one is sound."""
    programs = f"{rootfs.PROGRAMS} bash chmod dirname grep"
    archive = rootfs.write(tmp_path / "root.tar", programs, {"usr/local/bin/.keep": ""})
    make = "printf '#!/bin/sh\\necho 3\\n' > /usr/local/bin/total; chmod +x /usr/local/bin/total"
    tasks = Dataset(
        [
            Task("any", "Make a command total.", gold=(make,), verification="total"),
            Task("sound", "Write 3 to out.", gold=("echo 3 > out",), verification="grep -qx 3 out"),
        ]
    )
    image = f"scratch+{archive}"
    found = validate(tasks, lambda: intercode.make("bash", data=tasks, image=image), timeout=10.0)
    assert texts(found) == {"any": ["free: programs of its names that exit with 0 scores 1.00"]}


def test_what_a_program_finds_beside_itself() -> None:
    make = "printf '#!/bin/sh\\nsort \"$1\"\\n' > sorted; chmod +x sorted"
    begin = "cd $(mktemp -d) && printf 'second\\nfirst\\n' > in && "
    wanted = "printf 'first\\nsecond\\n'"
    verifications = {
        "a file": f"{wanted} > want && /root/sorted in > out && cmp want out",
        "a variable": f'export want=$({wanted}) && [ "$(/root/sorted in)" = "$want" ]',
        "nothing": f'want=$({wanted}) && [ "$(/root/sorted in)" = "$want" ]',
        "its input": "sort -o in in && /root/sorted in | cmp in",
    }
    tasks = Dataset(
        [Task(name, "?", gold=(make,), verification=begin + v) for name, v in verifications.items()]
    )
    found = validate(tasks, lambda: intercode.make("bash", data=tasks), timeout=PATIENCE)
    problem = "free: a program that finds its output in a file scores 1.00"
    assert texts(found) == {"a file": [problem], "a variable": [problem]}


def test_a_printed_text_excuses_no_guess() -> None:
    """Only the last output of the trick that replaces programs says that it found no program."""
    guesses = task_checks.guesses("bash", [Task("t", "?", gold=("true",), verification="true")])
    by_name = {guess.name: guess for guess in guesses.values()}
    spy = by_name["a program that finds its output in a file"]
    assert not task_checks.must_fail(spy, ["", f"{NO_PROGRAM}\n"])
    assert task_checks.must_fail(spy, [NO_PROGRAM, ""])
    assert task_checks.must_fail(by_name["doing nothing"], ["", NO_PROGRAM])
    trial = TrialResult(
        *(1.0, None, None, "", ((1, ""), (2, NO_PROGRAM)), 0.0, 0.0),
        timed_out=False,
        guess=by_name["a wrong answer"],
    )
    problems = [problem for check in CHECKS for problem in check(TASKS[0], {GARBAGE: trial})]
    assert "free" in {problem.kind for problem in problems}


def test_alternative_solutions() -> None:
    tasks = Dataset(
        [
            Task("out", "Write 3 to out.", gold=("echo 3 > out",),
                 metadata={"alternatives": ["seq 3 3 > out", ["touch out", "echo 3 > out"]]}),
            Task("strict", "Write 3 to out.", gold=("echo 3 > out; echo x > /root/notes",),
                 metadata={"alternatives": ["echo 3 > out"]}),
        ]
    )  # fmt: skip
    found = validate(tasks, lambda: intercode.make("bash", data=tasks), timeout=10.0, workers=2)
    [(task_id, [problem])] = texts(found).items()
    assert task_id == "strict" and problem.startswith(
        "refused: alternative solution 1 scores 0.67 (missing: ['/root/notes']"
    )


def test_sound_tasks() -> None:
    found = validate(TASKS, Factory(TASKS), timeout=10.0, workers=2)
    assert found.valid and found.complete and found.reasons() == {}
    successes = [found.statistics[trial].successes for trial in (GOLD, GOLD_REPEAT, NOOP, GARBAGE)]
    assert successes == [4, 4, 0, 0]


@pytest.fixture(scope="module")
def of_bash() -> ValidationResult:
    """A hundredth of its limit makes a task slow: for one 0.6 seconds, a minute for the others."""
    limits = Limits(timeout=6000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_checks, "SLOW_SHARE", 0.01)
        return validate(
            BASH,
            lambda: intercode.make("bash", data=BASH, limits=limits),
            timeout=limits.timeout,
            workers=2,
        )


def test_what_is_wrong_with_real_tasks(of_bash: ValidationResult) -> None:
    found = texts(of_bash)
    assert "sound" not in found and "slow" not in found
    assert found["loose"] == ["free: a wrong answer scores 1.00"]
    free, also, varies = found["clock"]
    assert free == "free: doing nothing scores 1.00" and also.endswith("wrong answer scores 1.00")
    assert varies.startswith("varies: gold's observation in turn 1 differs from run to run: '")
    assert found["idle"] == [
        "free: true scores 1.00: gold prints nothing and changes nothing that is scored"
    ]
    assert found["late"][0].startswith("gold: gold scores 0.00, it ran into the time limit")
    assert found["unsolved"] == ["gold: it has no gold, so no solution is known"]
    assert found["mistake"][0].startswith("gold: gold scores 0.00")
    assert not of_bash.valid
    assert of_bash.reasons()["clock"].count("; ") == 2


def test_what_a_constant_prints_may_be_right_by_chance(of_bash: ValidationResult) -> None:
    (doubt,) = of_bash.doubts
    assert (doubt.task_id, doubt.kind) == ("sound", "constant")
    assert doubt.problem == "echo 1 scores 1.00: a constant, perhaps by chance"
    assert of_bash.constants == {"true": 2, "echo 0": 1, "echo 1": 2, "echo 2": 1}, "clock: all"
    assert of_bash.solved_by_constants == 3


EVEN = "echo $(( $(date +%s) % 2 ))"
CLOCKS = Dataset(
    [
        Task("seconds", "?", gold=("date +%s",)),
        Task("even", "?", gold=(EVEN,)),
        Task("state", "?", gold=(f"{EVEN} > /root/even",)),
        Task("later", "?", gold=("touch /root/file",)),
    ]
)


def test_golds_that_vary_with_the_clock() -> None:
    def found() -> set[str]:
        result = validate(CLOCKS, lambda: intercode.make("bash", data=CLOCKS), timeout=PATIENCE)
        return {problem.task_id for problem in result.problems if problem.kind == "varies"}

    # On a machine so slow that gold misses its second, once more.
    assert any(found() == {"seconds", "even", "state"} for _ in range(3))


class Hands:
    """A clock that is moved by whoever waits for it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.floats(1e9, 2e9), st.floats(0, 100), st.booleans())
def test_gold_begins_an_odd_number_of_seconds_later(
    start: float, between: float, backwards: bool
) -> None:
    hands = Hands(start)
    clock = GoldRepeatDelay(hands, hands.sleep)
    begun = []
    for trial in (GOLD_REPEAT, GOLD) if backwards else (GOLD, GOLD_REPEAT):
        before = hands.now
        assert clock.wait("one", trial) == hands.now - before < 2.4
        assert hands.now % 1 <= GoldRepeatDelay.LATEST_START
        begun.append(int(hands.now))
        hands.now += between
    assert (begun[1] - begun[0]) % 2 == 1
    before = hands.now
    clock.wait("another", GOLD_REPEAT)
    assert hands.now - before < 0.4, "another task's"


def test_what_is_slow(of_bash: ValidationResult) -> None:
    slow = {found.task_id: found for found in of_bash.slow_tasks}
    assert set(slow) == {"late", "slow"}
    assert slow["slow"].limit == 60.0
    assert slow["slow"].suggested_timeout >= 70.0


def test_episodes_without_a_score() -> None:
    calls: dict[str, int] = {}

    def fail(task_id: str, action: str) -> Exception | None:
        calls[task_id] = calls.get(task_id, 0) + (action == "submit")
        if task_id == "t1" and action == "submit" and calls["t1"] == 2:
            return RewardError("the second time it breaks")
        if task_id == "t2" and action == "reset":
            return SandboxError("it never starts")
        if task_id == "t3" and action == "echo 42":
            return RewardError("not that")
        return None

    found = texts(validate(TASKS, Factory(TASKS, fail=fail), timeout=10.0))
    assert "t0" not in found
    assert found["t1"] == ["error: gold cannot be scored: the second time it breaks"]
    assert found["t2"] == ["error: gold cannot be scored: it never starts"]
    assert found["t3"] == ["error: a wrong answer cannot be scored: not that"]


def test_rewards_that_vary() -> None:
    trials = {
        number: TrialResult(reward, None, None, "", ((1, "x"),), 0.0, 0.0, timed_out=False)
        for number, reward in enumerate((1.0, 0.5, 0.0, 0.0))
    }
    problems = [problem for check in CHECKS for problem in check(TASKS[0], trials)]
    assert [(problem.kind, problem.reward) for problem in problems] == [
        ("gold", 0.5),
        ("varies", 0.5),
    ]
    assert problems[1].problem == "gold scores 1.00, and an odd number of seconds later 0.50"
    tested = replace(TASKS[0], verification="true")
    [problem] = [p for check in CHECKS for p in check(tested, trials) if p.kind == "varies"]
    assert problem.problem == "gold scores 1.00, and the second time 0.50"


def test_tests_that_are_slow() -> None:
    """How long tests take is what doing nothing, which they fail, does not take."""
    slowest = 2.0
    trials = {
        number: TrialResult(reward, None, None, "", (), slowest, rest=rest, timed_out=False)
        for number, reward, rest in ((GOLD, 1.0, 40.0), (GOLD_REPEAT, 1.0, 37.0), (NOOP, 0.0, 3.0))
    }
    used = task_checks.usage(TASKS[0], trials, None)
    assert (used.seconds, used.suggested_timeout) == (34.0, 136.0)
    assert [found.limit for found in task_checks.find_slow_tasks(TASKS[0], used, 100.0)] == [100.0]
    assert list(task_checks.find_slow_tasks(TASKS[0], used, 136.0)) == []


def test_what_tests_take_is_no_actions_time(tmp_path: Path) -> None:
    tests = "import time\nassert one() == 1\ntime.sleep(0.7)"  # allow sleep: this is slow
    gold = "def one():\n    return 1"
    tasks = Dataset([Task("one", "?", gold=(gold,), tests=(tests,), timeout=PATIENCE)])
    evaluate(tasks, "oracle", lambda: intercode.make("python", data=tasks), out=tmp_path)
    (trial,) = read_latest(tmp_path, lambda episode: TrialResult.from_episode(episode, {})).values()
    assert trial.rest >= 0.7


@pytest.mark.parametrize(
    ("env", "task"),
    [
        ("python", Task("add", "?", gold=("def add(a, b):\n    return a + b",),
                        tests=("assert add(1, 2) == 3",))),
        ("python", Task("io", "?", gold=("print(input())",),
                        metadata={"stdio": [{"stdin": "x", "stdout": "x"}]})),
        ("ctf", Task("flag", "?", gold=("flag{1}",))),
    ],
)  # fmt: skip
def test_each_environment_has_a_wrong_answer_of_its_own(env: str, task: Task) -> None:
    tasks = Dataset([task])
    found = validate(tasks, lambda: intercode.make(env, data=tasks), timeout=10.0)
    assert found.valid, found.problems
    assert found.statistics[GARBAGE].mean_turns == 1.0


STORE = """
CREATE TABLE item (id INTEGER, name TEXT);
INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c');
"""


def test_sql_that_can_be_answered_without_looking(tmp_path: Path) -> None:
    (tmp_path / "store.sql").write_text(STORE)
    golds = {
        "count": "SELECT COUNT(*) FROM item",
        "fixed": "SELECT 1 + 2",
        "varies": "SELECT strftime('%s', 'now')",
        "none": "SELECT name FROM item WHERE id > 3",
    }
    tasks = [Task(name, "?", gold=(gold,), db="store") for name, gold in golds.items()]
    data = Dataset(tasks, databases=str(tmp_path))
    found = validate(data, lambda: intercode.make("sql", data=data), timeout=PATIENCE)
    problems = {task: said[-1] for task, said in texts(found).items()}
    assert problems.pop("varies").startswith("varies: gold scores")
    assert problems == {"fixed": "free: SELECT 3 scores 1.00"}
    assert [(doubt.task_id, doubt.kind) for doubt in found.doubts] == [("none", "empty")]
    assert found.constants["SELECT 3"] == found.solved_by_constants == 1
    assert len(found.constants) == 8 and sum(found.constants.values()) == 1


def test_python_that_needs_no_looking() -> None:
    tests = {
        "weak": ("def f(x):\n    return x > 0", "assert f(1) == True"),
        "objects": ("class C:\n    pass", "c = C()\nassert c == c and not c != c"),
        "alike": ("def f(x):\n    return x * x", "assert f(-3) == 9\nassert 9 == f(3)"),
        "sound": ("def f(x):\n    return x > 0", "assert f(1) and not f(0)"),
    }
    tasks = [Task(n, "?", gold=(g,), tests=(test,)) for n, (g, test) in tests.items()]
    stdio = {"stdio": [{"stdin": "b", "stdout": "b"}] * 2}
    tasks.append(Task("printed", "?", gold=("print(input())",), metadata=stdio))
    data = Dataset(tasks)
    found = validate(data, lambda: intercode.make("python", data=data), timeout=PATIENCE)
    assert "free: True scores 1.00" in texts(found)["weak"]
    doubts = {doubt.task_id: doubt.problem for doubt in found.doubts}
    assert {"alike", "printed"} <= doubts.keys() and "sound" not in doubts
    assert doubts["alike"].startswith("what the first test expects scores 1.00: a constant")
    assert "free: an object equal to all scores 1.00" in texts(found)["objects"]
    assert "sound" not in found.reasons() and found.solved_by_constants == 4


def test_a_repository_s_tests_without_twins() -> None:
    data = load_dataset("swe").filter(lambda task: task.task_id == "swe-snapkeep")
    found = validate(data, lambda: intercode.make("swe", data=data), timeout=PATIENCE)
    [doubt] = found.doubts
    assert doubt.kind == "twin" and doubt.problem.startswith("a test has no twin")
    assert found.valid and found.constants == {}


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ("bash", {"gold": "ls"}),
        ("bash", {}),
        ("sql", {"gold": "SELECT 1", "db": "shop"}),
        ("python", {"gold": "x", "tests": ["assert x"]}),
        ("python", {"stdio": [{"stdin": "", "stdout": ""}]}),
        ("ctf", {"gold": "picoCTF{abc_1}"}),
        ("ctf", {"gold": "1234", "service": {}}),
        ("swe", {"gold": "diff", "base_commit": "abc", "tests": []}),
    ],
)
def test_which_environment_tasks_are_for(env: str, fields: dict[str, Any]) -> None:
    assert detect_environment([Task.from_dict({"task_id": "a", "query": "?", **fields})]) == env


# -- exclusion lists -------------------------------------------------------------------------------


def test_a_run_leaves_tasks_out(tmp_path: Path) -> None:
    exclude = {"t1": "broken", "t3": "free"}
    factory = Factory(TASKS)
    result = evaluate(TASKS, "oracle", factory, exclude=exclude, out=tmp_path, limit=1)
    assert [outcome.task_id for outcome in result.outcomes] == ["t0"]
    assert evaluate(TASKS, "oracle", factory, exclude=exclude, out=tmp_path).planned == 2
    assert read_manifest(tmp_path)["excluded"] == exclude
    with pytest.raises(UsageError, match="are excluded"):
        evaluate(TASKS, "oracle", factory, tasks=["t1"], exclude=exclude)


def test_a_list_is_written_and_read(tmp_path: Path) -> None:
    made = ExcludedTasks.from_tasks(TASKS, {"t1": "why; ünd"})
    made.write(tmp_path / "list.json")
    again = read_exclusion(tmp_path / "list.json")
    assert again == made and again.check(TASKS) == ""
    assert again.intercode == intercode.__version__ and again.date.endswith("Z")
    assert "validate it again" in again.check(dataset(5))
    with pytest.raises(UsageError, match=r"tasks that are not in fake: t1$"):
        again.check(dataset(1))


def test_a_list_by_hand(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\n# a comment\nt1   it is broken \r\n  t2\n")
    found = read_exclusion(tmp_path / "list")
    assert found.tasks == {"t1": "it is broken", "t2": "no reason given"}
    assert found.check(TASKS) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"format": 2, "tasks": {}}', "format 2"),
        ('{"tasks": ["t1"]}', "'tasks' must be an object"),
        ('{"tasks": {"t1": 1}}', "'tasks' must be an object"),
        ('{"tasks": {}, "digest": 7}', "'digest' must be text"),
        ("t1 a\nt1 b", "line 2: 't1' is listed twice"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_malformed_lists_are_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "list").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        read_exclusion(tmp_path / "list")


@given(st.dictionaries(st.text(min_size=1), st.text()), st.text())
def test_any_list_survives(tmp_path_factory: Any, tasks: dict[str, str], text: str) -> None:
    path = tmp_path_factory.mktemp("lists") / "list.json"
    made = ExcludedTasks.from_tasks(TASKS, tasks)
    made.write(path)
    assert read_exclusion(path) == made
    assert json.loads(path.read_text())["tasks"] == tasks
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(UsageError):  # and no other error
        read_exclusion(path)


FAILING = {
    "beside an answer": (Task("t", "?", ("echo 1; lss",)), "gold ends with exit code 127"),
    "hidden": (Task("t", "?", ("touch x; nosuch 2> /dev/null",)), "gold ends with exit code 127"),
    "missing file": (Task("t", "?", ("cat /none",)), "an error message is part of gold's output"),
    "syntax": (Task("t", "?", ("for i in 1 2; do echo $i",)), "an error message is part"),
    "in a pipe": (Task("t", "?", ("cat /none | wc -l",)), "an error message is part of gold's"),
    "own words": (Task("t", "?", ("echo it is bad >&2; exit 3",)), "gold ends with exit code 3"),
    "silent": (Task("t", "?", ("exit 3",)), "gold ends with exit code 3"),
    "silent work": (Task("t", "?", ("touch x; exit 3",)), "gold ends with exit code 3"),
    "after an answer": (Task("t", "?", ("echo 1; exit 2",)), "gold ends with exit code 2"),
    "later": (Task("t", "?", ("x=/none; cat $x; echo 1",)), "an error message is part of gold's"),
    "setup": (Task("t", "?", ("echo 1",), setup="cp /none /b\necho"), "after a failure: line 1 "),
    "setup's function": (Task("t", "?", ("echo 1",), setup="f() { false; }\nf\ntrue"), "line 2 "),
    "setup's pipe": (Task("t", "?", ("echo 1",), setup="cat /none | sort > x\ntrue"), "line 1 "),
    "setup's and": (Task("t", "?", ("echo 1",), setup="cp /none x && true\ntrue"), "an error: cp"),
    "windows": (Task("t", "?", ("echo 1\r\necho 2",)), "lines of its gold end with a carriage"),
    "windows' setup": (Task("t", "?", ("echo 1",), setup="true\r\n:"), "line 1 "),
}


@pytest.mark.parametrize("name", FAILING)
def test_gold_and_setups_that_fail_are_doubts(name: str) -> None:
    task, text = FAILING[name]
    found = validate(
        Dataset([task]), lambda: intercode.make("bash", data=Dataset([task])), timeout=PATIENCE
    )
    assert any(text in doubt.problem for doubt in found.doubts), found.doubts


@pytest.mark.parametrize(
    ("gold", "code"),
    [("lss -l /", 127), ("SELECT 1", 127), ("touch x; ./x", 126), ("/", 126), ("cd /; a; b", 127)],
)
def test_gold_that_does_not_run_is_a_problem(gold: str, code: int) -> None:
    """Its error would be the answer, and gold would solve the task."""
    data = Dataset([Task("t", "?", (gold,))])
    found = validate(data, lambda: intercode.make("bash", data=data), timeout=PATIENCE)
    assert [problem.kind for problem in found.problems if problem.kind != "free"] == ["command"]
    assert found.reasons()["t"].partition(": bash: ")[0].endswith(f"ends with exit code {code}")
    assert not found.valid and not [doubt for doubt in found.doubts if doubt.kind == "fails"]


@pytest.mark.parametrize(
    "task",
    [
        Task("t", "?", ("diff <(echo a) <(echo b)",)),
        Task("t", "?", ("echo 'error: disk full'; echo 'cat: x: No such file or directory'",)),
        Task("t", "?", ("touch x; grep -q word x",)),
        Task("t", "?", ("cat /root; ls -d /root",)),  # beside a right answer
        Task("t", "?", ("echo 'warning: old' >&2; echo 1",)),
        Task("t", "?", ("touch x; set -o pipefail; yes | head -n 1",)),
        Task("t", "?", ("echo 1",), setup="yes | head -n 1 > x\nif false; then :; fi\n! true || :"),
        Task("t", "?", ("echo 1",), setup="echo note: new >&2; printf 'error: x' > log; cat log"),
    ],
    ids=lambda task: (task.setup or task.gold[0])[:20],
)
def test_gold_and_setups_that_do_not_fail(task: Task) -> None:
    found = validate(
        Dataset([task]), lambda: intercode.make("bash", data=Dataset([task])), timeout=PATIENCE
    )
    assert not [doubt for doubt in found.doubts if doubt.kind in ("fails", "setup", "windows")]
