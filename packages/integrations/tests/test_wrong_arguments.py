"""Arguments of the Python API that make no sense: each is refused in words, before any work."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from envs.toy import many, toy
from intercode import make
from intercode.envs.options import list_constructor_options
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import EnvironmentStateError, TaskError, UsageError
from intercode.evaluate.runner import evaluate
from intercode.registry import ENVS
from intercode.task import Dataset, Task
from intercode_integrations.trl.dataset_rows import as_dataset

TASK = Task("a", "Do it.")
MAZE = """
from intercode.envs.base import InterCodeEnv

def helper():
    raise RuntimeError("ctor")

class Boom(InterCodeEnv):
    name = "boom"

    def __init__(self, data, **options):
        helper()

class Exits(InterCodeEnv):
    name = "exits"

    def __init__(self, data, **options):
        raise SystemExit(3)

class Few(InterCodeEnv):
    name = "few"

    def __init__(self, data):
        pass

class Nameless(InterCodeEnv):
    pass
"""
LOADER = """
from intercode.task import Dataset, Task

def load(word="yes", seed=0):
    return Dataset([Task("a", word)])

def bare():
    return Dataset([Task("a", "x")])
"""


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back the names that a test's files register."""
    monkeypatch.setattr(ENVS, "_entries", dict(ENVS._entries))


def unmade() -> Any:
    raise AssertionError("an environment was made")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: evaluate("bash", "oracle", unmade),
            r"needs a Dataset, such as intercode.load_dataset\('bash'\), or a RunSpec.*'bash'",
        ),  # type: ignore[arg-type]
        (
            lambda: evaluate([TASK], "oracle", unmade),
            r"needs a Dataset, such as intercode.load_dataset\('bash'\), or a RunSpec",
        ),  # type: ignore[arg-type]
        (lambda: evaluate(many(1), 3, unmade), r"agent must be a name or a factory"),  # type: ignore[arg-type]
        (lambda: evaluate(many(1), "oracle", toy(many(1))), r"env_factory must be a function"),  # type: ignore[arg-type]
        (lambda: evaluate(many(1), "oracle", unmade, progress=print), r"progress must be an"),  # type: ignore[arg-type]
        (
            lambda: intercode.make("bash", data=[TASK]),
            r"must be a Dataset, a file or a name.*Dataset\(\[",
        ),  # type: ignore[arg-type]
        (lambda: intercode.make("bash", data=[{"query": "x"}]), r"must be a Dataset, a file"),  # type: ignore[arg-type]
        (lambda: intercode.make_vec("bash", num_envs="2"), r"num_envs must be a whole number"),  # type: ignore[arg-type]
        (lambda: intercode.make_vec("bash", num_envs=2.0), r"num_envs must be a whole number"),  # type: ignore[arg-type]
        (lambda: toy(many(1)).fork("x"), r"number of forks must be a whole number"),  # type: ignore[arg-type]
        (lambda: toy(many(1)).reset(options={1: 2}), r"reset has no option 1"),  # type: ignore[dict-item]
        (
            lambda: ThreadVectorEnv([toy(many(1))]).reset(options={1: 2}),  # type: ignore[dict-item]
            r"reset has no option 1",
        ),
    ],
)
def test_a_wrong_argument_is_a_usage_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("item", [1, None, {"query": "x"}])
def test_a_dataset_holds_tasks_only(item: Any) -> None:
    with pytest.raises(TaskError, match=r"row 2 is not a Task"):
        Dataset([TASK, item])


