"""The linter of docstrings: what each rule refuses, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lemminflect", reason="of the packages for `make lint`")

import docstrings
from docstrings import Finding, check, main

FUNCTION = 'def f() -> {}:\n    """{}"""'
OPENINGS = {
    FUNCTION.format("int", "The number of tasks."): "The",
    FUNCTION.format("int", "Name of the task."): "Name",
    FUNCTION.format("int", "Returns the name."): "Returns",
    FUNCTION.format("int", "Whether a task is solved."): "Whether",
    'class Factory:\n    """Makes agents."""': "Makes",
    'class Factory:\n    """See `Agent`."""': "See",
    'class Pool:\n    """Everything that is idle."""': "Everything",
    '"""Asked for by clients."""': "Asked",
    '"""Run an agent over tasks."""': "Run",
    'SIZE = 1\n"""Of the file, in bytes."""': "Of",
    'SIZE = 1\n"""How a file is read."""': "How",
    'SIZE = 1\n"""The rest."""': "The",
}
FINE_OPENINGS = [
    FUNCTION.format("int", "Return the number of tasks."),
    FUNCTION.format("int", "Lazily import a module."),
    FUNCTION.format("int", "Rescore a run."),
    FUNCTION.format("bool", "Tell whether a task is solved."),
    FUNCTION.format("bool", "Whether a task is solved."),
    FUNCTION.format("Iterator[str]", "Names of the tasks."),
    "class A:\n    @property\n    def name(self) -> str:\n" + '        """The name."""',
    'class Factory:\n    """Factory of agents."""',
    'class Run:\n    """Runs of named tests, each with its report."""',
    'class Pool:\n    """Idle sandboxes by key."""',
    '"""Recorded requests."""',
    '"""Inspect AI: tasks for its agents."""',
    '"""Run an agent over tasks."""\ndef configure(parser): ...',
    'SIZE = 1\n"""Whether a file is read."""',
    'SIZE = 1\n"""How many files are read."""',
    'SIZE: int | None = None\n"""None: the file has no limit."""',
    'read: Callable[[], str]\n"""Returns the text of a file."""',
    'SIZE = 1\n"""Name → the function with this name."""',
]
SUBJECTS = {
    "It is closed.": "It",
    "That cannot be read.": "That",
    "One that fails ends the process.": "One",
    "None has a name.": "None",
    "Such are left out.": "Such",
    "What remains is removed.": "What",
    "Who asks gets a reply.": "Who",
    "This also reads the file.": "This",
    "These are left out.": "These",
    "Those without a name are left out.": "Those",
    "There is no task.": "There",
    "Here is the end.": "Here",
}
FINE_SUBJECTS = [
    "The file is closed.",
    "This file is closed.",
    "One results file is read.",
    "One of the files is read.",
    "None means no limit.",
    "That is, no file is read.",
    "Such a file is read.",
    "`None` is no limit.",
    "What is read?",
]
PHRASES = {
    "A process holds some hundred sandboxes.": "some hundred",
    "The agent is told the reason.": "is told",
    "The agent hands its work in.": "hands its work in",
    "The runs alternate in turns.": "in turns",
    "A tool, as `ls`, is run.": "tool, as `…`",
    "The file is locked, so that nothing changes.": "locked, so that",
    "The file is read also if nothing changes.": "also if",
    "The agent has a sandbox of its own.": "of its own",
    "The seat is closed.": "seat",
    "The workplace is closed.": "workplace",
}
FINE_PHRASES = [
    "The agent receives the reason in a message, and hands in the usual sense are many.",
    "The file is locked so that no agent changes it.",
    "The `seat` is a column, such as `hardness`.",
    'The client prints "is told".',
]
LONG = " ".join(["word"] * 25)


def findings(source: str, path: Path) -> list[Finding]:
    file = path / "some.py"
    file.write_text(source)
    return [finding for _, finding in check(file)[1]]


@pytest.mark.parametrize("source", OPENINGS)
def test_a_docstring_that_begins_with_another_word_is_found(source: str, tmp_path: Path) -> None:
    found = [(finding.rule, finding.word) for finding in findings(source, tmp_path)]
    assert found == [("opening", OPENINGS[source])]


@pytest.mark.parametrize("source", FINE_OPENINGS)
def test_verbs_of_functions_and_nouns_of_classes_pass(source: str, tmp_path: Path) -> None:
    assert list(map(str, findings(source, tmp_path))) == []


@pytest.mark.parametrize("sentence", SUBJECTS)
def test_a_subject_without_a_noun_is_found(sentence: str, tmp_path: Path) -> None:
    for source in (f"# {sentence}", f'"""Files.\n\n{sentence}\n"""'):
        found = [(finding.rule, finding.word) for finding in findings(source, tmp_path)]
        assert found == [("subject", SUBJECTS[sentence])]


@pytest.mark.parametrize("sentence", FINE_SUBJECTS)
def test_a_noun_as_a_subject_passes(sentence: str, tmp_path: Path) -> None:
    assert list(map(str, findings(f"# {sentence}", tmp_path))) == []


def test_a_sentence_has_at_most_25_words(tmp_path: Path) -> None:
    assert findings(f"# A {LONG}.", tmp_path)[0].rule == "length"
    for text in (
        f"# {LONG}.",
        f"# {LONG[:-4]} `some code of more words`.",
        f"# {LONG}. A {LONG[:-5]}.",
        f'"""Files:\n\n- {LONG}\n- {LONG}\n"""',
        f'"""Files.\n\nArgs:\n    a: {LONG}\n    b: {LONG}\n"""',
        f'"""Files::\n\n    {LONG} {LONG}\n"""',
    ):
        assert findings(text, tmp_path) == []


def test_an_entry_of_arguments_is_checked(tmp_path: Path) -> None:
    source = f'def f(a):\n    """Return it.\n\n    Args:\n        a: It {LONG}.\n    """'
    found = [(finding.line, finding.rule) for finding in findings(source, tmp_path)]
    assert found == [(5, "length"), (5, "subject")]


@pytest.mark.parametrize("sentence", PHRASES)
def test_a_refused_phrase_is_found(sentence: str, tmp_path: Path) -> None:
    [finding] = findings(f"# {sentence}", tmp_path)
    assert finding.rule == "phrase"
    assert f"{PHRASES[sentence]!r} is a" in str(finding)


@pytest.mark.parametrize("sentence", FINE_PHRASES)
def test_plain_phrases_pass(sentence: str, tmp_path: Path) -> None:
    assert list(map(str, findings(f"# {sentence}", tmp_path))) == []


def test_pages_are_checked_for_phrases_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# It is a page\n\n```console\n$ echo seat\n```\n\n{LONG} and `a seat`\n\n"
        "| Name |\n|---|\n| a seat |\n"
    )
    assert [(finding.line, finding.word) for _, finding in check(page)[1]] == [(11, "seat")]


def test_a_finding_names_place_word_rule_and_better_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/other.py").write_text("# It is left out.")
    (tmp_path / "some.py").write_text('"""Files.\n\nAn open file\nis told of.\n"""\n')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/some.py:4: 'is told' is an idiom of ours "
        "(better: receives, is reported, is shown)\n"
    )


def test_a_limit_only_falls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    share = {"opening": 0.0, "subject": 0.0, "length": 0.0, "phrase": 0.0}
    monkeypatch.setattr(docstrings, "check", lambda path: (100, []))
    monkeypatch.setattr(docstrings, "LIMITS", {"gym": share})
    assert main([]) == 0
    monkeypatch.setattr(docstrings, "LIMITS", {"gym": {**share, "length": 2.0}})
    assert main([]) == 1
    assert "gym, length: 0.00 findings per 100 sentences, limit 2.0: lower" in (
        capsys.readouterr().out
    )
