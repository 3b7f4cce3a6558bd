"""A user's own things of all kinds, in one file outside the package, named in both ways.

Each is used by ``path/to/file.py:name``, and by the entry point of a package that has that file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.test_sixth_environment import Commands
from intercode.errors import UsageError
from intercode_integrations.harbor.writer import task_id

OWN = '''
"""One of each kind. Each leaves a line when it is used."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from intercode import Dataset, InterCodeEnv, Task
from intercode.agents.builtin import ScriptedAgent
from intercode.databases.embedded import sqlite
from intercode.envs.bash import BashEnv
from intercode.envs.options import SandboxOptions
from intercode.envs.traits import Traits
from intercode.envs.vector import ThreadVectorEnv
from intercode.evaluate.agent_setup import PreparedAgent, AgentProvider
from intercode.evaluate.executor import ThreadExecutor
from intercode.interpreters.bash import BashInterpreter
from intercode.models import Answer, Usage
from intercode.project import create
from intercode_sandbox.images.host import make as host
from intercode_sandbox.native.provider import NativeProvider


def used(what):
    with open("used.txt", "a") as file:
        file.write(f"{what}\\n")


def load(say="two"):
    used(f"data {say}")
    return Dataset([Task("own", f"Say {say}.", (f"echo {say}",))], "own tasks")


def score(task, episode, place):
    used("reward")
    return 0.25


class MazeOptions(SandboxOptions, frozen=True, kw_only=True):
    width: Annotated[int, Meta(description="cells in a row", ge=2)] = 8
    compact: Annotated[bool, Meta(description="draw it small")] = False
    scale: Annotated[float, Meta(description="of drawing")] = 1.0
    colour: Annotated[
        str | None, Meta(description="of walls", extra={"choices": ["red", "blue"]})
    ] = None
    doors: Annotated[list[str], Meta(description="open", extra={"many": True})] = []
    workers: Annotated[int, Meta(description="of the maze")] = 1


class Maze(InterCodeEnv):
    name = "maze"
    Options = MazeOptions
    traits = Traits(language="bash")

    def __init__(self, data, *, options=None, **changes):
        options = MazeOptions.merge(options, changes)
        used(f"env {options.width} {options.compact} {options.scale} {options.doors}")
        super().__init__(data, None, BashInterpreter, options.reward or score, options=options)


class Strict(BashEnv):
    def __init__(self, *args, **options):
        used("protocol")
        super().__init__(*args, **options)


class Agent:
    name = "own"

    def act(self, observation, history):
        return "submit" if history else "echo two"


def agent(task):
    used("agent")
    return Agent()


class Sayings(AgentProvider):
    """Makes agents that say the word that follows its name."""

    def make(self, spec, budget, pace):
        word = self.name.rpartition(":")[2]
        used(f"agents {word}")
        return PreparedAgent(lambda task: ScriptedAgent([f"echo {word}", "submit"]), self.name)


class Client:
    endpoint = "own"

    def __init__(self, model, *, base_url, timeout):
        self.model = model

    def send(self, request):
        used(f"model {self.model}")
        return Answer("```bash\\necho two\\n```", usage=Usage(1, 1), model=self.model)

    def close(self):
        pass


def engine(options):
    used("engine")
    return sqlite(options)


def provider(**options):
    used("sandbox")
    return NativeProvider(**options)


def image(argument, context):
    used(f"image {argument}")
    return host("", context)


class Executor(ThreadExecutor):
    def __init__(self, text):
        used(f"on {text.rpartition('://')[2]}")


def vectors(env, num_envs, *, seed, autoreset_mode, wrappers, options):
    used("vectors")
    return ThreadVectorEnv([create(env, **options) for _ in range(num_envs)], autoreset_mode, seed)


class Command:
    """Greet somebody.

    Examples:
      intercode greet you
    """

    @staticmethod
    def configure(parser):
        parser.add_argument("name")

    @staticmethod
    def execute(args):
        print(f"hello {args.name}")
        return 3
