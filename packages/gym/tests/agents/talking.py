"""Scripted models that know gold, for tests of agents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from intercode.agents import registry
from intercode.envs.traits import find_traits
from intercode.episode import Turn
from intercode.models import Message, Reply, Retry, Settings, Tool, ToolCall, Usage
from intercode.models.prices import ModelPrice
from intercode.models.remote import MODELS, ModelCallContext, RemoteModel
from intercode.models.scripted import Line, Script
from intercode.task import Task

TASK = Task("a", "Count the files.", metadata={"db_tables": {"files": ["name", "size"]}})
COLD, WARM = Settings(), Settings(temperature=1.0)
TAKEN = Usage(10, 1)
PRICE = ModelPrice(input=2.0, output=10.0)
KEY = "sk-very-secret-0123456789"
LOOK = {"bash": "ls", "sql": "SELECT 1", "python": "1 + 1"}
PARAMETER = {"bash": "command", "sql": "statement", "python": "code"}


def solver(env: str, tasks: Sequence[Task], actions: Mapping[str, str]) -> Script:
    """Solves every task: each other one after a reply without any code."""
    language = find_traits(env).language

    def say(messages: Sequence[Message]) -> Line:
        said = "\n".join(message.content for message in messages)
        number, task = next((n, t) for n, t in enumerate(tasks) if t.query in said)
        if "Make a plan" in messages[-1].content:
            return Line("Here it is:\n1. Look around.\n2. Do it.")
        turn = spoken(messages)
        if "first make a plan" in said:
            code = LOOK[language] if turn == 1 else actions[task.task_id]
            return Line(fenced("submit" if turn > 2 else code, language))
        turn -= number % 2
        if turn < 0:
            return Line("Let me think about that.")
        return line(actions[task.task_id] if turn == 0 else "submit", language, said)

    return say


def spoken(messages: Sequence[Message]) -> int:
    """How often the model has replied since the task was told, after the worked examples."""
    told = max(n for n, message in enumerate(messages) if message.content.startswith("Task: "))
    return sum(message.role == "assistant" for message in messages[told:])


def line(code: str, language: str, said: str) -> Line:
    """Code, in the form that a prompt asks for."""
    if "Use the tools" in said:
        word, _, flag = code.partition(" ")
        name, given = (language, {PARAMETER[language]: code})
        if word == "submit":
            name, given = "submit", ({"flag": flag} if flag else {})
        return Line("", (ToolCall("call_0", name, given),), "tool_calls")
    if "Thought:" in said:
        return Line(f"Thought: it is clear.\nAction:\n{fenced(code, language)}\nObservation: 42")
    return Line(f"So:\n\n{fenced(code, language)}\n\nThat should do it.")


def fenced(code: str, language: str) -> str:
    return f"```{language}\n{code}\n```"


def model(url: str, *, retries: int = 6, provider: str = "openai-compatible") -> RemoteModel:
    """A client of a scripted server that does not wait long."""
    client = MODELS.get(provider)("test", base_url=url, timeout=60.0)
    around = ModelCallContext(price=PRICE, retry=Retry(retries=retries, first_wait=0.001))
    return RemoteModel(f"{provider}/test", client, around)


class Says:
    """A model with its replies in a list, that remembers what it was asked."""

    name = "says"

    def __init__(self, replies: Iterable[str | Reply], usage: Usage = TAKEN) -> None:
        self.replies = iter(replies)
        self.usage = usage
        self.heard: list[list[Message]] = []
        self.settings: list[Settings] = []

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = COLD,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        self.heard.append(list(messages))
        self.settings.append(settings)
        reply = next(self.replies)
        return reply if isinstance(reply, Reply) else Reply(reply, usage=self.usage, cost=0.5)


def play(
    name: str,
    says: Any,
    outputs: Sequence[str] = (),
    rewards: Sequence[float] = (),
    env: str = "bash",
    task: Task = TASK,
    failed: Collection[int] = (),
    **options: Any,
) -> tuple[list[str], dict[str, Any]]:
    """The actions of an agent to which these outputs are shown, and its record.

    Those whose numbers are in `failed` are the outputs of actions that failed.
    """
    place = SimpleNamespace(
        name=env,
        max_turns=10,
        reward_every_turn=name.endswith("oracle"),
        episode=SimpleNamespace(seed=7),
    )
    agent = registry.get(name, model=says, **options).make_agent(place, task)  # type: ignore[attr-defined]
    history: list[Turn] = []
    actions = [agent.act(task.query, history)]
    for n, output in enumerate(outputs):
        reward = rewards[n] if rewards else 0.0
        history.append(Turn(str(actions[-1]), output, reward, ok=n not in failed))
        actions.append(agent.act(output, history))
    return actions, agent.episode_metadata()
