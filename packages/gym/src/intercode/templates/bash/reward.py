"""How well an episode went. It runs outside of the sandbox; what it reads there is the agent's."""

from intercode import Episode, OutputLimitError, Score, Task
from intercode_sandbox import SandboxBackend


def score(task: Task, episode: Episode, sandbox: SandboxBackend) -> Score:
    """The share of the files that are as the task expects them; 1.0 means solved."""
    expected = task.metadata["expected"]
    wrong = [path for path, text in expected.items() if read(sandbox, path) != text.encode()]
    return Score(1 - len(wrong) / len(expected), detail={"wrong": wrong})


def read(sandbox: SandboxBackend, path: str) -> bytes | None:
    """A file's content; None if the agent has left nothing that could be read."""
    try:
        return sandbox.read_file(path, limit=100_000)
    except (OSError, OutputLimitError):
        return None
