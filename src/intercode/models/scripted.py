"""A model that speaks by script, in this process: for tests of agents, and for measurements."""

from __future__ import annotations

from pathlib import Path

from intercode.errors import UsageError
from intercode.files import sha256
from intercode.models.client import Answer, Request
from intercode.models.script import Script, answer, read


class ScriptedClient:
    """Answers at once.

    Args:
        say: What.
        name: What the model calls itself.
        version: Differs where the script does, so that no cache takes one for another.
    """

    def __init__(self, say: Script, name: str = "scripted", version: str = "") -> None:
        self._say = say
        self._name = name
        self.endpoint = f"scripted:{version}"

    def __repr__(self) -> str:
        return f"ScriptedClient({self._name!r})"

    def send(self, request: Request) -> Answer:
        """Answer."""
        return answer(request, self._say, self._name)

    def close(self) -> None:
        """Nothing is held."""


def scripted(model: str, *, base_url: str | None, timeout: float) -> ScriptedClient:
    """The model whose rules are in a file: ``scripted/rules.jsonl``."""
    if base_url:
        raise UsageError("a scripted model is in a file and has no base URL")
    say = read(model)
    version = sha256(Path(model))
    return ScriptedClient(say, Path(model).name, version)
