"""Collect final states for labellers, who see no gold and no reward.

``collect.py RELEASE FOLDER`` takes the recorded actions of 2023's runs once more, in our sandboxes
and databases, and writes ``FOLDER/states.jsonl``: the task's words, the commands with their output,
what became of the files. With ``--answers FILE`` it takes commands that people or models have
written for the tasks: objects of ``id`` and ``commands``, one on each line. ``look.py`` lets a
labeller run commands of his own in the state before the first of them. What the data says is not
kept in the project: a state is named by its file and its row.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import intercode
from intercode.datasets import nl2bash, spider
from intercode.episode import decode
from intercode.errors import OutputLimitError
from intercode.interpreters.bash import BashInterpreter
from intercode_paper.results_files import RecordedEpisode, RecordedTurn, find_task, load_results
from intercode_sandbox import Limits, SandboxBackend, get_provider

SEED = 2026
BASH, SQL = 240, 120
RESULTS = "data/results"
RUNS: Mapping[str, str] = {
    "bash/multiturn": "bash/gpt-3.5/ic_bash_multiturn_gpt-3.5_10_turns_fs_{suite}.json",
    "bash/react": "bash/gpt-3.5/ic_bash_react_10_turns_fs_{suite}.json",
    "sql/multiturn": "sql/gpt-3.5/ic_sql_multiturn_gpt-3.5_10_turns.json",
    "sql/react": "sql/gpt-3.5/ic_sql_react_10_turns.json",
}
"""How the names of a run's states begin → its results, below ``data/results`` or elsewhere."""
_SHOWN, _LAST = 1500, 8000
_TEXT = 3000


def states(release: Path) -> list[str]:
    """The names of the states that are labelled: ``bash/KIND/SUITE/ROW`` and ``sql/KIND/ROW``."""
    draw = random.Random(SEED)
    bash = [
        f"{run}/{suite}/{episode.task_id}"
        for run in ("bash/multiturn", "bash/react")
        for suite in (1, 2, 3, 4)
        if (path := release / RESULTS / RUNS[run].format(suite=suite)).is_file()
        for episode in load_results(path).episodes
        if commands(episode)
    ]
    sql = [
        f"{run}/{episode.task_id}"
        for run in ("sql/multiturn", "sql/react")
        for episode in load_results(release / RESULTS / RUNS[run]).episodes
        if commands(episode)
    ]
    return draw.sample(bash, BASH) + draw.sample(sql, SQL)


def commands(episode: RecordedEpisode) -> list[str]:
    """What was executed."""
    found = [turn.command for turn in episode.turns if turn.command is not None]
    return [command for command in found if not command.startswith(("submit", "skip"))]


def recorded(release: Path, name: str, runs: Mapping[str, str] = RUNS) -> RecordedEpisode:
    """The episode that a state is the end of."""
    env, kind, *suite, row = name.split("/")
    path = runs[f"{env}/{kind}"].format(suite=suite[0] if suite else "")
    run = load_results(release / RESULTS / path)
    return next(episode for episode in run.episodes if episode.task_id == row)


Find = Callable[[str], RecordedEpisode]
"""Finds what was done to come to a state."""


def written(release: Path, path: Path) -> tuple[list[str], Find]:
    """Read commands that were written for tasks.

    Returns:
        The names of their states, and what finds the commands of each.
    """
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "id" in row]
    answers: dict[str, list[str]] = {row["id"]: row["commands"] for row in rows}
    sql = spider.load(release / "data" / "sql" / "spider")
    bash = {task.task_id: task for task in nl2bash.load(release)}

    def find(name: str) -> RecordedEpisode:
        env, _, *place = name.split("/")
        task = bash[f"fs{'-'.join(place)}"] if env == "bash" else sql[int(place[0])]
        turns = (
            RecordedTurn(index, command, command, observation=None, reward=None, valid=None)
            for index, command in enumerate(answers[name])
        )
        return RecordedEpisode(place[-1], task.query, tuple(turns), max_reward=0.0)

    return list(answers), find


def bash_state(release: Path, name: str, find: Find) -> dict[str, Any]:
    """What there is to judge of a Bash episode."""
    suite = f"nl2bash_fs_{name.split('/')[2]}"
    episode = find(name)
    task = find_task(list(nl2bash.load(release, suite)), episode)
    with closing(get_provider().start(task.image, Limits())) as sandbox:
        turns = []
        with closing(BashInterpreter(sandbox)) as bash:
            for command in commands(episode):
                done = bash.execute(command, 10.0)
                turns.append({"command": command, "output": decode(done.output)})
        sandbox.kill()
        changes = []
        for change in sandbox.changes():
            entry: dict[str, Any] = {
                "path": change.path,
                "change": change.kind,
                "type": change.type,
            }
            if change.kind != "deleted":
                entry |= {"mode": f"{change.mode:o}", "owner": f"{change.uid}:{change.gid}"}
            if change.type == "file" and change.kind != "deleted" and change.content_changed:
                entry["content"] = _text(sandbox, change.path)
            elif change.type == "symlink" and change.kind != "deleted":
                entry["target"] = decode(sandbox.exec(["readlink", change.path]).stdout)
            changes.append(entry)
    shown = [turn | {"output": turn["output"][:_SHOWN]} for turn in turns]
    shown[-1]["output"] = turns[-1]["output"][:_LAST]
    return {"id": name, "suite": suite, "query": task.query, "turns": shown, "files": changes[:60]}


def _text(sandbox: SandboxBackend, path: str) -> str:
    try:
        return decode(sandbox.read_file(path))[:_TEXT]
    except OutputLimitError:
        return "(too large to be shown)"


def sql_states(release: Path, names: list[str], find: Find) -> Iterator[dict[str, Any]]:
    """What there is to judge of SQL episodes: the last action that gave a result."""
    tasks = spider.load(release / "data" / "sql" / "spider")
    env: Any = intercode.make("sql", data=tasks, engine="mysql", max_turns=10**6)
    with closing(env):
        for name in names:
            episode = find(name)
            task = find_task(list(tasks), episode)
            env.reset(options={"task_id": task.task_id})
            turns = []
            for command in commands(episode):
                observation, *_, info = env.step(command)
                turns.append({"action": command, "output": observation[:_LAST], "ok": info["ok"]})
            results = [turn for turn in turns if turn["ok"]]
            yield {
                "id": name,
                "database": env.image(task),
                "query": task.query,
                "earlier": [turn["action"] for turn in turns[:-1]],
                "answer": results[-1] if results else None,
            }


def collected(release: Path, names: Sequence[str], find: Find) -> Iterator[dict[str, Any]]:
    """All of it."""
    yield from (bash_state(release, name, find) for name in names if name.startswith("bash/"))
    yield from sql_states(release, [name for name in names if name.startswith("sql/")], find)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("release", type=Path, help="a copy of 2023's data")
    parser.add_argument("folder", type=Path, help="where states.jsonl is written")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="of these commands")
    args = parser.parse_args()
    release, folder = args.release.resolve(), args.folder
    if args.answers is None:
        names, find = states(release), lambda name: recorded(release, name)
    else:
        names, find = written(release, args.answers)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "states.jsonl").open("w") as file:
        for state in collected(release, names, find):
            file.write(json.dumps(state) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
