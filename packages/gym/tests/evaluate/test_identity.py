"""Options and the identity of a run: one that changes what a run is cannot be mixed into it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.envs.options import OptionDescription, list_constructor_options
from intercode.errors import RecordError
from intercode.evaluate import evaluate as run
from intercode.evaluate.manifest_diff import DriftError, differences
from intercode.records import EPISODES, MANIFEST, read_manifest
from intercode.registry import environment
from intercode.spec import RunSpec, add_identity
from intercode_sandbox.user_code import load

ENVS = ("bash", "sql", "python", "ctf", "swe", "maze")
REWARD = "def score(task, episode, place):\n    return 1.0\n"
MAZE = """
from typing import Annotated

from msgspec import Meta

from intercode.envs.base import InterCodeEnv
from intercode.envs.options import SandboxOptions
from intercode.envs.traits import Traits
from intercode.interpreters.bash import BashInterpreter


class MazeOptions(SandboxOptions, frozen=True, kw_only=True):
    width: Annotated[int, Meta(description="cells in a row")] = 8
    compact: Annotated[bool, Meta(description="draw it small")] = False
    colour: Annotated[str | None, Meta(description="of walls")] = None
    speed: Annotated[int, Meta(description="of drawing", extra={"role": "resources"})] = 1


class Maze(InterCodeEnv):
    name = "maze"
    Options = MazeOptions
    traits = Traits(language="bash")

    def __init__(self, data, *, options=None, **changes):
        options = MazeOptions.merge(options, changes)
        score = lambda task, episode, place: 1.0
        super().__init__(data, None, BashInterpreter, options.reward or score, options=options)
"""
VALUES: dict[str, Any] = {
    "timeout": 7,
    "memory": "300M",
    "disk": "300M",
    "output": "2M",
    "processes": 99,
    "capabilities": "chown",
    "max_turns": 4,
    "image": "host+./more.tar",
    "default_image": "host+./more.tar",
    "network": "pypi.org",
    "keep_diffs": True,
    "keys": True,
    "reward": "reward.py:score",
    "attempts": 1,
    "python": "python3",
    "engine": "duckdb",
    "max_rows": 1,
    "permute_columns": True,
    "columns": "explained",
    "history": "full",
    "observations": "utf-8",
    "ignore": ["/root/x"],
    "width": 9,
    "compact": True,
    "colour": "red",
    "speed": 2,
}
"""Option → another value than its default."""
HARMLESS = {"keep_diffs", "speed"}
"""Options that change nothing that an agent or a reward sees."""
ELSEWHERE = {
    "default_image": "the bundled tasks have their own: see the maze",
    "sandbox": "another back end needs an engine: see test_locked",
    "limits": "it is the six limits together",
    "layers": "the agent brings them: its facts have their digests",
    "secret": "it makes the dataset, whose digest differs: see test_ctf",
    "databases": "their digests are among the images'",
    "repositories": "the commits' digests are among the images'",
    "reward_every_turn": "the agent asks for it",
    "render_mode": "no run draws anything",
    "seed": "that of the run is a fact",
    "errors": "a run has its own way of failures",
    "cache_gold": "how often gold runs",
}
"""Options without a text for a spec, and why."""
IMPOSSIBLE = {("sql", "capabilities"), ("python", "keys")}
"""Options that an environment's class refuses."""
NAMES = {"image": "images", "default_image": "images", "reward": "reward", "capabilities": "limits"}


