"""The reason of a reward, in words, from the detail of its score. It may quote gold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from intercode.episode import ENDED, Episode, Score


class Reason(NamedTuple):
    """A sentence, and the text that it introduces, which may have many lines."""

    sentence: str
    text: str = ""


_FIRST = 20
"""The number of entries that rewards quote of a list: then there may be more."""
_LISTS = {
    "missing": "not changed, though gold changes them",
    "different": "changed, but not as gold changes them",
    "extra": "changed, though gold does not change them",
    "tampered": "to blame",
    "as_before": "put back for the second try",
    "failed": "tests that do not pass",
    "left_out": "changes that the tests' sandbox was not given",
    "suspect": "changes that look like an attempt at the tests",
    "without_twin": "tests for which no counterpart that must fail was found",
    "differing": "databases of the suite on which the rows are not gold's",
}
"""Key of a detail with a list → the sentence about its entries."""
_TEXTS = {
    "reason": "{}",
    "note": "note: {}",
    "columns": "the answer's columns are {}",
    "hard_coded": "the answer reads no table, though gold reads one",
    ENDED: "the agent's code ended its sandbox: {}",
}
"""Key of a detail with a short value → the sentence."""
_PARTS = {
    "ex": "the answer's rows are not gold's (execution accuracy as BIRD computes it)",
    "soft_f1": "the cells of the answer are not all gold's (BIRD's soft F1)",
    "time_ratio": "the answer's rows are not gold's, or took longer (BIRD's R-VES)",
}
"""Part of a score whose reward gives no detail → the sentence."""


def why(episode: Episode) -> list[Reason]:
    """List the reasons why the reward of an episode is below 1.0; empty without a reward."""
    score = episode.score
    if score is None or episode.success:
        return []
    if episode.status == "skipped":
        return [Reason("the agent gave up, which is worth 0")]
    detail = dict(score.detail)
    found = [Reason(text.format(detail[name])) for name, text in _TEXTS.items() if detail.get(name)]
    found += [*_tests(detail, score), *_flag(detail, score, episode), *_verification(detail, score)]
    found += [*_outputs(detail, score), *_rows(detail), *_judge(detail), *_others(detail)]
    if not found:
        found = [Reason(text) for name, text in _PARTS.items() if name in score.parts]
    return found or [Reason("the reward gives no reason")]


def _tests(detail: dict[str, Any], score: Score) -> Iterator[Reason]:
    """Yield the failing tests of a Python task: number → what went wrong."""
    if isinstance(failed := detail.get("failed"), Mapping):
        del detail["failed"]
        share = score.parts.get("tests", 0.0)
        of = round(len(failed) / (1 - share)) if share < 1 else len(failed)
        texts = [f"test {name}: {text}" for name, text in failed.items()]
        yield Reason(f"{len(failed)} of {of} tests fail, counted from 0:", "\n".join(texts))


def _flag(detail: dict[str, Any], score: Score, episode: Episode) -> Iterator[Reason]:
    if "flag" not in score.parts:
        return
    said = episode.answer
    yield Reason("no flag was submitted" if said is None else f"{said!r} is not the flag")
    solved, share = detail.pop("subtasks", None) or [], score.parts.get("subtasks")
    if share is not None:
        of = f" of {round(len(solved) / share)}" if share else ""
        names = f": {', '.join(map(str, solved))}" if solved else ""
        yield Reason(f"subtasks solved: {len(solved)}{of}{names}")


def _verification(detail: dict[str, Any], score: Score) -> Iterator[Reason]:
    """Yield what the task's verification, or the tests of a repository, said."""
    code, late = detail.pop("exit_code", None), detail.pop("timed_out", False)
    if "gold_output" in detail or not {"verification", "fail_to_pass"} & score.parts.keys():
        return
    for name, what in (("fail_to_pass", "are to be fixed"), ("pass_to_pass", "passed before")):
        if name in score.parts:
            yield Reason(f"of the tests that {what}, {100 * score.parts[name]:.0f} % pass")
    output = str(detail.pop("output", "") or "")
    if late:
        yield Reason("the verification did not end within the time limit; it printed:", output)
    elif code is not None:
        yield Reason(f"the verification ended with exit code {code}; it printed:", output)
    elif output:
        yield Reason("the tests printed:", output)


def _outputs(detail: dict[str, Any], score: Score) -> Iterator[Reason]:
    """Yield the two outputs of a Bash episode where they differ."""
    if "gold_output" not in detail:
        return
    said, wanted = detail.pop("output", None), str(detail.pop("gold_output"))
    if "output" not in score.parts:  # it was not compared
        return
    if said is None:
        yield Reason("there was no action whose output could be compared")
    else:
        yield Reason("the last output is" + (":" if said else " empty"), str(said))
    yield Reason("gold's output is" + (":" if wanted else " empty"), wanted)


def _rows(detail: dict[str, Any]) -> Iterator[Reason]:
    """Yield the rows that differ, if all of them are recorded, else the first of both results."""
    wanted, given = detail.pop("gold_rows", None), detail.pop("answer_rows", None)
    if answer := detail.pop("answer", None):
        yield Reason("the answer that was scored:", str(answer))
    if not isinstance(wanted, list):
        return
    ours = [json.dumps(row, ensure_ascii=False) for row in wanted]
    theirs = [json.dumps(row, ensure_ascii=False) for row in given or ()]
    missing, extra = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    whole = max(len(ours), len(theirs)) < _FIRST
    if given is not None and whole and (missing or extra):
        yield from _listed("rows of gold that the answer lacks", [*missing.elements()])
        yield from _listed("rows of the answer that gold lacks", [*extra.elements()])
        return
    yield from _listed("rows of gold", ours)
    if given is not None:
        yield from _listed("rows of the answer", theirs)


def _judge(detail: dict[str, Any]) -> Iterator[Reason]:
    judged = detail.pop("judge", None)
    if not isinstance(judged, Mapping):
        return
    model = judged.get("model")
    for one in judged.get("golds", ()):
        votes = one.get("votes", [])
        if "not_asked" in one:
            yield Reason(f"the judge {model} was not asked: {one['not_asked']}")
        elif "control" in one and not one.get("same"):
            yield Reason(f"the judge {model} took a decoy for the output, and was not believed")
        else:
            same = votes.count(["same", "same"])
            yield Reason(f"the judge {model}: {same} of {len(votes)} votes say 'the same answer'")


def _others(detail: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield all lists, and whatever a reward of a user's has noted."""
    for name, value in detail.items():
        if value in ([], {}) or name in _TEXTS:
            continue
        if isinstance(value, list) and name in _LISTS:
            yield from _listed(_LISTS[name], [str(one) for one in value])
        else:
            yield Reason(f"{name}:", value if isinstance(value, str) else _json(value))


def _listed(sentence: str, entries: Sequence[str]) -> Iterator[Reason]:
    if entries:
        more = " or more" if len(entries) == _FIRST else ""
        yield Reason(f"{sentence} ({len(entries)}{more}):", "\n".join(entries))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
