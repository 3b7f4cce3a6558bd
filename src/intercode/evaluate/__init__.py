"""Runs agents over datasets, keeps every episode, and counts.

The function is ``intercode.evaluate.evaluate``.
"""

from intercode.evaluate.loop import run_episode
from intercode.evaluate.progress import Progress
from intercode.evaluate.runner import RunResult, evaluate
from intercode.evaluate.summary import Outcome, Statistics, by_tag, summarize

__all__ = [
    "Outcome",
    "Progress",
    "RunResult",
    "Statistics",
    "by_tag",
    "evaluate",
    "run_episode",
    "summarize",
]
