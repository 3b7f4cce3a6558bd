"""The tests of interpreters and sandboxes as an ordinary user, which root repeats."""

from __future__ import annotations

import os

import pytest

from ordinary import run_tests
from sources import path_of


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user anyway")
@pytest.mark.timeout(900)  # dozens of tests
def test_they_pass_as_an_ordinary_user() -> None:
    assert run_tests(path_of("interpreters"), path_of("sandboxes")) > 20, "most of them ran"
