"""A record is data: what acts in it is named again or trusted, and links lead out of no folder."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from evaluate.fakes import Factory, dataset
from intercode.agents.registry import AGENTS
from intercode.cli.main import main
from intercode.databases import ENGINES
from intercode.envs.options import list_class_options
from intercode.errors import RecordError, TrustError
from intercode.evaluate import evaluate
from intercode.evaluate.rescore import rescore
from intercode.records import EPISODES, MANIFEST, RunRecordWriter, load_actions, read_manifest
from intercode.registry import DATASETS, ENVS, MODELS, REWARDS, SOURCES
from intercode.report.live_runs import ViewerRuns
from intercode.spec import (
    SECTIONS,
    RunOptions,
    RunSpec,
    environment_kinds,
    list_record_effects,
    list_section_options,
    recorded_options,
)
from intercode.trust import _DEEDS, DATA_OPTIONS, effects
from intercode_sandbox.images.resolve import SCHEMES
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.providers import PROVIDERS
from waiting import PATIENCE

Tell = pytest.CaptureFixture[str]
KEY = "sk-very-secret-0123456789"
MODEL = {"agent": "try-again", "model": "openai-compatible/m"}
BAIT = """
from pathlib import Path

Path(__file__).with_name("was-run").touch()

class Agent:
    def act(self, observation, history):
        return "submit"

def make(task):
    return Agent()

def score(task, episode, sandbox):
    return 1.0
