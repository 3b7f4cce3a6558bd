"""The options of environments: merged, checked, and described for readers of texts."""

from __future__ import annotations

import copy
import pickle
import runpy
from contextlib import closing
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from msgspec import Meta

import intercode
from intercode import Limits, UsageError
from intercode.envs import options as module
from intercode.envs.options import (
    BashOptions,
    CtfOptions,
    EnvOptions,
    LimitOptions,
    SandboxOptions,
    SqlOptions,
    SweOptions,
    list_class_options,
)
from intercode.errors import EnvironmentStateError
from sources import ROOT

KINDS = [
    kind
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, EnvOptions)
]


class MazeOptions(SandboxOptions, frozen=True, kw_only=True):
    """Options of an environment from outside."""

    width: Annotated[int, Meta(description="cells in a row", ge=2, extra={"metavar": "N"})] = 8


def test_single_options_come_before_the_others() -> None:
    given = SqlOptions(engine="mysql", max_rows=5)
    assert SqlOptions.merge(given, {"max_rows": 7}) == SqlOptions(engine="mysql", max_rows=7)
    assert SqlOptions.merge(None, {"engine": "duckdb"}) == SqlOptions(engine="duckdb")
    assert SqlOptions.merge(given, {}) is given


def test_an_unknown_option_is_refused_with_the_names_of_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"no option 'attempts'; known: .*databases.*engine"):
        SqlOptions.merge(None, {"attempts": 3})
    with pytest.raises(UsageError, match="options must be SqlOptions, not BashOptions"):
        SqlOptions.merge(BashOptions(), {})


def test_the_older_name_of_sandbox_warns() -> None:
    with pytest.warns(DeprecationWarning, match="sandbox="):
        assert BashOptions.merge(None, {"provider": "docker"}).sandbox == "docker"
    with (
        pytest.warns(DeprecationWarning, match="sandbox="),
        pytest.raises(UsageError, match="not provider= as well"),
    ):
        BashOptions.merge(None, {"provider": "docker", "sandbox": "native"})


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (BashOptions, {"max_turns": 0}, "max_turns must be at least 1, not 0"),
        (SqlOptions, {"max_rows": 0}, "max_rows must be at least 1, not 0"),
        (CtfOptions, {"attempts": -1}, "attempts must be at least 0, not -1"),
        (MazeOptions, {"width": 1}, "width must be at least 2, not 1"),
        (SweOptions, {"render_mode": "human"}, "render_mode must be None or 'ansi', not 'human'"),
    ],
)
def test_values_out_of_bounds_are_refused(
    kind: type[EnvOptions], wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        kind.merge(None, wrong)


def test_any_number_of_attempts() -> None:
    assert CtfOptions(attempts=None).attempts is None
    assert CtfOptions(attempts=0).attempts == 0


@pytest.mark.parametrize("kind", [*KINDS, LimitOptions, MazeOptions])
def test_every_option_says_what_it_is_for_and_has_a_default(kind: type[msgspec.Struct]) -> None:
    for option in list_class_options(kind).values():
        assert option.help
        assert option.default is not msgspec.NODEFAULT
        assert option.kinds or not option.has_flag


def test_an_option_as_text_sees_it() -> None:
    width = list_class_options(MazeOptions)["width"]
    assert (width.flag, width.kind, width.minimum, width.default) == (
        "--width",
        "a whole number",
        2,
        8,
    )
    assert width.accepts(3)
    assert not width.accepts(value=True)
    assert not width.accepts("3")
    columns = list_class_options(SqlOptions)["permute_columns"]
    assert (columns.flag, columns.kind) == ("--permute-columns", "true or false")
    assert columns.accepts(value=True)
    assert list_class_options(SweOptions)["repositories"].is_path
    assert list_class_options(SqlOptions)["columns"].choices == ("exact", "explained")
    assert not list_class_options(BashOptions)["limits"].has_flag


def test_they_are_read_from_plain_data() -> None:
    read = msgspec.convert({"attempts": 2, "limits": {"memory": 64 << 20}}, CtfOptions)
    assert read == CtfOptions(attempts=2, limits=Limits(memory=64 << 20))
    with pytest.raises(msgspec.ValidationError, match="unknown field `engine`"):
        msgspec.convert({"engine": "mysql"}, CtfOptions)


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_schema_of_each(kind: type[EnvOptions]) -> None:
    assert msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]["max_turns"]


