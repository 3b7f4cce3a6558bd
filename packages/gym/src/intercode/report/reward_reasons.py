"""The reasons for a reward below 1.0 in words, derived from the `detail` of a score.

The words may quote gold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from intercode.episode import ENDED, Episode, Score


class RewardReason(NamedTuple):
    """A reason: a sentence, and a text of any number of lines that the sentence introduces."""

    sentence: str
    text: str = ""


MAX_QUOTED_ENTRIES = 20
"""The maximum number of a list's entries that a reward records. A recorded list of this length may
therefore be incomplete."""
_LISTS = {
    "missing": "not changed, though gold changes them",
    "different": "changed, but not as gold changes them",
    "extra": "changed, though gold does not change them",
    "tampered": "to blame",
    "as_before": "restored for the second try",
    "failed": "tests that do not pass",
    "left_out": "changes that are not in the tests' sandbox",
    "suspect": "changes that look like an attempt at the tests",
    "without_twin": "tests without a twin (a counterpart that must fail)",
    "differing": "databases of the suite on which the rows are not gold's",
}
"""Key in a score's detail whose value is a list → sentence about the entries of the list."""
_TEXTS = {
    "reason": "{}",
    "note": "note: {}",
    "columns": "the answer's columns are {}",
    "hard_coded": "the answer reads no table, though gold reads one",
    ENDED: "the agent's code killed its sandbox: {}",
}
"""Key in a score's detail with a short value → sentence about the value."""
_PARTS = {
    "ex": "the answer's rows are not gold's (execution accuracy as BIRD computes it)",
    "soft_f1": "the cells of the answer are not all gold's (BIRD's soft F1)",
    "time_ratio": "the answer's rows are not gold's, or took longer (BIRD's R-VES)",
}
"""Name of a score's part → sentence about it, for rewards that record no detail."""


def explain_reward(episode: Episode, *, has_pairs: bool = False) -> list[RewardReason]:
    """Return the reasons for an episode's reward below 1.0.

    The list is empty if the episode has no reward, or if the reward is 1.0. A detail may have any
    form, because rewards of users write it and a run folder may come from a stranger. A detail of
    an unknown form has a reason without facts.

    Args:
        episode: The episode.
        has_pairs: Whether the reader also has `intercode.report.answer_pairs.answer_pairs`. Then
            the reasons omit the outputs and rows in these pairs.
    """
    if episode.score is None or episode.success:
        return []
    if episode.status == "skipped":
        return [RewardReason("the agent gave up: the reward is 0")]
    try:
        return _reasons(episode, episode.score, has_pairs)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return [RewardReason("the detail of the score has an unknown form")]


def _reasons(episode: Episode, score: Score, has_pairs: bool) -> list[RewardReason]:
    detail = dict(score.detail)
    reasons = [
        RewardReason(text.format(detail[name])) for name, text in _TEXTS.items() if detail.get(name)
    ]
    reasons += [
        *_tests(detail, score),
        *_flag(detail, score, episode),
        *_verification(detail, score),
    ]
    paired_reasons = [*_outputs(detail, score), *_rows(detail)]
    reasons += [] if has_pairs else paired_reasons
    reasons += [*_judge(detail), *_remaining_reasons(detail)]
    if not reasons and not (has_pairs and paired_reasons):
        reasons = [RewardReason(text) for name, text in _PARTS.items() if name in score.parts]
        reasons = reasons or [RewardReason("the reward gives no reason")]
    return reasons


def _tests(detail: dict[str, Any], score: Score) -> Iterator[RewardReason]:
    """Yield the reason of a Python task: the numbers and errors of the tests that fail."""
    if isinstance(failed_tests := detail.get("failed"), Mapping):
        del detail["failed"]
        share = score.parts.get("tests", 0.0)
        test_count = round(len(failed_tests) / (1 - share)) if share < 1 else len(failed_tests)
        texts = [f"test {name}: {text}" for name, text in failed_tests.items()]
        yield RewardReason(
            f"{len(failed_tests)} of {test_count} tests fail, counted from 0:", "\n".join(texts)
        )


def _flag(detail: dict[str, Any], score: Score, episode: Episode) -> Iterator[RewardReason]:
    if "flag" not in score.parts:
        return
    answer = episode.answer
    yield RewardReason("no flag was submitted" if answer is None else f"{answer!r} is not the flag")
    solved_subtasks, share = detail.pop("subtasks", None) or [], score.parts.get("subtasks")
    if share is not None:
        total_text = f" of {round(len(solved_subtasks) / share)}" if share else ""
        names = f": {', '.join(map(str, solved_subtasks))}" if solved_subtasks else ""
        yield RewardReason(f"subtasks solved: {len(solved_subtasks)}{total_text}{names}")


