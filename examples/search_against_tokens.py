"""Success against tokens: ReAct, best-of-n and tree search, with a scripted model.

A task has two doors in each of three rooms, one of which leads on. There is no way back. The
model guesses; asked for a judgement, it is right in nine of ten cases.

Run it:
  python examples/search_against_tokens.py
"""

import random
from collections.abc import Sequence

import intercode
from intercode.agents import registry
from intercode.evaluate import evaluate
from intercode.models import Message, Reply, Settings, Usage
from intercode.task import Dataset, Task

ROOMS, DOORS, TASKS = 3, 2, 12


def task(number: int) -> Task:
    right = random.Random(number).choices(range(DOORS), k=ROOMS)
    rooms = ["/maze"]
    for door in right:
        rooms.append(f"{rooms[-1]}/{door}")
    walls = [f"mkdir -p {room}/{door}" for room in rooms[:-1] for door in range(DOORS)]
    return Task(
        f"maze-{number}",
        "Find the treasure below /maze, and copy it to /tmp.",
        setup="; ".join([*walls, f"echo gold > {rooms[-1]}/treasure"]),
        verification="test -s /tmp/treasure",
    )


class Guesser:
    """Goes through any door. It would go back if it could; but it does not think of that."""

    name = "guesser"

    def __init__(self) -> None:
        self._dice = random.Random(7)

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[object] = (),
    ) -> Reply:
        said = self._says(messages)
        return Reply(said, usage=Usage(sum(len(m.content) for m in messages) // 4, len(said) // 4))

    def _says(self, messages: Sequence[Message]) -> str:
        last = messages[-1].content
        if "0 (hopeless)" in last:
            seen = [message.content for message in messages if message.role == "user"]
            hopeful = not any("dead end" in text for text in seen[-2:])
            return "8" if hopeful == (self._dice.random() < 0.9) else "1"
        door = self._dice.randrange(DOORS)
        action = (
            f"cd {'/maze/' if len(messages) == 2 else ''}{door} && ls | grep . || echo dead end"
        )
        if "treasure" in last and len(messages) > 2:
            action = "cp treasure /tmp"
        elif "dead end" in last or "(none: it succeeded)" in last:
            action = "submit"
        return f"Thought: let us see.\nAction:\n```bash\n{action}\n```"


def main() -> None:
    tasks = Dataset([task(number) for number in range(TASKS)], name="mazes")
    print("agent         success   tokens   tokens per success")
    for name in ("react", "best-of-n", "tree-search"):
        options = {"settings": Settings(temperature=1.0), "examples": False}
        agents = registry.get(name, model=Guesser(), **options)
        result = evaluate(tasks, agents, lambda: intercode.make("bash", data=tasks))
        found = result.statistics
        tokens = (found.tokens_in or 0) + (found.tokens_out or 0)
        each = f"{tokens // found.successes:>8}" if found.successes else "       -"
        print(f"{name:12} {found.successes:>3} of {TASKS} {tokens:>8}             {each}")


if __name__ == "__main__":
    main()