def _known(env: str, folder: Path) -> dict[str, OptionDescription]:
    if env == "maze":
        return list_constructor_options(load("environment", f"{folder / 'maze.py'}:Maze"))
    return list_constructor_options(environment(env))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an environment from outside, and what options name."""
    place = tmp_path_factory.mktemp("identity")
    (place / "maze.py").write_text(MAZE)
    (place / "reward.py").write_text(REWARD)
    (place / "more.txt").write_text("more\n")
    (place / "tasks.json").write_text('[{"task_id": "a", "query": "say a", "gold": "echo a"}]')
    home = place / "maze"
    home.mkdir()
    shutil.copy(place / "tasks.json", home)
    shutil.copy(place / "maze.py", home)
    toml = 'env = "maze.py:Maze"\ntasks = "tasks.json"\n'
    (home / "intercode.toml").write_text(toml)
    shutil.make_archive(str(place / "more"), "tar", place, "more.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield place


@pytest.fixture(scope="module")
def base(folder: Path) -> dict[str, Path]:
    """Environment → a run of its first task."""
    found = {}
    for env in ENVS:
        found[env] = folder / f"run-{env}"
        run(_spec(env, out=str(found[env])))
    return found


def _spec(env: str, **options: Any) -> RunSpec:
    name = "./maze" if env == "maze" else env
    common: dict[str, Any] = {"agent": "oracle", "limit": 1, "quiet": True}
    if env == "ctf":
        common["secret"] = "of the test"  # else each run has flags of its own
    return RunSpec.from_layers({"env": name, **common, **options})


@pytest.mark.parametrize("env", ENVS)
def test_every_option_is_in_the_table(env: str, folder: Path) -> None:
    assert _known(env, folder).keys() <= VALUES.keys() | ELSEWHERE.keys()


CASES = [
    *(
        (env, name)
        for env in ENVS[:-1]
        for name in list_constructor_options(environment(env))
        if name in VALUES.keys() - ELSEWHERE.keys() and (env, name) not in IMPOSSIBLE
    ),
    *(
        ("maze", name)
        for name in (
            "width",
            "compact",
            "colour",
            "speed",
            "keys",
            "timeout",
            "image",
            "default_image",
        )
    ),
]


@pytest.mark.parametrize(("env", "option"), CASES)
def test_another_value_is_refused_by_its_name(
    env: str, option: str, base: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(base[env], out)
    before = (out / EPISODES).read_bytes()
    other = {option: VALUES[option], "epochs": 2}
    locked = {"locked": str(base[env]), "out": str(tmp_path / "locked"), "epochs": 1}
    if option in HARMLESS:
        run(_spec(env, out=str(out), **other))
        assert run(_spec(env, **{**other, **locked})).ran == 1
        return
    name = NAMES.get(option, option)
    with pytest.raises(RecordError, match=rf"holds another run: .*\b{name}"):
        run(_spec(env, out=str(out), **other))
    with pytest.raises(DriftError, match=rf"env\.[a-z.]*{name}"):
        run(_spec(env, **{**other, **locked}))
    assert (out / EPISODES).read_bytes() == before
    assert not (tmp_path / "locked" / EPISODES).exists()


@pytest.mark.parametrize("env", ENVS)
def test_a_default_that_is_given_is_the_same(
    env: str, base: dict[str, Path], folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(base[env], out)
    known = _known(env, folder)
    given = {
        name: option.default
        for name, option in known.items()
        if option.role == "identifies" and option.default not in (None, (), False)
    }
    assert run(_spec(env, out=str(out), epochs=2, **given)).ran == 1


def test_the_command_line_refuses(
    base: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["run", "sql", "--limit", "1", "--permute-columns", "--quiet"]
    assert main([*told, "--epochs", "2", "--out", str(base["sql"])]) == 2
    assert "permute_columns was None and is now True" in capsys.readouterr().err
    assert main([*told, "--locked", str(base["sql"])]) == 2
    assert "env.options.permute_columns: recorded nothing" in capsys.readouterr().err


def test_a_benchmark_whose_file_changed(
    folder: Path, base: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(base["maze"], out)
    toml = folder / "maze" / "intercode.toml"
    before = toml.read_text()
    toml.write_text(f"{before}compact = true\n")
    try:
        with pytest.raises(RecordError, match="compact was None and is now True"):
            run(_spec("maze", out=str(out), epochs=2))
    finally:
        toml.write_text(before)


def test_a_record_from_before_names_its_options_otherwise(base: dict[str, Path]) -> None:
    new = read_manifest(base["bash"])
    session = new["sessions"][0]
    for options, fact in [
        ({"network": "pypi.org"}, {"network": "pypi.org"}),
        ({"keys": True}, {}),
        ({"network": "pypi.org", "provider": "native", "more": {"keys": True}}, {}),
    ]:
        env = {name: value for name, value in new["env"].items() if name != "options"}
        old = {**new, "env": {**env, **fact}, "sessions": [{**session, "options": options}]}
        wanted = {"network": "pypi.org"} if "network" in options else {}
        wanted |= {"keys": True} if "keys" in str(options) else {}
        assert add_identity(old)["env"] == {**env, "options": wanted}
        found = differences(old, new)
        assert {one.what for one in found} == {f"env.options.{name}" for name in wanted}


def test_runs_of_before_go_on(base: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(base["python"], out)
    record = json.loads((out / MANIFEST).read_text())
    del record["env"]["options"]
    (out / MANIFEST).write_text(json.dumps(record))
    assert run(_spec("python", out=str(out), epochs=2)).ran == 1
    with pytest.raises(RecordError, match="python was None and is now 'python3'"):
        run(_spec("python", out=str(out), epochs=3, python="python3"))
