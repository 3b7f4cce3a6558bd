"""The sandbox's tests once more as an ordinary user, where the tests run as root."""

from __future__ import annotations

import os

import pytest

from ordinary import run_tests
from sources import path_of


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user anyway")
@pytest.mark.timeout(900)  # hundreds of tests
def test_they_pass_as_an_ordinary_user() -> None:
    assert run_tests(path_of("sandbox")) > 250, "most of them ran"
