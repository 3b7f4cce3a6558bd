"""Passwords do not travel to a cluster; neither Ray nor a server is needed to refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

import intercode
from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.spec import RunSpec

URL = "postgresql://admin:hidden-0123456789@localhost:1"


def test_a_run_refuses_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    spec = RunSpec.from_layers(
        {"env": "sql", "agent": "oracle", "engine": URL, "on": "ray", "out": out}
    )
    with pytest.raises(UsageError, match=r"--engine has a password.*PGPASSWORD") as found:
        evaluate(spec)
    assert "hidden" not in str(found.value)
    assert not out.exists()


def test_a_vector_refuses_them() -> None:
    with pytest.raises(UsageError, match="--engine has a password"):
        intercode.make_vec("sql", 2, backend="ray", engine=URL)
