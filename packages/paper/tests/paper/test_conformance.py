"""The tests of all environments, for one of 2023."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.register_assert_rewrite("envs.test_conformance")

from envs.cases import CASES, Case  # noqa: E402
from envs.test_conformance import *  # noqa: E402, F403 - its tests and fixtures

CASE = replace(next(case for case in CASES if case.env == "ctf"), protocol="paper", exit_fd=None)


@pytest.fixture(scope="module", params=[CASE], ids=[CASE.name])
def case(request: pytest.FixtureRequest) -> Case:
    return CASE
