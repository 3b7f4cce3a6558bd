"""Episodes of a replay, some at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from intercode.errors import SandboxError
from intercode.paper.report import together
from waiting import PATIENCE


def test_results_come_in_the_order_of_the_jobs():
    told = []
    jobs = [lambda n=n: n for n in range(9)]
    assert together(jobs, 3, lambda *counts: told.append(counts)) == list(range(9))
    assert told[-1] == (9, 9)
    assert together([]) == []


def test_the_first_error_ends_it(monkeypatch):
    """The second job; the third is held until the others have been called off."""
    done, stopped, shutdown = [], threading.Event(), ThreadPoolExecutor.shutdown

    def telling(pool, **options):
        shutdown(pool, **{**options, "wait": False})
        stopped.set()
        shutdown(pool, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", telling)

    def lost():
        raise SandboxError("gone")

    def later():
        assert stopped.wait(PATIENCE)
        done.append(2)

    jobs = [lambda: done.append(1), lost, *[later] * 1000]
    with pytest.raises(SandboxError, match="gone"):
        together(jobs, 1)
    assert done[0] == 1
    assert len(done) <= 2
