"""Python source is parsed in many threads at once."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from intercode.python_source import parse

SOURCE = "\n".join(
    f"def f{n}(a, b=[1, (2, {{3: 4}})]):\n    return [a + b * {n} for x in y if z]"
    for n in range(60)
)
THREADS, TIMES = 4, 40


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns whenever they can, also in the middle of making a tree."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()

    def linger(*_: object) -> None:
        for _ in range(50):
            pass

    gc.callbacks.append(linger)
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(linger)


@pytest.mark.usefixtures("restless")
def test_threads_do_not_disturb_each_other() -> None:
    """Without the lock Python 3.11 raises a SystemError in some of them."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(TIMES):
                parse(SOURCE)
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_nothing_is_said_of_odd_escapes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse(r"'\d'").body
