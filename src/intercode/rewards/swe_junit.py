"""Reading JUnit XML that a program under test may have had its hands on.

No document type is accepted, and so no entities; nothing is kept but names and outcomes.
"""

from __future__ import annotations

from xml.parsers import expat

from intercode.errors import InterCodeError

NODE = "nodeid"
"""The property of a test case that says which test it is."""

LIMIT = 64 * 1024 * 1024
_BAD = {"failure", "error", "skipped"}
_EXPECTED = "pytest.xfail"


class ReportError(InterCodeError, ValueError):
    """It is no such report."""


def read(document: bytes) -> dict[str, bool]:
    """Which tests are in a report, and whether each has passed.

    A test passes if it is there once, with no failure, error or skip; a failure that the test
    itself expects (``xfail``) is none.

    Raises:
        ReportError: It is not well-formed, or has a document type.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, ValueError) as error:
        raise ReportError(f"the tests' report cannot be read: {error}") from None
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, bool] = {}
        self._name: str | None = None
        self._passed = True

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "testcase":
            self._name, self._passed = None, True
        elif tag == "property" and attributes.get("name") == NODE:
            self._name = attributes.get("value")
        elif tag in _BAD and attributes.get("type") != _EXPECTED:
            self._passed = False

    def end(self, tag: str) -> None:
        if tag == "testcase" and self._name is not None:
            self.found[self._name] = self._passed and self._name not in self.found
            self._name = None

    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type")
