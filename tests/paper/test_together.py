"""Episodes of a replay, some at a time."""

import time

import pytest

from intercode.errors import SandboxError
from intercode.paper.together import together


def test_results_come_in_the_order_of_the_jobs():
    told = []
    jobs = [lambda n=n: n for n in range(9)]
    assert together(jobs, 3, lambda *counts: told.append(counts)) == list(range(9))
    assert told[-1] == (9, 9)
    assert together([]) == []


def test_the_first_error_ends_it():
    done = []

    def lost():
        raise SandboxError("gone")

    def later():
        time.sleep(0.01)
        done.append(2)

    jobs = [lambda: done.append(1), lost, *[later] * 1000]
    with pytest.raises(SandboxError, match="gone"):
        together(jobs, 1)
    assert done[0] == 1
    assert len(done) < 1001
