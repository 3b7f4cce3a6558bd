"""Names in docstrings and comments are names of the code; a wrong one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from references import main, unknown_references

CODE = '''
from os.path import join

class Log:
    """A log, which `Log.append` fills."""
    def append(self, line):
        self.lines += [join(line)]  # `line` is text
'''


def test_no_reference_of_the_packages_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ('"""See `Logs.append`."""', "Logs.append"),  # a class that was renamed
        ('"""See `Log.extend`."""', "Log.extend"),
        ("# as `log_file` says", "log_file"),
        ('KEY = "Logs"\n# a `Logs`', "Logs"),  # a class is more than a word in a text
    ],
)
def test_an_unknown_one_is_found(text: str, reference: str) -> None:
    texts = {Path("log.py"): CODE, Path("other.py"): text}
    (finding,) = unknown_references(texts)
    assert f"`{reference}` is not" in finding


@pytest.mark.parametrize("text", ['"""See `Log.append` and `log.Log`."""', "# ``Logs`` of others"])
def test_a_known_one_passes(text: str) -> None:
    assert not [*unknown_references({Path("log.py"): CODE, Path("other.py"): text})]
