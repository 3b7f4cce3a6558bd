"""What gold leaves behind in a container of its own, run once where that is enough."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from intercode.errors import RewardError
from intercode.paper.bash import GOLD_HOST, MALFORMED, run_gold, variables
from intercode.paper.container import PaperImage, md5sum
from intercode.paper.git_status import IGNORED
from intercode.paper.reward import COMPARED, Outcome
from intercode.sandbox.base import Sandbox
from intercode.task import Task

_VOLATILE = re.compile(
    r"\b(?:date|w|who|uptime|ps|pstree|top|free|df)\b|-[acm]min\b|-newer|/proc\b|\$\$"
)
"""Golds of which the output may differ from one second to the next: run anew each time."""


@dataclass(frozen=True, slots=True)
class _Runs:
    first: Outcome
    later: Outcome
    """Of every further run in the same container, where the first left something behind that
    git's reset does not see."""


class GoldRuns:
    """The outcomes of golds in one image. Thread-safe.

    Args:
        image: The image; shared with the agent's sandboxes.
    """

    def __init__(self, image: PaperImage) -> None:
        self._image = image
        self._environment = variables(GOLD_HOST, image.name)
        self._lock = threading.Lock()
        self._known: dict[str, _Runs] = {}

    def outcome(self, task: Task, again: bool = False) -> Outcome:
        """What a task's gold leaves.

        Args:
            task: The task.
            again: It was run in this episode before.

        Raises:
            RewardError: The task has no gold.
            SandboxError: The sandbox failed.
        """
        if not task.gold:
            raise RewardError(f"task {task.task_id!r} has no gold")
        command = task.gold[0]
        with self._lock:
            runs = self._known.get(command)
        if runs is None:
            # Two threads may run the same gold at once: it costs little, and no lock is held.
            runs = self._run(command)
            if not _VOLATILE.search(command):
                with self._lock:
                    self._known[command] = runs
        return runs.later if again else runs.first

    def _run(self, command: str) -> _Runs:
        sandbox = self._image.start()
        try:
            first = self._once(sandbox, command)
            if first.pairs or not _changes_ignored(sandbox):
                return _Runs(first, first)
            # Nothing for a reset to undo, but something it would not: the next run sees it.
            return _Runs(first, self._once(sandbox, command))
        finally:
            sandbox.close()

    def _once(self, sandbox: Sandbox, command: str) -> Outcome:
        output = run_gold(sandbox, command, self._environment)
        pairs = self._image.status(sandbox)
        sums = {
            path: md5sum(sandbox, path) for path, code in pairs if code in COMPARED and "." in path
        }
        return Outcome(pairs, output.text, sums.__getitem__, output.text == MALFORMED)


def _changes_ignored(sandbox: Sandbox) -> bool:
    return any(change.path.split("/")[1] in IGNORED for change in sandbox.changes())
