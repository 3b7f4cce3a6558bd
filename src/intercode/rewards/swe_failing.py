"""Tests that cannot pass, to run along with others: code that has these pass tampers with tests.

They fail in all the ways in which tests commonly do, before the others run and again after them:
code under test may replace any one of these ways, when it is imported or when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_WAYS = {
    "statement": "assert 1 == 2",
    "exception": "raise ValueError",
    "fail": "self.fail()",
    "equal": "self.assertEqual(1, 2)",
    "not_equal": "self.assertNotEqual(1, 1)",
    "true": "self.assertTrue(0)",
    "false": "self.assertFalse(1)",
    "same": "self.assertIs([], [])",
    "none": "self.assertIsNone(1)",
    "not_none": "self.assertIsNotNone(None)",
    "member": "self.assertIn(1, [])",
    "no_member": "self.assertNotIn(1, [1])",
    "type": "self.assertIsInstance(1, str)",
    "raises": "self.assertRaises(OSError, int)",
    "raises_within": "with self.assertRaises(OSError): pass",
    "message": "self.assertRaisesRegex(ValueError, 'no', int, 'x')",
    "less": "self.assertLess(2, 1)",
    "greater": "self.assertGreater(1, 2)",
    "almost": "self.assertAlmostEqual(1, 2)",
    "pattern": "self.assertRegex('a', 'b')",
    "items": "self.assertCountEqual([1], [])",
    "lists": "self.assertListEqual([1], [])",
    "mappings": "self.assertDictEqual({1: 2}, {})",
    "lines": "self.assertMultiLineEqual('a', 'b')",
}
_PYTEST = {
    "statement": "assert 1 == 2",
    "raises": "with pytest.raises(OSError): pass",
    "fail": "pytest.fail()",
}


@dataclass(frozen=True, slots=True)
class Failing:
    """A module of such tests, and their names."""

    source: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    optional: frozenset[str]
    """Those that a project's settings may leave out: functions, if it names its tests otherwise."""

    def betray(self, found: Mapping[str, bool], whole: bool) -> bool:
        """Whether outcomes show that tests were tampered with.

        Args:
            found: Whether each test has passed.
            whole: Whether all tests were run, to the last.
        """
        names = {*self.first, *self.last}
        due = names if whole else set(self.first)
        return any(found.get(name) for name in names) or not (due - self.optional <= found.keys())


def failing(runner: str, module: str) -> Failing:
    """The module for a runner.

    Args:
        runner: ``pytest`` or ``unittest``.
        module: How the runner names it: ``folder/x.py`` or ``x``.
    """
    lines = ["import unittest", "class Fails:"]
    lines += [f"    def test_{name}(self):\n        {code}" for name, code in _WAYS.items()]
    names: dict[str, list[str]] = {}
    functions = []
    for when in ("First", "Last"):
        lines.append(f"class {when}(Fails, unittest.TestCase): pass")
        between = "::" if runner == "pytest" else "."
        names[when] = [between.join([module, when, f"test_{name}"]) for name in _WAYS]
        if runner == "pytest":
            lines.append("import pytest")
            for name, code in _PYTEST.items():
                lines.append(f"def test_{when}_{name}():\n    {code}")
                functions.append(f"{module}::test_{when}_{name}")
                names[when].append(functions[-1])
    source = "\n".join(lines) + "\n"
    return Failing(source, tuple(names["First"]), tuple(names["Last"]), frozenset(functions))