def _verification(detail: dict[str, Any], score: Score) -> Iterator[RewardReason]:
    """Yield the result and the output of a task's verification, or of a repository's tests."""
    code, has_timeout = detail.pop("exit_code", None), detail.pop("timed_out", False)
    if "gold_output" in detail or not {"verification", "fail_to_pass"} & score.parts.keys():
        return
    for name, clause in (("fail_to_pass", "are to be fixed"), ("pass_to_pass", "passed before")):
        if name in score.parts:
            yield RewardReason(f"of the tests that {clause}, {100 * score.parts[name]:.0f} % pass")
    output = str(detail.pop("output", "") or "")
    if has_timeout:
        yield RewardReason("the verification exceeded its time limit; its output:", output)
    elif code is not None:
        yield RewardReason(f"the verification ended with exit code {code}; its output:", output)
    elif output:
        yield RewardReason("the tests printed:", output)


def _outputs(detail: dict[str, Any], score: Score) -> Iterator[RewardReason]:
    """Yield the outputs of the agent and of gold, for a reward that compared outputs."""
    if "gold_output" not in detail:
        return
    last_output, gold_output = detail.pop("output", None), str(detail.pop("gold_output"))
    if "output" not in score.parts:  # the reward did not compare outputs
        return
    if last_output is None:
        yield RewardReason("there is no action with an output to compare")
    else:
        yield RewardReason(
            "the last output is" + (":" if last_output else " empty"), str(last_output)
        )
    yield RewardReason("gold's output is" + (":" if gold_output else " empty"), gold_output)


def _rows(detail: dict[str, Any]) -> Iterator[RewardReason]:
    """Yield rows of an SQL answer and of gold.

    If all rows are recorded, only the rows that differ are quoted. Otherwise the recorded rows of
    both results are quoted.
    """
    gold_rows, answer_rows = detail.pop("gold_rows", None), detail.pop("answer_rows", None)
    if answer := detail.pop("answer", None):
        yield RewardReason("the answer that was scored:", str(answer))
    if not isinstance(gold_rows, list):
        return
    gold_texts = [json.dumps(row, ensure_ascii=False) for row in gold_rows]
    answer_texts = [json.dumps(row, ensure_ascii=False) for row in answer_rows or ()]
    missing_rows, extra_rows = (
        Counter(gold_texts) - Counter(answer_texts),
        Counter(answer_texts) - Counter(gold_texts),
    )
    is_complete = max(len(gold_texts), len(answer_texts)) < MAX_QUOTED_ENTRIES
    if answer_rows is not None and is_complete and (missing_rows or extra_rows):
        yield from _quote_entries("rows of gold that the answer lacks", [*missing_rows.elements()])
        yield from _quote_entries("rows of the answer that gold lacks", [*extra_rows.elements()])
        return
    yield from _quote_entries("rows of gold", gold_texts)
    if answer_rows is not None:
        yield from _quote_entries("rows of the answer", answer_texts)


def _judge(detail: dict[str, Any]) -> Iterator[RewardReason]:
    judgement = detail.pop("judge", None)
    if not isinstance(judgement, Mapping):
        return
    model = judgement.get("model")
    for gold_judgement in judgement.get("golds", ()):
        votes = gold_judgement.get("votes", [])
        if "not_asked" in gold_judgement:
            yield RewardReason(f"the judge {model} was not called: {gold_judgement['not_asked']}")
        elif "control" in gold_judgement and not gold_judgement.get("same"):
            yield RewardReason(
                f"the judge {model} accepted a decoy as equal, so its votes do not count"
            )
        else:
            agreement_count = votes.count(["same", "same"])
            yield RewardReason(
                f"the judge {model}: {agreement_count} of {len(votes)} votes say 'the same answer'"
            )


def _remaining_reasons(detail: Mapping[str, Any]) -> Iterator[RewardReason]:
    """Yield the reasons for all other entries of a score's detail: lists, and custom entries."""
    for name, value in detail.items():
        if value in ([], {}) or name in _TEXTS:
            continue
        if isinstance(value, list) and name in _LISTS:
            yield from _quote_entries(_LISTS[name], [str(entry) for entry in value])
        else:
            yield RewardReason(f"{name}:", value if isinstance(value, str) else _json(value))


def _quote_entries(sentence: str, entries: Sequence[str]) -> Iterator[RewardReason]:
    if entries:
        suffix = " or more" if len(entries) == MAX_QUOTED_ENTRIES else ""
        yield RewardReason(f"{sentence} ({len(entries)}{suffix}):", "\n".join(entries))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
