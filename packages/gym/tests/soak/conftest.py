"""Each soak in a process of its own: what it counts is its own, whatever ran before it here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ALONE = "INTERCODE_SOAK_ALONE"
_OF_THE_OUTER = ("PYTEST_ADDOPTS", "PYTEST_XDIST")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _ALONE not in os.environ and Path(__file__).parent in item.path.parents:
            # The inner one ends it in time, and says where it was.
            item.add_marker(pytest.mark.timeout(0), append=False)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if _ALONE in os.environ:
        return None
    own = {name: text for name, text in os.environ.items() if not name.startswith(_OF_THE_OUTER)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**own, _ALONE: "1"},
    )
    assert done.returncode == 0, "what it printed says why"
    return True