def test_a_limit_is_an_option_by_its_own_name() -> None:
    given = BashOptions(timeout=30, limits={"timeout": 5, "memory": "1.5G"})  # type: ignore[arg-type]
    assert given.limits == Limits(timeout=30, memory=1536 << 20)
    assert given == BashOptions(limits=given.limits)
    assert BashOptions.merge(given, {"timeout": "90s", "disk": "512M"}).limits == Limits(
        timeout=90, memory=1536 << 20, disk=512 << 20
    )
    assert BashOptions.merge(given, {"limits": {"files": 100}}).limits == Limits(files=100)
    assert BashOptions().limits is None
    assert set(LimitOptions.__struct_fields__) < set(Limits.__dataclass_fields__)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": 10}, "limit 'memory' must be at least 32M, and 10 is 10 bytes; .* mean 10G"),
        ({"memory": "100K"}, "at least 32M, and 100K is 102,400 bytes; did you mean 100M?"),
        ({"disk": 512}, "limit 'disk' must be at least 1M.*did you mean 512M?"),
        ({"memory": "lots"}, "limit 'memory' must be a size such as 512M or 1G, not 'lots'"),
        ({"memory": True}, "limit 'memory' must be a size"),
        ({"timeout": 0}, "limit 'timeout' must be a number of seconds, above 0"),
        ({"timeout": "soon"}, "limit 'timeout' must be a number of seconds"),
        ({"timeout": float("nan")}, "limit 'timeout' must be a number of seconds"),
        ({"processes": "many"}, "limit 'processes' must be a whole number, at least 1"),
        ({"limits": {"files": 3}}, "limit 'files' must be a whole number, at least 64"),
        ({"limits": {"private": "no"}}, "limit 'private' must be true or false, not 'no'"),
        ({"limits": {"debugger": 1}}, "limit 'debugger' must be true or false, not 1"),
        ({"limits": {"timout": 3}}, "there is no limit 'timout'; did you mean 'timeout'?"),
        ({"limits": 5}, "limits must be Limits, or names with values, not 5"),
        ({"timout": 30}, "there is no option 'timout'; did you mean 'timeout'?"),
        ({"max_turns": "3"}, "max_turns must be a whole number, not '3'"),
        ({"max_turns": None}, "max_turns must be a whole number, not None"),
        ({"max_turns": True}, "max_turns must be a whole number, not True"),
        ({"network": "yes"}, "network: 'yes' is not a host: give HOST:PORT"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
    ],
)
def test_wrong_values_are_refused_in_words(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BashOptions.merge(None, wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    assert BashOptions(seed=np.int64(3), timeout=np.float32(90)).limits == Limits(timeout=90)


def test_editors_know_the_public_names_and_the_options_of_make() -> None:
    """The stub beside the package is what `scripts/stub` would write now."""
    script = runpy.run_path(str(ROOT / "scripts" / "stub"))
    assert script["FILE"].read_text(encoding="utf-8") == script["stub"]()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tasks": "p.json"}, "there is no option 'tasks'; the tasks are 'data'"),
        ({"dat": "p.json"}, "there is no option 'dat'; did you mean 'data'"),
        ({"protocol": "2022"}, "has no protocol '2022'; known: default"),
    ],
)
def test_an_option_by_another_name_is_told(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        intercode.make("bash", **options)


def test_an_environment_is_not_copied() -> None:
    with closing(intercode.make("bash")) as env:
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(EnvironmentStateError, match=r"fork\(\) to branch an episode"):
                copies(env)
        with pytest.raises(UsageError, match="the options of reset are a dict, not int"):
            env.reset(options=5)  # type: ignore[arg-type]


def test_an_agent_that_leaves_no_shell_has_ended_its_episode() -> None:
    with closing(intercode.make("bash")) as env:
        env.reset(seed=0)
        env.step("chmod 000 /; exit")
        _, reward, terminated, truncated, info = env.step("echo still here")
        assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
        assert env.episode.status == "ended"