"""


class Trap:
    """Places that records of the tests name: code, tasks, an address. Each tells of its use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "bait.py"
        self.code.write_text(BAIT)
        self.tasks = folder / "bait.json"
        self.tasks.write_text(json.dumps([{"task_id": "t", "query": "q", "gold": "true"}]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def is_untouched(self) -> bool:
        """Whether the code has not run, and the address had no connection."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return not (self.folder / "was-run").exists()
        connection.close()
        return False

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    (folder := tmp_path / "trap").mkdir()
    made = Trap(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of bundled tasks by a bundled agent."""
    run = tmp_path_factory.mktemp("ordinary") / "run"
    assert main(["run", "bash", "--limit", "1", "--out", str(run), "--quiet"]) == 0
    return run


@pytest.fixture
def run(ordinary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (copy := tmp_path / "run").mkdir()
    for name in (MANIFEST, EPISODES):
        (copy / name).write_bytes((ordinary / name).read_bytes())
    return copy


def say(run: Path, **options: Any) -> None:
    """Let a record have other options."""
    manifest = read_manifest(run)
    manifest["sessions"][-1]["options"].update(options)
    (run / MANIFEST).write_text(json.dumps(manifest))


COMMANDS: dict[str, list[str]] = {
    "resume": ["resume", "run", "--epochs", "2", "--quiet"],
    "rescore": ["rescore", "run", "--out", "new", "--quiet"],
    "locked": ["run", "--locked", "run", "--out", "new", "--quiet"],
    "score": ["score", "predictions.jsonl", "--locked", "run", "--out", "new", "--quiet"],
}
Naming = Callable[[Trap], dict[str, Any]]
NAMING: dict[str, Naming] = {
    "reward": lambda trap: {"reward": f"{trap.code}:score"},
    "data": lambda trap: {"data": str(trap.tasks)},
    "data of a dataset's name": lambda trap: {"data": f"mbpp:root={trap.folder}"},
    "data elsewhere": lambda trap: {"env": "openenv", "data": f"openenv:http://{trap.place}"},
    "image of a folder": lambda trap: {"image": str(trap.folder)},
    "image of a registry": lambda trap: {"image": f"docker://{trap.place}/image"},
    "image with a script": lambda trap: {"image": f"host+{trap.folder}/x.sh"},
    "default_image": lambda trap: {"default_image": f"docker://{trap.place}/image"},
    "engine": lambda trap: {"env": "sql", "engine": f"mysql://root@{trap.place}"},
    "repositories": lambda trap: {"env": "swe", "repositories": f"http://{trap.place}/"},
    "databases": lambda trap: {"env": "sql", "databases": str(trap.folder)},
    "network": lambda trap: {"network": True},
    "network of a list": lambda trap: {"network": [trap.place]},
    "capabilities": lambda trap: {"capabilities": ["CAP_NET_RAW"]},
    "layers": lambda trap: {"layers": ["/etc"]},
    "limits": lambda trap: {"limits": {"debugger": True}},
    "options": lambda trap: {"options": {"network": True}},
    "python": lambda trap: {"env": "python", "python": "/bin/evil"},
    "skill": lambda trap: {"skill": [str(trap.folder)]},
    "unknown": lambda trap: {"of_tomorrow": 1},
    "data of a function": lambda trap: {"data": f"{trap.code}:score"},
    "data of a function with options": lambda trap: {"data": f"{trap.code}:score:seed=1"},
    "env of a file": lambda trap: {"env": f"{trap.code}:make"},
    "protocol": lambda trap: {"protocol": f"{trap.code}:make"},
    "engine of a file": lambda trap: {"env": "sql", "engine": f"{trap.code}:make"},
    "sandbox": lambda trap: {"sandbox": f"{trap.code}:make"},
    "image of a function": lambda trap: {"image": f"{trap.code}:make:x"},
    "default_image of a function": lambda trap: {"default_image": f"{trap.code}:make"},
    "judge_url": lambda trap: {
        **{"reward": "judge", "judge_model": "vllm/m"},
        "judge_url": f"http://{trap.place}/v1",
    },
}
"""Options that act with any agent."""
OF_AGENTS: dict[str, Naming] = {
    "agent": lambda trap: {"agent": f"{trap.code}:make"},
    "agent, a command": lambda trap: {"agent": f"cli:touch {trap.folder}/was-run"},
    "recording": lambda trap: {"agent": "replay", "recording": str(trap.tasks)},
    "base_url": lambda trap: {**MODEL, "base_url": f"http://{trap.place}/v1"},
    "model of a file": lambda trap: {**MODEL, "model": f"local/{trap.folder}/x.gguf"},
    "model of a function": lambda trap: {**MODEL, "model": f"{trap.code}:make/name"},
    "model with an address": lambda trap: {**MODEL, "model": f"litellm/x/http://{trap.place}"},
    "prompt": lambda trap: {**MODEL, "model": "vllm/m", "prompt": str(trap.code)},
    "cache": lambda trap: {**MODEL, "model": "vllm/m", "cache": str(trap.folder)},
    "prices": lambda trap: {**MODEL, "model": "vllm/m", "prices": str(trap.tasks)},
    "search_test": lambda trap: {"agent": "tree-search", "model": "vllm/m", "search_test": "id"},
}
"""Options that act only where the recorded agent does."""


@pytest.mark.parametrize(
    ("command", "naming"),
    [
        *product(sorted(COMMANDS.keys() - {"score"}), NAMING),
        *product(("score",), sorted(NAMING.keys() - {"skill"})),
        *product(("resume", "locked"), OF_AGENTS),
    ],
)
def test_nothing_of_a_record_acts(
    run: Path,
    trap: Trap,
    capsys: Tell,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    naming: str,
) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    Path("predictions.jsonl").write_text('{"task_id": "t", "prediction": "x"}\n')
    say(run, **({**NAMING, **OF_AGENTS}[naming](trap)))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert main(COMMANDS[command]) == 2
    told = capsys.readouterr().err
    option = naming.partition(" ")[0].rstrip(",").replace("_", "-")
    foreign = {"unknown": "-o of_tomorrow=1", "limits": "-o 'limits=", "options": "-o 'options="}
    assert (
        f"  {foreign.get(option, f'--{option}')}" in told
        and "name. None of them was run, read or contacted" in told
    )
    assert "--trust" in told and "Traceback" not in told
    assert trap.is_untouched
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert not Path("new").exists()


def test_the_recorded_agent_does_not_act_when_it_is_rescored(run: Path, trap: Trap) -> None:
    for naming in OF_AGENTS.values():
        say(run, **naming(trap))
    assert main([*COMMANDS["rescore"][:-1], "--json"]) == 0
    assert trap.is_untouched


def test_all_of_it_is_told_at_once(run: Path, trap: Trap, capsys: Tell) -> None:
    say(run, agent=f"{trap.code}:make", reward=f"{trap.code}:score", data=str(trap.tasks))
    say(run, image=f"docker://{trap.place}/\x1b[2J", network=["example.org", "pypi.org"])
    assert main(COMMANDS["resume"]) == 2
    told = capsys.readouterr().err
    for words in (
        f"--agent {trap.code}:make",
        f"--reward {trap.code}:score",
        f"--data {trap.tasks}",
        f"--image 'docker://{trap.place}/\\x1b[2J'",
        "--network example.org,pypi.org",
    ):
        assert f"\n  {words}\n" in told
    assert trap.is_untouched


def test_what_is_named_again_is_taken(run: Path, trap: Trap, capsys: Tell) -> None:
    trap.code.write_text(BAIT)
    told = ["--data", str(trap.tasks), "--agent", "trap/bait.py:make", "--timeout", "9"]
    assert main(["run", "bash", *told, "--out", "mine", "--quiet"]) == 0
    (trap.folder / "was-run").unlink()
    again = ["--data", "trap/bait.json", "--agent", f"{trap.code}:make"]
    assert main(["resume", "mine", "--epochs", "2", *again[:2], "--quiet"]) == 2
    assert main(["resume", "mine", "--epochs", "2", *again[2:], "--quiet"]) == 2
    assert trap.is_untouched
    capsys.readouterr()
    assert main(["resume", "mine", "--epochs", "2", *again, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 1
    first, second = read_manifest(Path("mine"))["sessions"]
    assert second["options"] == {**first["options"], "epochs": 2}
    # Neither another value of the option nor another option is the same.
    other = trap.folder / "other.py"
    other.write_text(BAIT)
    assert main(["resume", "mine", "--epochs", "3", *again[:3], f"{other}:make", "--quiet"]) == 2
    assert "agent.name" in capsys.readouterr().err, "a run has one agent"
    assert main(["rescore", "mine", *again[:2], "--out", "scored", "--quiet"]) == 0
    assert main(["run", "--locked", "mine", *again, "--out", "same", "--quiet"]) == 0
    assert read_manifest(Path("same"))["sessions"][0]["locked"]["accepted"] == []


def test_trust_tells_first_and_goes_on(run: Path, trap: Trap, capsys: Tell) -> None:
    told = ["--data", str(trap.tasks), "--agent", f"{trap.code}:make", "--quiet"]
    assert main(["run", "bash", *told, "--out", "mine"]) == 0
    (trap.folder / "was-run").unlink()
    trap.code.write_text(f"print('it runs')\n{BAIT}")
    capsys.readouterr()
    assert main(["resume", "mine", "--epochs", "2", "--trust", "--accept", "agent", "--quiet"]) == 0
    seen = capsys.readouterr()
    assert seen.err.startswith("--trust: taken from mine/run.json:\n")
    assert f"\n  --agent {trap.code}:make\n    runs this agent\n" in seen.err
    assert f"\n  --data {trap.tasks}\n    reads these tasks" in seen.err
    assert "it runs" in seen.out and not trap.is_untouched
    assert main(["run", "bash", "--trust", "--out", "x"]) == 2
    assert "--trust needs --locked" in capsys.readouterr().err


def test_ones_own_ordinary_run_needs_no_trust(run: Path, capsys: Tell) -> None:
    for command in ("resume", "rescore"):
        assert main(COMMANDS[command]) == 0
        assert "--trust" not in capsys.readouterr().err
    assert main(["run", "--locked", "run", "--out", "again", "--quiet"]) == 0


def test_a_folder_names_all_that_its_file_says(run: Path, trap: Trap) -> None:
    (trap.folder / "intercode.toml").write_text(
        'env = "bash"\ntasks = "bait.json"\nreward = "bait.py:score"\nimage = "host+./more.sh"\n'
    )
    (trap.folder / "more.sh").write_text("touch /more\n")
    assert main(["run", "trap", "--out", "mine", "--quiet"]) == 0
    locked = ["--locked", "mine", "--out", "same", "--quiet"]
    assert main(["run", *locked]) == 2
    assert main(["run", "trap", *locked]) == 0
    assert main(["resume", "mine", "--env", "trap", "--epochs", "2", "--quiet"]) == 0


@pytest.mark.parametrize("name", ["trap", "./trap"])
def test_a_folder_that_has_moved_is_named_with_its_option(
    run: Path, trap: Trap, capsys: Tell, name: str
) -> None:
    (trap.folder / "intercode.toml").write_text('env = "bash"\ntasks = "bait.json"\n')
    assert main(["run", name, "--out", "mine", "--quiet"]) == 0
    trap.folder.rename(trap.folder.with_name("elsewhere"))
    again = ["resume", "mine", "--epochs", "2", "--quiet"]
    capsys.readouterr()
    assert main([*again, "--trust"]) == 2
    said = capsys.readouterr().err
    assert f"names {trap.folder}" in said and "no longer exists. Give its new path" in said
    assert "--env PATH" in said
    assert main([*again, "--env", str(trap.folder.with_name("elsewhere"))]) == 0


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude", "ANTHROPIC_API_KEY"),
        *((f"{name}/m", "OPENAI_COMPATIBLE_API_KEY") for name in ("vllm", "openai-compatible")),
        ("openai-completions/m", "OPENAI_COMPATIBLE_API_KEY"),
        ("litellm/mistral/m", ""),
    ],
)
def test_no_key_goes_to_an_address_of_a_record(
    run: Path,
    trap: Trap,
    capsys: Tell,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    variable: str,
) -> None:
    url = f"http://{trap.place}/v1"
    if variable:
        monkeypatch.setenv(variable, KEY)
    say(run, agent="try-again", model=model, base_url=url)
    assert main([*COMMANDS["resume"], "--trust"]) == 2
    told = capsys.readouterr().err
    assert f"  --base-url {url}\n" in told and "goes only to an address that you name" in told
    assert variable in told and KEY not in told and trap.is_untouched
    with pytest.raises(TrustError, match="an address that you name"):
        RunSpec.from_record(read_manifest(run), trust=True)
    again = {"base_url": url, "model": model}
    named = RunSpec.from_record(read_manifest(run), again, trust=True)
    assert named.model.base_url == url
    say(run, reward="judge", judge_model=model, judge_url=url, agent="oracle", base_url=None)
    with pytest.raises(TrustError, match="--judge-url"):
        RunSpec.from_record(read_manifest(run), trust=True)


@pytest.mark.parametrize("option", ["model", "judge_model"])
def test_no_key_goes_where_the_name_of_a_model_leads(run: Path, option: str) -> None:
    name = "litellm/huggingface/https://example.org/m"
    say(run, **{"agent": "try-again", "model": "vllm/m", "judge_model": "vllm/m", option: name})
    with pytest.raises(TrustError, match="the key of litellm goes only to an address"):
        RunSpec.from_record(read_manifest(run), trust=True)
    assert (
        RunSpec.from_record(read_manifest(run), {option: name}, trust=True).flat()[option] == name
    )


@pytest.mark.parametrize("variable", ["MYSQL_PWD", "PGPASSWORD"])
def test_no_password_goes_to_a_server_of_a_record(
    run: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    say(run, engine="postgresql://root@example.org")
    assert RunSpec.from_record(read_manifest(run), trust=True).env.options["engine"]
    monkeypatch.setenv(variable, "a password")
    with pytest.raises(TrustError, match=variable):
        RunSpec.from_record(read_manifest(run), trust=True)


def test_a_server_without_a_key_is_trusted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY", raising=False)
    say(run, agent="try-again", model="vllm/m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(TrustError, match="--base-url"):
        RunSpec.from_record(read_manifest(run))
    assert RunSpec.from_record(read_manifest(run), trust=True).model.base_url


def test_a_record_does_not_say_how_a_command_is_carried_out(run: Path, trap: Trap) -> None:
    strange = dict.fromkeys(list_section_options(RunOptions), "ray://example.org:1")
    say(run, **strange, exclude=str(trap.tasks))
    assert (
        not {*list_section_options(RunOptions), "exclude"}
        & recorded_options(read_manifest(run)).keys()
    )
    assert main(COMMANDS["locked"]) == 0
    assert read_manifest(Path("new"))["sessions"][0]["locked"]["accepted"] == []
    manifest = read_manifest(run)
    manifest["sessions"][-1]["settings"]["on"] = "ray://example.org:1"
    with pytest.raises(TrustError, match=r"--on ray://example\.org:1"):
        RunSpec.from_record(manifest, is_resume=True)


def test_every_option_is_known_to_be_data_or_has_its_effect_in_words() -> None:
    names = {name for part in (RunSpec, *SECTIONS.values()) for name in list_section_options(part)}
    names |= {name for kind in environment_kinds() for name in list_class_options(kind)}
    unflagged = {"options", "limits", "render_mode", "observations", "errors"}  # in no record
    assert (
        names - list_section_options(RunOptions).keys() - {"exclude"}
        <= DATA_OPTIONS | _DEEDS.keys() | unflagged
    )
    assert not DATA_OPTIONS & _DEEDS.keys()


@pytest.mark.parametrize("name", [*sorted(DATA_OPTIONS - {"ignore"}), "tasks"])
def test_data_of_another_shape_is_none(name: str) -> None:
    assert effects({name: {"a": 1}}) and effects({name: [{"a": 1}]})
    assert not effects({name: 3}) and not effects({name: ["a"]})


def test_names_of_ours_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harmless: list[dict[str, Any]] = [
        *({"data": value} for value in ("nl2bash", "generated-bash:seed=1,difficulty=2")),
        *({"image": value} for value in ("host", "base", "nl2bash", "host+builtin:x.tar")),
        *({"agent": value} for value in ("oracle", "react", "aider")),
        *({"model": value} for value in ("openai/gpt-4o", "vllm/Qwen/Qwen2.5", "local/qwen3")),
        *({"engine": value} for value in ("sqlite", "mysql")),
        {"env": "sql", "reward": "bird-ex"},
    ]
    acting: list[dict[str, Any]] = [
        *(
            {"data": value}
            for value in ("./bash", "tasks.json", "bird:root=x", "spider:split=../x")
        ),
        *({"data": value} for value in ("generated-bash:seed=/x", "harbor:x", "verifiers:os")),
        *({"image": value} for value in ("debian:trixie[nmap]", "oci:/x", "digest:12345678")),
        *({"image": value} for value in ("host+~/x.tar", "/x", "./Dockerfile", "evil", "\0")),
        {"image": 3},
        *({"agent": value} for value in ("x.py:make", "cli:id", "./aider.toml", "aider.toml")),
        *({"model": value} for value in ("scripted/x.jsonl", "local/./x.gguf", "local/a/b", "m")),
        *({"model": value} for value in ("openai/http://x", "vllm/../x?y", "litellm/a/b")),
        *({"engine": value} for value in ("mysql://x", "evil")),
        *({"split": value} for value in ("../x", "a/b")),
        {"protocol": "evil"},
        {"sandbox": "evil"},
        {"env": "bash", "reward": "bird-ex"},
    ]
    assert [one for one in harmless if effects(one)] == []
    assert [one for one in acting if not effects(one)] == []


def plugin(monkeypatch: pytest.MonkeyPatch, registry: LazyRegistry, folder: Path) -> None:
    """Let an installed package have an environment whose module leaves a trace."""
    (folder / "ic_bait.py").write_text(BAIT)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "ic_bait", raising=False)
    assert "bait" not in registry  # all packages are looked for
    monkeypatch.setitem(registry._entries, "bait", "ic_bait:make")
    monkeypatch.setattr(registry, "_packages", {*registry._packages, "bait"})


@pytest.mark.parametrize("registry", [ENVS, SOURCES])
def test_no_module_of_a_package_is_imported_because_a_record_names_it(
    run: Path, trap: Trap, capsys: Tell, monkeypatch: pytest.MonkeyPatch, registry: LazyRegistry
) -> None:
    plugin(monkeypatch, registry, trap.folder)
    manifest = json.loads((run / MANIFEST).read_text().replace('"env": "bash"', '"env": "bait"'))
    (run / MANIFEST).write_text(json.dumps(manifest))
    episodes = (run / EPISODES).read_text().replace('"env":"bash"', '"env":"bait"')
    (run / EPISODES).write_text(episodes)
    assert '"env":"bait"' in episodes and manifest["env"]["env"] == "bait"
    assert main(["show", "run"]) == main(["report", "run", "--html", "page.html"]) == 0
    assert main(["export", "run", "--to", "chat"]) == 0
    capsys.readouterr()
    assert main(["export", "run", "--to", "chat", "--style", "tools"]) == 2
    assert "--trust" in capsys.readouterr().err
    ViewerRuns([run]).refresh()
    for command in ("resume", "rescore", "locked"):
        assert main(COMMANDS[command]) == 2
        assert "--env bait" in capsys.readouterr().err
    tasks = dataset(1)
    evaluate(tasks, "noop", Factory(tasks), out="python", settings={"env": "bash"})
    manifest = read_manifest(Path("python"))
    manifest["env"]["env"] = "bait"
    Path("python", MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(TrustError, match="trust=True"):
        rescore("python", tasks, "default")
    assert trap.is_untouched
    monkeypatch.setattr(registry, "_packages", set())
    assert registry.is_trusted("bait"), "what this process has registered is its own"


PACKAGES: dict[str, tuple[LazyRegistry, dict[str, Any]]] = {
    "agent": (AGENTS, {"agent": "bait"}),
    "data": (DATASETS, {"data": "bait"}),
    "engine": (ENGINES, {"env": "sql", "engine": "bait"}),
    "image": (SCHEMES, {"image": "bait:x"}),
    "model": (MODELS, {"agent": "try-again", "model": "bait/x"}),
    "protocol": (ENVS, {"protocol": "bait"}),
    "reward": (REWARDS, {"reward": "bait"}),
    "sandbox": (PROVIDERS, {"sandbox": "bait"}),
}
"""Option → its registry, and what names something of an installed package there."""


@pytest.mark.parametrize("option", PACKAGES)
def test_nothing_of_a_package_is_imported_because_a_record_names_it(
    run: Path, trap: Trap, capsys: Tell, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    registry, options = PACKAGES[option]
    name = "bash:bait" if option in ("protocol", "reward") else "bait"
    (trap.folder / "ic_bait.py").write_text(BAIT)
    monkeypatch.syspath_prepend(str(trap.folder))
    monkeypatch.delitem(sys.modules, "ic_bait", raising=False)
    assert name not in registry  # all packages are looked for
    monkeypatch.setitem(registry._entries, name, "ic_bait:make")
    monkeypatch.setattr(registry, "_packages", {*registry._packages, name})
    say(run, **options)
    for command in ("resume", "locked"):
        assert main(COMMANDS[command]) == 2
        assert f"  --{option} bait" in capsys.readouterr().err
    assert trap.is_untouched


def test_where_a_run_goes_on_is_not_taken_from_its_record(
    run: Path, trap: Trap, capsys: Tell
) -> None:
    manifest = read_manifest(run)
    manifest["sessions"][-1]["settings"]["on"] = f"{trap.code}:make"
    (run / MANIFEST).write_text(json.dumps(manifest))
    assert main(COMMANDS["resume"]) == 2
    assert f"--on {trap.code}:make" in capsys.readouterr().err
    assert trap.is_untouched


def test_readers_of_records_run_no_file_that_one_names(run: Path, trap: Trap) -> None:
    """Neither as an environment nor as its protocol: also where nothing is run again."""
    code = f"{trap.code}:make"
    episodes = (run / EPISODES).read_text()
    for facts in ({"env": code}, {"protocol": code}):
        manifest = read_manifest(run)
        manifest["env"].update(facts)
        (run / MANIFEST).write_text(json.dumps(manifest))
        if "env" in facts:
            (run / EPISODES).write_text(episodes.replace('"env":"bash"', f'"env":"{code}"'))
        main(["show", "run"])
        main(["report", "run", "--html", "page.html"])
        for style in ("chat", "tools"):
            main(["export", "run", "--to", "chat", "--style", style])
        ViewerRuns([run]).refresh()
        for command in COMMANDS:
            main(COMMANDS[command])
        assert trap.is_untouched


def test_the_environment_of_the_facts_counts_as_that_of_the_options(
    run: Path, trap: Trap, capsys: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(monkeypatch, ENVS, trap.folder)
    manifest = read_manifest(run)
    manifest["env"]["env"] = "bait"
    (run / MANIFEST).write_text(json.dumps(manifest))
    assert main(COMMANDS["rescore"]) == 2
    assert "'bait'" in capsys.readouterr().err and trap.is_untouched


def test_no_privilege_comes_from_the_profile_in_a_record(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(run)
    limits = {"memory": "2G", "capabilities": ["CAP_NET_RAW"], "debugger": True}
    manifest["agent"]["language_model"] = {"profile": {"limits": limits}}
    (run / MANIFEST).write_text(json.dumps(manifest))
    asked: list[Any] = []

    def setting(*args: Any, required_options: Any, **options: Any) -> Any:
        asked.append(required_options["limits"])
        raise RecordError("seen")

    monkeypatch.setattr("intercode.cli.rescore.resolve_setting", setting)
    assert main(COMMANDS["rescore"]) != 0
    assert asked == [{"memory": "2G"}]


def test_python_is_told_and_may_trust(run: Path, trap: Trap) -> None:
    say(run, agent=f"{trap.code}:make")
    manifest = read_manifest(run)
    with pytest.raises(TrustError, match=r"--agent .*bait\.py:make"):
        RunSpec.from_record(manifest)
    (effect,) = list_record_effects(manifest, {})
    assert (effect.option, effect.value) == ("agent", f"{trap.code}:make")
    again = {"agent": f"{trap.code}:make"}
    assert list_record_effects(manifest, again) == []
    named = RunSpec.from_record(manifest, again)
    assert named == RunSpec.from_record(manifest, trust=True)
    assert trap.is_untouched, "a spec runs nothing"


# Links and special files


READERS: dict[str, list[str]] = {
    "show": ["show", "run"],
    "report": ["report", "run"],
    "export": ["export", "run", "--to", "jsonl"],
    "replay": ["run", "bash", "--agent", "replay", "--recording", "run", "--out", "x", "--quiet"],
    **COMMANDS,
}


def put(path: Path, kind: str, secret: Path) -> None:
    """Put a link or a special file at a file's place."""
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"file": secret, "device": Path("/dev/zero")}[kind])


@pytest.mark.parametrize("kind", ["file", "device", "fifo"])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *product(sorted(READERS.keys() - {"replay"}), [MANIFEST]),
        *product(sorted(READERS.keys() - {"locked", "score"}), [EPISODES]),
    ],
)
def test_no_link_and_no_special_file_of_a_folder_is_read(
    run: Path, capsys: Tell, command: str, name: str, kind: str
) -> None:
    Path("predictions.jsonl").write_text('{"task_id": "t", "prediction": "x"}\n')
    secret = Path("secret")
    secret.write_bytes((run / name).read_bytes())
    put(run / name, kind, secret.absolute())
    before = secret.read_bytes()
    ended = threading.Event()

    def act() -> None:
        assert main(READERS[command]) == 2
        ended.set()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    assert ended.wait(PATIENCE), "it waits for the FIFO's other end, or does not fail"
    told = capsys.readouterr().err
    assert f"{name} is " in told and ("a symbolic link" in told or "not a regular file" in told)
    assert secret.read_bytes() == before


@pytest.mark.parametrize("kind", ["file", "fifo", "folder"])
def test_nothing_is_written_through_a_link(run: Path, kind: str) -> None:
    (secret := Path("secret")).write_text("mine")
    fresh = run / f".{MANIFEST}.new"
    fresh.touch()
    put(fresh, kind, secret.absolute())
    writer = RunRecordWriter(run)
    try:
        if kind == "folder":
            with pytest.raises(RecordError):
                writer.write_manifest({})
        else:
            writer.write_manifest({"format": 1})
            assert json.loads((run / MANIFEST).read_text()) == {"format": 1}
            assert not (run / MANIFEST).is_symlink()
    finally:
        writer.close()
    put(run / EPISODES, "file", secret.absolute())
    with pytest.raises(RecordError, match="is a symbolic link, which is refused in"):
        RunRecordWriter(run)
    assert secret.read_text() == "mine"


def test_the_viewer_follows_no_link(run: Path, tmp_path: Path) -> None:
    (runs := tmp_path / "runs").mkdir()
    outside = run.rename(tmp_path / "outside")
    (runs / "out").symlink_to(outside)
    library = ViewerRuns([runs])
    assert not library.refresh() and library.runs() == [] and library.rows == []
    (real := runs / "real").mkdir()
    (real / MANIFEST).write_bytes((outside / MANIFEST).read_bytes())
    (real / EPISODES).symlink_to(outside / EPISODES)
    library = ViewerRuns([runs])
    library.refresh()
    assert len(library.runs()) == 1 and library.rows == []
    assert "is a symbolic link, which is refused in" in library.overview()[1]
    (real / EPISODES).unlink()
    (runs / "same").symlink_to("real")
    (real / EPISODES).write_bytes((outside / EPISODES).read_bytes())
    library = ViewerRuns([runs])
    library.refresh()
    assert len(library.runs()) == 2, "a link within the folder is one of it"


def test_a_file_that_the_caller_names_may_be_a_link(run: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(run / EPISODES)
    assert load_actions(link) == load_actions(run) != {}
