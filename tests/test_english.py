"""The linter of the project's English: what it refuses, and what it lets pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from english import check, main

REFUSED = [
    "# It is scored anew.",
    "text = 'a run is gone\\non with'.lower()\n# it goes\n# on with the next",
    "# This is no file.",
    '"""What is asked."""',
    'def answer():\n    """Whoever asks is told."""',
    'def answer():\n    """Returns the answer."""',
    'def close():\n    """End it. Idempotent."""',
    'class Answer:\n    text: str\n    """The same."""',
]
FINE = [
    "# There is no file, and user `nobody` reads it.",
    'def answer():\n    """Return the answer."""',
    'def _answer():\n    """What is answered."""',
    'class Answer:\n    right: bool\n    """Whether it is the expected one."""',
    'class Answer:\n    @property\n    def parts(self):\n        """Parts of the answer."""',
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_phrase_or_docstring_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    assert len(check(path)) == 1


@pytest.mark.parametrize("text", FINE)
def test_plain_english_passes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    assert check(path) == []


def test_files_and_folders_are_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/page.md").write_text("First line.\nA fault is\nmended here.\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{tmp_path}/deep/page.md:3: 'mended': write 'fix'\n"
    (tmp_path / "deep/page.md").write_text("A fault is fixed here.\n")
    assert main([str(tmp_path)]) == 0
