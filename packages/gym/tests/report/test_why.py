"""The reason of a reward in words, for every kind of reward."""

from __future__ import annotations

from typing import Any

import pytest

from intercode.episode import Episode, Score, Status, Turn
from intercode.report.reward_reasons import explain_reward

JUDGE = {"model": "openai/m", "same": False, "by_execution": 0.5}


def reasons(
    parts: dict[str, float],
    detail: dict[str, Any],
    *,
    value: float = 0.0,
    status: Status = "submitted",
    answer: str | None = None,
) -> str:
    score = Score(value, parts, detail)
    episode = Episode("t", "q", "bash", turns=[Turn("ls", "")], status=status, score=score)
    episode.answer = answer
    return "\n".join(f"{sentence} {text}".strip() for sentence, text in explain_reward(episode))


@pytest.mark.parametrize(
    ("parts", "detail", "told"),
    [
        (  # Bash, its files and its output
            {"files": 0.0, "output": 0.2},
            {
                "missing": ["/a", "/b"],
                "different": [],
                "extra": [f"/{n}" for n in range(20)],
                "output": "7\n",
                "gold_output": "8\n",
            },
            "the last output is: 7\n|gold's output is: 8\n|"
            "not changed, though gold changes them (2): /a\n/b|"
            "changed, though gold does not change them (20 or more): /0\n",
        ),
        (  # Bash without an action
            {"output": 0.0},
            {"missing": [], "different": [], "extra": [], "output": None, "gold_output": "8"},
            "there is no action with an output to compare|gold's output is: 8",
        ),
        (  # SQL, a result
            {"execution_accuracy": 0.0, "overlap": 0.5},
            {
                "gold_rows": [["a", 1], ["b", 2]],
                "answer_rows": [["b", 2], ["c", None]],
                "answer": "SELECT 1",
                "reason": "1 row is missing, 1 row is extra",
            },
            "1 row is missing, 1 row is extra|the answer that was scored: SELECT 1|"
            'rows of gold that the answer lacks (1): ["a", 1]|'
            'rows of the answer that gold lacks (1): ["c", null]',
        ),
        (  # SQL, a result with the same rows in another order
            {"execution_accuracy": 0.0, "overlap": 1.0},
            {"gold_rows": [[1], [2]], "answer_rows": [[2], [1]], "hard_coded": True},
            "the answer reads no table, though gold reads one|"
            "rows of gold (2): [1]\n[2]|rows of the answer (2): [2]\n[1]",
        ),
        ({"tables": 0.5, "overlap": 0.1}, {"reason": "table a: 1 row"}, "table a: 1 row"),
        ({"ex": 0.0}, {}, "the answer's rows are not gold's"),
        ({"databases": 0.5}, {"differing": ["x.sqlite"]}, "rows are not gold's (1): x.sqlite"),
        (  # Python
            {"tests": 0.5},
            {"failed": {"1": "NameError: name 'f' is not defined", "3": "it is 2"}},
            "2 of 4 tests fail, counted from 0: test 1: NameError: name 'f' is not defined\n"
            "test 3: it is 2",
        ),
        (  # CTF
            {"flag": 0.0, "subtasks": 0.5},
            {"subtasks": ["key"]},
            "no flag was submitted|subtasks solved: 1 of 2: key",
        ),
        (  # SWE
            {"fail_to_pass": 0.25, "pass_to_pass": 1.0},
            {"failed": ["tests.a"], "left_out": ["/x"], "output": "boom"},
            "of the tests that are to be fixed, 25 % pass|of the tests that passed before, 100 %|"
            "the tests printed: boom|tests that do not pass (1): tests.a|/x",
        ),
        (  # a command
            {"verification": 0.0},
            {"exit_code": 3, "timed_out": False, "output": "no such file"},
            "the verification ended with exit code 3; its output: no such file",
        ),
        (
            {"verification": 0.0},
            {"exit_code": -9, "timed_out": True, "output": ""},
            "the verification exceeded its time limit",
        ),
        (
            {"verification": 0.0},
            {"reason": "these files decide", "tampered": ["/etc/ld.so.preload"]},
            "these files decide|to blame (1): /etc/ld.so.preload",
        ),
        (  # a judge
            {"output": 0.2},
            {"judge": {**JUDGE, "golds": [{"same": False, "votes": [["same", "different"]] * 3}]}},
            "the judge openai/m: 0 of 3 votes say 'the same answer'",
        ),
        (
            {"output": 0.2},
            {"judge": {**JUDGE, "golds": [{"same": False, "not_asked": "nothing printed"}]}},
            "the judge openai/m was not called: nothing printed",
        ),
        (  # a reader's own
            {"mine": 0.0},
            {"hint": "try again", "counts": {"a": 1}},
            'hint: try again|counts: {"a": 1}',
        ),
        ({}, {"ended": "it killed its shell"}, "the agent's code killed its sandbox: it killed"),
        ({"mine": 0.3}, {}, "the reward gives no reason"),
    ],
)
def test_the_reason_in_words(parts: dict[str, float], detail: dict[str, Any], told: str) -> None:
    found = reasons(parts, detail)
    for part in told.split("|"):
        assert part in found


def test_what_decides_alone() -> None:
    assert reasons({"flag": 0.0}, {}, answer="x") == "'x' is not the flag"
    assert reasons({}, {}, status="skipped") == "the agent gave up: the reward is 0"
    assert reasons({"files": 1.0}, {"missing": []}, value=1.0) == ""
    assert explain_reward(Episode("t", "q", "bash", status="error")) == []
