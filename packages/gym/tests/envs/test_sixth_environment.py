"""An environment of a reader's own, in one file outside the package, does all that ours do.

It is in another language, registered by an entry point, and no module of ours knows its name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

AWK = '''
"""Programs in awk over a table."""

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from intercode import Dataset, InterCodeEnv, Task
from intercode.envs.options import SandboxOptions
from intercode.envs.traits import GuessedSolution, Traits, constant_actions
from intercode.interpreters.base import Execution

ROWS = "apple,3\\npear,5\\nplum,3\\n"


def load():
    return Dataset(
        [
            Task("sum", "What is the sum of the second column?",
                 ("{ n += $2 } END { print n }",), files={"t": ROWS}, metadata={"awk": "11"}),
            Task("most", "What is there most of?",
                 ("$2 > n { n = $2; name = $1 } END { print name }",),
                 files={"t": ROWS}, metadata={"awk": "pear"}),
            Task("online", "Which fruit is new?", ("BEGIN { print 1 }",), tags=("web",),
                 metadata={"awk": "1"}),
        ],
        "fruit",
    )


def score(task, episode, sandbox):
    """1.0 if the last output is the answer."""
    return float(bool(episode.turns) and
                 episode.turns[-1].observation.strip() == task.metadata["awk"])


class AwkOptions(SandboxOptions, frozen=True, kw_only=True):
    separator: Annotated[str, Meta(description="what separates the fields")] = ","


class Awk:
    """Runs one program over the table."""

    language = "awk"

    def __init__(self, sandbox, separator):
        self.sandbox, self.separator = sandbox, separator

    def execute(self, action, timeout=None):
        done = self.sandbox.exec(["awk", "-F", self.separator, action, "t"], timeout=timeout)
        return Execution(done.stdout + done.stderr, ok=done.ok, exit_code=done.exit_code)

    def close(self):
        pass


def without_its_end(solution, dice):
    yield solution[0].partition("END")[0]


class AwkEnv(InterCodeEnv):
    name = "awk"
    prompt = "awk> "
    Options = AwkOptions
    traits = Traits(
        language="awk",
        setting="awk",
        briefing="You write programs in {setting}, which read the table t.",
        parameter="program",
        does="Run an awk program over the table.",
        random_actions=("BEGIN { print 42 }", "{ print }"),
        looks=("{ print }", "END { print NR }"),
        mistakes=without_its_end,
        wrong=("BEGIN { print 42 }",),
        constants=(GuessedSolution("print 5", constant_actions("BEGIN { print 5 }")),),
        prediction=lambda text: text.removeprefix("awk: "),
        pure_reward=lambda: score,
        recognises=lambda tasks: any("awk" in task.metadata for task in tasks),
    )

    def __init__(self, data="fruit", *, options=None, **changes):
        options = AwkOptions.merge(options, changes)
        opens = lambda sandbox: Awk(sandbox, options.separator)
        super().__init__(data, None, opens, options.reward or score, options=options)

    @classmethod
    def filter_tasks(cls, tasks, options):
        kept = tasks.filter(lambda task: options.get("network") or "web" not in task.tags)
        left = len(tasks) - len(kept)
        return kept, f"{left} of {len(tasks)} tasks need the web" if left else ""
'''
ENTRY_POINTS = """\
[intercode.environments]
awk = awkward:AwkEnv

[intercode.datasets]
awk = awkward:load
fruit = awkward:load
"""
CALL = {"name": "awk", "arguments": {"program": "{ n += $2 } END { print n }"}}
FILES = {
    "awkward.py": AWK,
    "awkward-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: awkward\nVersion: 1.0\n",
    "awkward-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
    "rules.jsonl": f"{json.dumps({'turn': 0, 'calls': [CALL]})}\n"
    f"{json.dumps({'calls': [{'name': 'submit', 'arguments': {}}]})}\n",
    "predictions.jsonl": json.dumps({"task_id": "sum", "prediction": "awk: BEGIN { print 11 }"}),
    "tasks.jsonl": json.dumps(
        {
            "task_id": "two",
            "query": "Print 2.",
            "gold": "BEGIN { print 2 }",
            "metadata": {"awk": "2"},
        }
    ),
    "shop/intercode.toml": 'env = "awk"\ntasks = "fruit"\nseparator = ";"\nmax_turns = 2\n',
}
DRIVER = """
import contextlib, io, json, sys
from intercode.cli.main import main

