"""What is dropped without `close` is freed, as in the gym's tests."""

from __future__ import annotations

from envs.test_dropped import begin, leaves_nothing


def test_nothing_is_left_of_it() -> None:
    leaves_nothing(lambda: begin("sql", protocol="paper").step("SHOW TABLES"))
