"""APPS, on small folders and files of its authors' layout."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intercode.datasets import apps, load
from intercode.envs.python import PythonEnv
from intercode.errors import TaskError
from intercode.evaluate import evaluate
from intercode.task import Dataset, Task

from . import layouts

HALVES = """
def halves(n):
    return [float(n) / 2, int(sqrt(n))]
n = int(input())
if __name__ == '__main__':
    print(*halves(n))
"""
LONGEST = """
class Solution:
    def longest(self, words: List[str]) -> str:
        return max(words, key=len)
"""
PROBLEMS: dict[str, dict[str, Any]] = {
    "0000": {
        "question": "Print half of a number, and its root.",
        "input_output": {"inputs": ["4\n", "9", ["2"]], "outputs": ["2.0 2\n", "4.5 3", ["1 1"]]},
        "solutions": ["print input()", HALVES, HALVES + "\n", HALVES + "\n\n", HALVES + "#"],
        "difficulty": "interview",
    },
    "0001": {
        "question": "The longest of the words.",
        "input_output": {
            "fn_name": "longest",
            "inputs": [[["a", "bc"]], [["abc", "d"]]],
            "outputs": ["bc", ["abc"]],
        },
        "solutions": [LONGEST],
        "starter_code": "class Solution:\n    def longest(self, words: List[str]) -> str:\n",
        "difficulty": "introductory",
    },
    "0002": {
        "question": "Swap the keys and the values.",
        "input_output": {
            "fn_name": "swap",
            "inputs": [[{"1": 2}], [{"-3": 4}]],
            "outputs": [[{"2": 1}], {"4": -3}],
        },
        "solutions": ["def swap(d):\n    return {value: key for key, value in d.items()}"],
        "difficulty": "introductory",
    },
    "0003": {
        "question": "Unsolved.",
        "input_output": {"fn_name": "one", "inputs": [[]], "outputs": [[(1, 2)]]},
        "difficulty": "competition",
    },
}
UNUSABLE: dict[str, Any] = {
    "0010": "",
    "0011": "{",
    "0012": {"inputs": [], "outputs": []},
    "0013": {"inputs": ["1", "2"], "outputs": ["1"]},
    "0014": {"fn_name": "f", "inputs": ["1"], "outputs": ["1"]},
    "0015": '{"inputs": [NaN], "outputs": ["1"]}',
}


def folders(root: Path, problems: dict[str, dict[str, Any]], split: str = "test") -> Path:
    for number, problem in problems.items():
        place = root / "APPS" / split / number
        layouts.write(place / "solutions.json", problem.get("solutions", []))
        (place / "question.txt").write_text(problem["question"])
        value = problem["input_output"]
        (place / "input_output.json").write_text(
            value if isinstance(value, str) else json.dumps(value)
        )
        if "starter_code" in problem:
            (place / "starter_code.py").write_text(problem["starter_code"])
        facts = {"difficulty": problem.get("difficulty", "interview"), "url": "https://x"}
        layouts.write(place / "metadata.json", facts)
    return root


def lines(root: Path, problems: dict[str, dict[str, Any]]) -> Path:
    rows = []
    for number, problem in problems.items():
        texts = {key: json.dumps(problem.get(key, [])) for key in ("solutions", "input_output")}
        rows.append({"starter_code": "", **problem, **texts, "problem_id": int(number)})
    layouts.write_lines(root / "test.jsonl", rows)
    return root


def rewards(dataset: Dataset, agent: str) -> dict[str, float | None]:
    run = evaluate(dataset, agent, lambda: PythonEnv(dataset), workers=2)
    return {outcome.task_id: outcome.reward for outcome in run.outcomes}


@pytest.mark.parametrize("layout", [folders, lines])
def test_both_layouts(tmp_path: Path, layout: Any) -> None:
    dataset = apps.load(layout(tmp_path, PROBLEMS))
    assert [task.task_id for task in dataset] == list(PROBLEMS)
    assert dataset.name == "apps-test"
    assert dataset["0000"].gold == (HALVES, HALVES + "\n", HALVES + "\n\n"), "three in Python 3"
    assert dataset["0000"].metadata["stdio"][2] == {"stdin": "2", "stdout": "1 1"}
    assert "whole program" in dataset["0000"].query
    assert dataset["0001"].query.endswith(PROBLEMS["0001"]["starter_code"])
    assert dataset["0002"].query.endswith("Write the function swap.")
    assert [task.tags for task in dataset][2:] == [("introductory",), ("competition", "no-gold")]
    easy = apps.load(tmp_path, difficulty="introductory")
    assert [task.task_id for task in easy] == ["0001", "0002"]


def test_gold_solves_them_and_nothing_else_does(tmp_path: Path) -> None:
    dataset = apps.load(folders(tmp_path, PROBLEMS))
    solved = {"0000": 1.0, "0001": 1.0, "0002": 1.0, "0003": 0.0}
    assert rewards(dataset, "oracle") == solved
    assert rewards(dataset, "noop") == dict.fromkeys(PROBLEMS, 0.0)


def test_the_first_of_many_elements_is_not_the_answer(tmp_path: Path) -> None:
    facts = {"fn_name": "f", "inputs": [[[2, 1]], [[3]]], "outputs": [[1, 2], [3]]}
    dataset = apps.load(folders(tmp_path, {"0020": {"question": "q", "input_output": facts}}))
    assert dataset[0].tests == ("_gives(f([2, 1]), [1, 2])", "_gives(f([3]), [3], 3)")


def test_what_cannot_be_graded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = {number: {"question": "?", "input_output": v} for number, v in UNUSABLE.items()}
    folders(tmp_path, {**PROBLEMS, **broken})
    with caplog.at_level(logging.WARNING):
        assert len(apps.load(tmp_path)) == len(PROBLEMS)
    assert f"left out {len(UNUSABLE)} problems" in caplog.text
    assert "0010: it has no tests" in caplog.text and "0011: input_output is no" in caplog.text
    with pytest.raises(TaskError, match="cannot grade 6 problems"):
        apps.load(tmp_path, strict=True)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"looked for test\.jsonl; or test$"):
        load("apps", root=tmp_path)
    with pytest.raises(TaskError, match="no split 'dev'"):
        apps.load(tmp_path, "dev")
    (tmp_path / "test").mkdir()
    with pytest.raises(TaskError, match="no problem of APPS"):
        apps.load(tmp_path)
    layouts.write_lines(tmp_path / "train.jsonl", [{"problem_id": 1, "input_output": "{}"}])
    with pytest.raises(TaskError, match=r"train\.jsonl: row 1 .*'question'"):
        apps.load(tmp_path, "train")
    layouts.write_lines(tmp_path / "train.jsonl", [{"question": "?"}])
    with pytest.raises(TaskError, match="'problem_id' must be a number"):
        apps.load(tmp_path, "train")


# -- programs, by what they print ------------------------------------------------------------------

SUM = Task(
    "sum",
    "Add up.",
    metadata={
        "stdio": [
            {"stdin": "1 2\n3\n", "stdout": "6\n"},
            {"stdin": "4 6", "stdout": "10"},
            {"stdin": "4918270\n3", "stdout": "4918273"},
        ]
    },
)
PROGRAMS = {
    "input": "total = 0\ntry:\n    while True:\n        total += sum(map(int, input().split()))\n"
    "except EOFError:\n    print(total)",
    "read": "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit()",
    "buffer": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))\nexit(0)",
    "fast": "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).read\n"
    "print(sum(map(int, input().split())))",
    "at exit": "import atexit, io, sys\nsys.stdout = io.StringIO()\n"
    "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\n"
    "print(sum(map(int, open(0).read().split())))",
    "os._exit": "import os, sys\nprint(sum(map(int, sys.stdin.read().split())), flush=True)\n"
    "os._exit(0)",
    "a thread": "import sys, threading\ndef main():\n    print(total(sys.stdin))\n"
    "def total(file):\n    return sum(map(int, file.read().split()))\n"
    "if __name__ == '__main__':\n    sys.setrecursionlimit(10**6)\n"
    "    threading.stack_size(2**26)\n    threading.Thread(target=main).start()",
    "a program's": "import subprocess, sys\n"
    "subprocess.run(['awk', '{for (i = 1; i <= NF; i++) s += $i} END {print s}'])",
}
CHEATS = {
    "exit": "import sys\nsys.exit(0)",
    "everything": "print(*range(100), sep='\\n')\nprint(6, 10, 4918273)",
    "echo": "print(open(0).read())",
    "a crash": "print(sum(map(int, open(0).read().split())))\n1 / 0",
    "an exit code": "print(sum(map(int, open(0).read().split())))\nexit(1)",
    "a search": "import gc, glob, sys\n"
    "try:\n    for path in glob.glob('/proc/*/environ') + glob.glob('/[rtv]*/**'):\n"
    "        try:\n            if '\"stdout\"' in open(path).read(): print(open(path).read())\n"
    "        except (OSError, ValueError): pass\n"
    "    found = [x for x in gc.get_objects() if isinstance(x, dict) and 'stdout' in x]\n"
    "    print([x['stdout'] for x in found])\n"
    "finally:\n    print(sys._getframe().f_back and sys._getframe().f_back.f_locals.get('given'))",
    "a flood": "while True:\n    print('6' * 10**6)",
    "no end": "while True:\n    pass",
    "an answer by hand": "import os\nfor fd in range(3, 1024):\n    try: os.write(fd, bytes(9))\n"
    "    except OSError: pass",
}


@pytest.fixture(scope="module")
def env() -> Iterator[PythonEnv]:
    hasty = replace(SUM, task_id="hasty", timeout=0.3)  # allow limit: only for what has no end
    made = PythonEnv(Dataset([SUM, hasty], "sums"))
    yield made
    made.close()


def attempt(env: PythonEnv, *actions: str, submit: str = "submit", task_id: str = "sum") -> float:
    env.reset(options={"task_id": task_id})
    for action in actions:
        env.step(action)
    return env.step(submit)[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_read_and_print(env: PythonEnv, name: str) -> None:
    assert attempt(env, PROGRAMS[name]) == 1.0
    assert env.sandbox.processes() == []


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_scores_nothing(env: PythonEnv, name: str) -> None:
    assert attempt(env, CHEATS[name], task_id="hasty" if name == "no end" else "sum") == 0.0
    assert env.sandbox.processes() == []


def test_what_the_program_is(env: PythonEnv) -> None:
    define = "def solve():\n    print(sum(map(int, open(0).read().split())))"
    assert attempt(env) == 0.0, "nothing was submitted"
    assert attempt(env, define) == 0.0
    assert attempt(env, "print('noise')", define, "solve()") == 1.0, "what came before is no output"
    assert attempt(env, define, "print('a try')", submit="submit solve") == 1.0
    assert attempt(env, define, submit="submit print(6)") == 0.0
    assert attempt(env, "print(6)") == pytest.approx(1 / 3)
    why = env.episode.score.detail["failed"] if env.episode.score else {}
    assert why["1"] == r"it printed '6\n', not '10'"


def test_a_python_of_the_images() -> None:
    with_python = PythonEnv(Dataset([SUM], "sums"), python="python3")
    try:
        assert attempt(with_python, PROGRAMS["at exit"]) == 1.0
        assert attempt(with_python, CHEATS["exit"]) == 0.0
    finally:
        with_python.close()


@pytest.mark.parametrize("stdio", ["6", [{"stdin": "1"}], [["1", "2"]]])
def test_malformed_cases_are_refused(stdio: Any) -> None:
    with pytest.raises(TaskError, match="task 'x': 'stdio'"):
        PythonEnv(Dataset([Task("x", "?", metadata={"stdio": stdio})]))
    with pytest.raises(TaskError, match="choose one"):
        PythonEnv(Dataset([Task("x", "?", tests=("assert 1",), metadata=SUM.metadata)]))