'''
GROUPS = {
    "agent_providers": {"says": "Sayings"},
    "agents": {"own": "agent"},
    "commands": {"greet": "Command"},
    "datasets": {"own": "load"},
    "engines": {"own": "engine"},
    "environments": {"labyrinth": "Maze", "bash:strict": "Strict"},
    "executors": {"own": "Executor"},
    "images": {"own": "image"},
    "models": {"own": "Client"},
    "rewards": {"bash:own": "score"},
    "sandboxes": {"own": "provider"},
    "vectors": {"own": "vectors"},
}
"""Group of entry points → name → object of the file."""
CASES: dict[str, tuple[str, str, str]] = {
    "data": ("own.py:load", "own", "data two"),
    "data's option": ("own.py:load:say=three", "own:say=three", "data three"),
    "reward": ("own.py:score", "own", "reward"),
    "env": ("own.py:Maze", "labyrinth", "env 8 False 1.0 []"),
    "protocol": ("own.py:Strict", "strict", "protocol"),
    "agent": ("own.py:agent", "own", "agent"),
    "agent's provider": ("own.py:Sayings:two", "says:two", "agents two"),
    "model": ("own.py:Client", "own/Client", "model Client"),
    "model's name": ("own.py:Client/big", "own/big", "model big"),
    "engine": ("own.py:engine", "own", "engine"),
    "sandbox": ("own.py:provider", "own", "sandbox"),
    "image": ("own.py:image:an:argument", "own:an:argument", "image an:argument"),
    "on": ("own.py:Executor://there", "own://there", "on there"),
}
"""Kind → its name by file, its name by entry point, and the line that it leaves."""
COMMAND = {
    "data": "run bash --data {}",
    "data's option": "run bash --data {}",
    "reward": "run bash --data own.py:load --reward {}",
    "env": "run {} --data tasks.json",
    "protocol": "run bash --data tasks.json --protocol {}",
    "agent": "run bash --data tasks.json --agent {}",
    "agent's provider": "run bash --data tasks.json --agent {}",
    "model": "run bash --data tasks.json --agent single-turn --model {}",
    "model's name": "run bash --data tasks.json --agent single-turn --model {}",
    "engine": "run sql --limit 1 --engine {}",
    "sandbox": "run bash --data tasks.json --sandbox {}",
    "image": "run bash --data tasks.json --image {}",
    "on": "run bash --data tasks.json --on {}",
}
TASKS = [{"task_id": "a", "query": "Say two.", "gold": "echo two"}]
VECTORS = """
import sys
import intercode

tasks = intercode.load_dataset("tasks.json")
for name in sys.argv[1:]:
    envs = intercode.make_vec("bash", 2, backend=name, data=tasks)
    assert envs.num_envs == 2
    envs.close()
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    (package := folder / "own-1.0.dist-info").mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    lines = [
        line
        for group, names in GROUPS.items()
        for line in (f"[intercode.{group}]", *(f"{k} = own:{v}" for k, v in names.items()))
    ]
    (package / "entry_points.txt").write_text("\n".join(lines))
    commands = Commands(folder)
    yield commands
    commands.close()


def lines_of(cli: Commands, *arguments: str, code: int = 0) -> tuple[list[str], str]:
    """Return the lines that own things have left in a command, and what it says of errors."""
    (cli.folder / "used.txt").write_text("")
    _, err = cli(*arguments, code=code)
    return (cli.folder / "used.txt").read_text().splitlines(), err


@pytest.mark.parametrize("way", [0, 1], ids=["file", "entry point"])
@pytest.mark.parametrize("kind", CASES)
def test_each_kind(cli: Commands, kind: str, way: int) -> None:
    name, line = CASES[kind][way], CASES[kind][2]
    out = f"{kind}-{way}"
    words = COMMAND[kind].format(name).split()
    used, _ = lines_of(cli, *words, "--quiet", "--out", out)
    assert line in used
    record = json.loads((cli.folder / out / "run.json").read_text())
    option = kind.partition("'")[0]
    recorded = record["sessions"][-1]["options"].get(option)
    if option == "on":
        recorded = record["sessions"][-1]["settings"]["on"]
    where = f"{cli.folder}/" if way == 0 else ""
    assert recorded == f"{where}{name}", "it means the same in any folder"
    if kind == "reward":
        assert record["env"]["reward"] == name


@pytest.mark.parametrize("kind", CASES)
def test_a_record_that_names_code_is_refused_until_it_is_named_again(
    cli: Commands, kind: str
) -> None:
    """Also in a process that has run the file before: no reference is ever trusted."""
    out = f"again-{kind}"
    words = COMMAND[kind].format(CASES[kind][0]).split()
    cli(*words, "--quiet", "--out", out)
    episodes = cli.folder / out / "episodes.jsonl"
    episodes.write_text("")
    used, err = lines_of(cli, "resume", out, "--quiet", code=2)
    assert used == []
    option = kind.partition("'")[0]
    assert f"--{option} {cli.folder}/own.py:" in err
    cli("resume", out, "--quiet", "--trust")
    assert episodes.read_text()


def test_another_name_by_the_same_file_can_be_given_again(cli: Commands) -> None:
    cli("run", "own.py:Maze", "--data", "tasks.json", "-o", "width=9", "--quiet", "--out", "maze")
    (cli.folder / "maze" / "episodes.jsonl").write_text("")
    again = ("--env", "own.py:Maze", "--data", "tasks.json")
    _, err = lines_of(cli, "resume", "maze", *again, "--quiet", code=2)
    assert "-o width=9" in err and "--env" not in err
    lines, _ = lines_of(cli, "resume", "maze", *again, "-o", "width=9", "--quiet")
    assert "env 9 False 1.0 []" in lines


def test_vectors(cli: Commands) -> None:
    (cli.folder / "used.txt").write_text("")
    script = [sys.executable, "-c", VECTORS, "own.py:vectors", "own"]
    subprocess.run(script, cwd=cli.folder, check=True)
    assert (cli.folder / "used.txt").read_text().splitlines() == ["vectors", "vectors"]


@pytest.mark.parametrize("name", ["own.py:Command", "greet"])
def test_a_command(cli: Commands, name: str) -> None:
    assert cli(name, "you", code=3)[0] == "hello you\n"
    _, err = cli(name, "--nope", code=2)
    assert f"intercode {name}: error: " in err


def test_a_command_that_is_none(cli: Commands) -> None:
    assert "a command has configure(parser)" in cli("own.py:load", code=2)[1]
    assert "no function 'Comand'; did you mean 'Command'?" in cli("own.py:Comand", code=2)[1]
    assert "no file none.py" in cli("none.py:Command", code=2)[1]
    _, err = cli("gret", code=2)
    assert "there is no command 'gret'; did you mean 'greet'? (or your own, as path/to/" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--agent onw", "no agent 'onw'; did you mean 'own'?"),
        ("--sandbox onw", "no sandbox provider 'onw'; did you mean 'own'?"),
        ("--on onw", "no place to run on 'onw'; did you mean 'own'?"),
        ("--agent single-turn --model onw/x", "no provider of models 'onw'; did you mean 'own'?"),
        ("--data onw", "name; did you mean 'own'?"),
        ("--reward onw", "did you mean 'own'?"),
        ("--image onw:x", "no image called 'onw:x'"),
        ("--protocol stict", "environment 'bash' has no protocol 'stict'"),
    ],
)
def test_an_unknown_name_is_told_with_what_was_meant(cli: Commands, words: str, told: str) -> None:
    _, err = cli("run", "bash", "--quiet", *words.split(), code=2)
    assert told in err
    assert "path/to/file.py:" in err or "PATH.py:NAME" in err


def test_options_from_outside(cli: Commands) -> None:
    run = ("run", "labyrinth", "--data", "tasks.json", "--quiet")
    given = ["width=4", "compact=true", "scale=1.5", "colour=red", "doors=a", "doors=b"]
    given.append("timeout=7s")
    options = [word for text in given for word in ("-o", text)]
    lines, _ = lines_of(cli, *run, "--out", "options", *options)
    assert lines[0] == "env 4 True 1.5 ['a', 'b']"
    record = json.loads((cli.folder / "options" / "run.json").read_text())
    recorded = record["sessions"][0]["options"]
    assert recorded["width"] == 4 and recorded["compact"] is True and recorded["timeout"] == 7
    assert record["env"]["options"] == {
        **{"width": 4, "compact": True, "scale": 1.5, "colour": "red", "doors": ["a", "b"]}
    }
    other = ("--out", "options", "--epochs", "2", *options[2:], "-o", "width=5")
    assert "width was 4 and is now 5" in cli(*run, *other, code=2)[1]
    lines, _ = lines_of(cli, *run, "--out", "builtin", "-o", "max-turns=3", "-o", "keys=true")
    record = json.loads((cli.folder / "builtin" / "run.json").read_text())
    assert record["env"]["max_turns"] == 3 and record["env"]["options"] == {"keys": True}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-o widht=3", "environment 'labyrinth' has no option 'widht'; did you mean 'width'?"),
        ("-o nothing=3", "known: capabilities, colour, compact, "),
        ("-o width", "write NAME=VALUE"),
        ("-o width=x", "-o width: must be a whole number, not 'x'"),
        ("-o width=1", "-o width: must be at least 2, not '1'"),
        ("-o width=1.5", "-o width: must be a whole number"),
        ("-o scale=nan", "-o scale: must be a number"),
        ("-o compact=yes", "-o compact: must be true or false"),
        ("-o colour=green", "-o colour: must be one of red, blue"),
        ("-o timeout=soon", "timeout"),
        ("-o width=3 -o width=4", "-o width is given twice"),
        ("-o memory=300M --memory 400M", "memory is given twice"),
        ("-o workers=2", "-o workers: use --workers, which is an option of every run"),
        ("-o layers=x.tar", "has no option 'layers'"),
        ("-o observations=utf-8", "has no option 'observations'"),
    ],
)
def test_an_option_that_makes_no_sense(cli: Commands, words: str, told: str) -> None:
    run = ("run", "labyrinth", "--data", "tasks.json", "--quiet", "--out", "none")
    lines, err = lines_of(cli, *run, *words.split(), code=2)
    assert told in err
    assert lines == [] and not (cli.folder / "none").exists()


@pytest.mark.parametrize("command", ["play", "validate", "sweep", "run --locked locked"])
def test_options_in_every_command_that_makes_environments(cli: Commands, command: str) -> None:
    words = {
        "play": ["play", "own.py:Maze", "--data", "tasks.json"],
        "validate": ["validate", "tasks.json", "--env", "own.py:Maze", "--quiet"],
        "sweep": ["sweep", "own.py:Maze=tasks.json", "--agent", "noop", "--out", "sweep"],
    }.get(command, [*command.split(), "--env", "own.py:Maze", "--data", "tasks.json"])
    if "--locked" in words:
        cli("run", "own.py:Maze", "--data", "tasks.json", "--quiet", "--out", "locked")
        words += ["--out", "after"]
    _, err = cli(*words, "-o", "widht=3", code=2)
    assert "environment 'maze' has no option 'widht'; did you mean 'width'?" in err


HOSTILE: list[dict[str, Any]] = [
    {"tasks": "own.py:load"},
    {"tasks": "own.py:load:say=x"},
    {"sandbox": "own.py:provider"},
    {"provider": "own.py:provider"},
    {"sandbox": "own"},
    {"image": "own.py:image:x"},
    {"image": "./own.py:image:x"},
    {"image": "own:x"},
    {"image": "own.py:image:x+./more.tar"},
    {"env": "sql", "engine": "own.py:engine"},
    {"env": "sql", "engine": "own"},
]


@pytest.mark.parametrize("entry", HOSTILE, ids=str)
def test_a_benchmarks_file_names_no_more_code_than_before(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    """In a process of its own, which has imported nothing of the package."""
    for name, text in {"own.py": OWN, "tasks.jsonl": json.dumps(TASKS[0])}.items():
        (tmp_path / name).write_text(text)
    entry = {"env": "bash", **entry}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    (tmp_path / "intercode.toml").write_text(lines)
    package = tmp_path / "own-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    points = "[intercode.{}]\nown = own:{}\n"
    text = points.format("sandboxes", "provider") + points.format("engines", "engine")
    (package / "entry_points.txt").write_text(text + points.format("images", "image"))
    cli = Commands(tmp_path)
    try:
        _, err = cli("run", ".", "--quiet", "--out", "run", code=2)
        assert "may not name code" in err
    finally:
        cli.close()
    assert not (tmp_path / "used.txt").exists()


@pytest.mark.parametrize("image", ["own.py:image:x", "own:x", "./own.py:image:x"])
def test_a_task_names_no_code(cli: Commands, tmp_path: Path, image: str) -> None:
    data = cli.folder / "hostile.json"
    data.write_text(json.dumps([{**TASKS[0], "image": image}]))
    fresh = Commands(cli.folder)
    (cli.folder / "used.txt").write_text("")
    try:
        _, err = fresh("run", "bash", "--data", "hostile.json", "--quiet", "--out", "h", code=2)
    finally:
        fresh.close()
    assert "a task may not run it by itself" in err
    assert (cli.folder / "used.txt").read_text() == ""


@pytest.mark.parametrize("name", ["own.py:Maze", "./own", "/own", "own/maze", "bash:paper"])
def test_a_folder_of_harbors_names_no_code(name: str) -> None:
    metadata = {"intercode": {"environment": name, "task_id": "a"}}
    with pytest.raises(UsageError, match="must name an environment"):
        task_id(metadata, Path("task.toml"))
    metadata["intercode"]["environment"] = "bash"
    assert task_id(metadata, Path("task.toml")) == ("bash", "a")


@pytest.mark.parametrize("command", ["validate", "run", "play"])
def test_an_environment_without_its_tasks_is_told_what_to_type(cli: Commands, command: str) -> None:
    used, err = lines_of(cli, command, "own.py:Maze", code=2)
    assert used == []
    assert "environment 'maze' has no bundled tasks: name a file or dataset by --data" in err
    assert lines_of(cli, "validate", "own.py:load", "-q")[0][0] == "data two", "still a loader"


@pytest.mark.parametrize("model", ["own.py:client", "own.py:client/large"])
def test_a_client_of_ones_own_is_refused_where_a_program_sends_the_requests(
    cli: Commands, model: str
) -> None:
    used, err = lines_of(
        cli, "run", "bash", "--agent", "cli:true", "--model", model, "--out", "never", code=2
    )
    assert used == []
    assert f"{model} is your own client, but" in err and "openai-compatible/NAME" in err
    assert not (cli.folder / "never").exists()