for line in sys.stdin:
    arguments, typed = json.loads(line)
    out, err, sys.stdin = io.StringIO(), io.StringIO(), io.StringIO(typed)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:  # of argparse
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), file=sys.__stdout__, flush=True)
"""


class Commands:
    """The command line in a process that finds the package; a second start would take a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, typed: str = "", code: int = 0) -> tuple[str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, typed]) + "\n")
        self._process.stdin.flush()
        ended, out, err = json.loads(self._process.stdout.readline())
        assert ended == code, (arguments, out, err)
        return out, err

    def read(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--quiet", "--json", code=code)[0])

    def close(self) -> None:
        self._process.communicate()


def test_a_sixth_environment(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    cli = Commands(tmp_path)
    try:
        acts(cli)
        is_checked_and_scored(cli)
        takes_its_own_options(cli)
    finally:
        cli.close()


def acts(cli: Commands) -> None:
    done = cli.read("run", "awk", "--out", "oracle")
    assert (done["finished"], done["statistics"]["successes"]) == (2, 2)
    said = cli("run", "awk", "--out", "oracle", "--quiet")[1]
    assert "1 of 3 tasks need the web" in said
    done = cli.read("run", "awk", "--agent", "random", "--out", "random")
    assert done["statistics"]["successes"] == 0
    actions = [turn["action"] for one in episodes(cli.folder / "random") for turn in one["turns"]]
    assert set(actions) <= {"BEGIN { print 42 }", "{ print }"}

    model = ("--model", "scripted/rules.jsonl", "--task", "sum")
    done = cli.read("run", "awk", "--agent", "tool-calling", *model, "--out", "tools")
    assert done["statistics"]["successes"] == 1
    (episode,) = episodes(cli.folder / "tools")
    talk = episode["metadata"]["model"]
    assert [tool["name"] for tool in talk["tools"]] == ["awk", "submit"]
    assert "programs in awk, which read the table t." in json.dumps(talk)

    done = cli.read("sweep", "awk", "--agent", "oracle", "noop", "--limit", "1", "--out", "all")
    assert [run["statistics"]["successes"] for run in done["runs"]] == [1, 0]
    typed = "{ n += $2 } END { print n }\nsubmit\n"
    out, _ = cli("play", "awk", "--task", "sum", typed=typed)
    assert "awk> " in out
    assert "reward 1" in out


def is_checked_and_scored(cli: Commands) -> None:
    found = cli.read("validate", "awk")
    assert found["valid"], found
    assert found["constants"] == [{"constant": "print 5", "solves": 0}]
    assert cli.read("validate", "tasks.jsonl")["valid"], "known by its looks"
    assert "all" in cli("report", "oracle", "random")[0]
    assert "awk> " in cli("show", "oracle")[0]
    done = cli.read("rescore", "oracle", "--env", "awk", "--out", "again")
    assert (done["ways"], done["changes"]) == ({"record": 2}, [])
    done = cli.read("score", "predictions.jsonl", "--env", "awk", "--task", "sum")
    assert done["statistics"]["successes"] == 1


def takes_its_own_options(cli: Commands) -> None:
    done = cli.read("run", "shop", "--out", "shop-run", "--limit", "1")
    assert done["statistics"]["successes"] == 0, "its fields are separated by semicolons"
    _, err = cli("run", "awk", "--engine", "mysql", code=2)
    assert "takes no --engine" in err


def episodes(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