@pytest.mark.parametrize("work", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_snapshot_is_neither_copied_nor_pickled(work: Callable[[object], object]) -> None:
    env = toy(many(1))
    env.reset()
    with (
        env.snapshot("replay") as snapshot,
        pytest.raises(EnvironmentStateError, match=r"a snapshot cannot be copied or pickled"),
    ):
        work(snapshot)


def test_an_environment_whose_constructor_fails_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(MAZE)
    with pytest.raises(
        UsageError, match=r"could not be created: .*maze.py, line 5: RuntimeError: c"
    ):
        intercode.make(f"{tmp_path}/maze.py:Boom", data=many(1))
    with pytest.raises(
        UsageError, match=r"could not be created: .*maze.py, line 17: SystemExit: 3"
    ):
        intercode.make(f"{tmp_path}/maze.py:Exits", data=many(1))
    with pytest.raises(
        UsageError, match=r"could not be created: .*maze.py: TypeError: .*'max_turns'"
    ):
        intercode.make(f"{tmp_path}/maze.py:Few", data=many(1), max_turns=3)


def test_the_name_of_a_base_is_no_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text(MAZE)
    with pytest.raises(UsageError, match=r"Nameless needs its own 'name'"):
        intercode.make(f"{tmp_path}/maze.py:Nameless", data=many(1))


def test_an_unknown_option_of_a_loader_is_told_with_its_own(tmp_path: Path) -> None:
    (tmp_path / "qa.py").write_text(LOADER)
    with pytest.raises(
        UsageError, match=r"no option 'wrd'; did you mean 'word'\?: its options are word, seed"
    ):
        intercode.load_dataset(f"{tmp_path}/qa.py:load:wrd=no")
    with pytest.raises(UsageError, match=r"no option 'wrd': it takes none"):
        intercode.load_dataset(f"{tmp_path}/qa.py:bare:wrd=no")


INTEGRATIONS = "intercode_integrations"  # what is named below is imported by no other test


def _nemo() -> None:
    importlib.import_module(f"{INTEGRATIONS}.nemo_gym")


def _harbor() -> None:
    importlib.import_module(f"{INTEGRATIONS}.harbor").InterCodeEnvironment  # noqa: B018


@pytest.mark.parametrize(
    ("modules", "use", "package"),
    [
        ("datasets", lambda: as_dataset([]), "intercode-gym[trl]"),
        ("harbor", _harbor, "intercode-gym[harbor]"),
        ("nemo_gym", _nemo, "nemo-gym"),
        (
            "inspect_ai",
            lambda: importlib.import_module(f"{INTEGRATIONS}.inspect"),
            "intercode-gym[inspect]",
        ),
        (
            "verifiers",
            lambda: importlib.import_module(f"{INTEGRATIONS}.verifiers"),
            "intercode-gym[verifiers]",
        ),
    ],
)
def test_an_integration_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, modules: str, use: Callable[[], object], package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == modules]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("harbor.backend", "nemo_gym", "inspect", "verifiers"):
        monkeypatch.delitem(sys.modules, f"{INTEGRATIONS}.{name}", raising=False)

    class Absent:
        """A finder by which a package is not installed."""

        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.partition(".")[0] == modules:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    with pytest.raises(UsageError, match=re.escape(f"pip install '{package}'")):
        use()


OWN = """
from intercode import InterCodeEnv


def score(task, episode, place):
    return 1.0


class Silent:
    def __init__(self, place):
        pass

    def execute(self, action, timeout=None):
        return "text"

    def close(self):
        pass


class Endless:
    def __init__(self, place):
        pass

    def execute(self, action, timeout=None):
        raise KeyError


class Plain:
    name = "plain"


class NoTasks(InterCodeEnv):
    name = "no-tasks"

    def __init__(self):
        pass


class Forgetful(InterCodeEnv):
    name = "forgetful"

    def __init__(self, data):
        pass


class Endlessly(InterCodeEnv):
    name = "endlessly"

    def __init__(self, data):
        super().__init__(data, interpreter=Endless, reward=score)


class Silently(InterCodeEnv):
    name = "silently"

    def __init__(self, data):
        super().__init__(data, interpreter=Silent, reward=score)


class Inherited(InterCodeEnv):
    name = "inherited"
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Plain", r"own\.py: TypeError: Plain\(\) takes no arguments"),
        ("NoTasks", r"own\.py: TypeError: .* takes 1 positional argument"),
        ("Forgetful", r"Forgetful must be an InterCodeEnv whose __init__ calls super\(\)"),
        ("Endlessly", r"interpreter Endless has no method 'close': it needs execute\("),
        ("Silently", r"Silent\.execute must return an Execution .* not 'text'"),
        ("Inherited", "this environment needs a reward"),
    ],
)
def test_an_environment_of_ones_own_that_is_wrong_is_told_by_name(
    tmp_path: Path, name: str, message: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    data = Dataset([Task("a", "?")])

    def play() -> None:
        with closing(make(f"{file}:{name}", data=data)) as env:
            env.reset()
            env.step("look")

    with pytest.raises(UsageError, match=message):
        play()


def test_a_class_that_takes_no_tasks_has_no_options_either() -> None:
    class NoTasks:
        def __init__(self) -> None:
            pass

    with pytest.raises(UsageError, match="NoTasks' must take the tasks as its first argument"):
        list_constructor_options(NoTasks)
