"""Reading JUnit XML that a program under test may have had its hands on.

No document type is accepted, and so no entities, nor an encoding that it names: Python might have
no such. Nothing is kept but names and outcomes, and how deep elements lie in each other.
"""

from __future__ import annotations

from xml.parsers import expat

from intercode.errors import InterCodeError

NODE = "nodeid"
"""The property of a test case that says which test it is."""

EXPECTED = "expected"
"""The property of a test case that is marked as failing."""

LIMIT = 16 * 1024 * 1024
_DEEPEST = 100
"""So many elements may lie in each other: of each, the parser keeps more than its text."""
_BAD = {"failure", "error", "skipped"}
_XFAIL = "pytest.xfail"


class ReportError(InterCodeError, ValueError):
    """It is no such report."""


def read(document: bytes) -> dict[str, bool]:
    """Which tests are in a report, and whether each has passed.

    A test passes if it is there once, with no failure, error or skip. A failure that it expects
    (``xfail``) is none if the test is marked so: anything that runs in it can say the same.

    Raises:
        ReportError: It is not well-formed, or has a document type.
    """
    reader = _Reader()
    parser = expat.ParserCreate("UTF-8")
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
        self._depth = 0
        self._begin()

    def _begin(self) -> None:
        self._name: str | None = None
        self._passed, self._marked, self._said = True, False, False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("its elements lie too deep in each other")
        if tag == "testcase":
            self._begin()
        elif tag == "property" and attributes.get("name") == NODE:
            self._name = attributes.get("value")
        elif tag == "property" and attributes.get("name") == EXPECTED:
            self._marked = True
        elif tag in _BAD and attributes.get("type") == _XFAIL:
            self._said = True
        elif tag in _BAD:
            self._passed = False

    def end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "testcase" and self._name is not None:
            passed = self._passed and (self._marked or not self._said)
            self.found[self._name] = passed and self._name not in self.found
            self._name = None

    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type")
