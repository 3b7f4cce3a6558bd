"""The episodes of a replay, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from intercode.paper.report import Progress

T = TypeVar("T")


def together(
    jobs: Sequence[Callable[[], T]], workers: int = 1, progress: Progress | None = None
) -> list[T]:
    """What the jobs return, in their order.

    The first error ends it: a replay reports nothing of a part of a run.

    Args:
        jobs: What is to be done, each on some thread.
        workers: How many at a time.
        progress: Is told of what is finished, from this thread.
    """
    with ThreadPoolExecutor(max(1, workers), "replay") as pool:
        futures = [pool.submit(job) for job in jobs]
        pending = set(futures)
        try:
            while pending:
                finished, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if progress is not None and finished:
                    progress(len(futures) - len(pending), len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
