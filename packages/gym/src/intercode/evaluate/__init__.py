"""The evaluation of agents on datasets: runs, recorded episodes and statistics.

The entry point is ``intercode.evaluate.evaluate``. Python imports the public names at first use,
because reports need the statistics without the code that runs agents.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intercode.evaluate.episode_loop import run_episode
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
_SUBMODULES = {
    "Progress": "progress",
    "RunResult": "runner",
    "evaluate": "runner",
    "run_episode": "episode_loop",
}
"""Name → its module, if that module is not `summary`."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use.

    Raises:
        AttributeError: The module has no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    submodule = _SUBMODULES.get(name, "summary")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{submodule}"), name)
    return value
