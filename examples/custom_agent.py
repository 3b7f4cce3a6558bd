"""An agent of one's own: a function that takes a task and returns something with `act`.

Run it:
  intercode run bash --agent examples/custom_agent.py:make --data examples/own_tasks/tasks.json
"""

from collections.abc import Sequence

from intercode import Task, Turn


class DeletesBigFiles:
    """Knows one trick. Yours would ask a model."""

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        if not history:  # `observation` is the task's query
            return "find . -type f -size +100M -print -delete"
        if not history[-1].ok:  # the last command failed
            return "skip"
        return "submit"


def make(task: Task) -> DeletesBigFiles:
    """Called once for each episode, so an agent may keep what it likes in itself."""
    return DeletesBigFiles()
