"""What a client gives to a server: a token, and options that are not the server's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import intercode
from intercode import UsageError
from intercode.integrations.openenv import OpenEnvEnv
from serve.served import Served, serving

SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving("bash", "--token", SECRET) as server:
        yield server


def test_a_token_may_come_with_the_end_of_its_line(guarded: Served) -> None:
    intercode.connect(guarded.url, token=f"{SECRET}\n").close()


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Other: 1", f"{SECRET}\0", "Schlüssel"])
def test_a_token_that_no_header_can_have_is_refused_and_not_told(
    guarded: Served, token: str
) -> None:
    with pytest.raises(UsageError, match="characters that no header can have") as refused:
        intercode.connect(guarded.url, token=token)
    assert token not in str(refused.value)


def test_a_wrong_token_is_told_from_none(guarded: Served) -> None:
    with pytest.raises(UsageError, match="a token is needed"):
        intercode.connect(guarded.url)
    with pytest.raises(UsageError, match="the token that was sent is not the right one"):
        intercode.connect(guarded.url, token="another")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 300),
        ("memory", "512M"),
        ("limits", {"disk": "1G"}),
        ("sandbox", "docker"),
        ("max_turns", 3),
        ("reward_every_turn", True),
    ],
)
def test_what_the_server_decides_is_refused(guarded: Served, name: str, value: Any) -> None:
    told = "disk" if name == "limits" else name
    with pytest.raises(UsageError, match=f"{told!r} is decided where the tasks are tried"):
        intercode.connect(guarded.url, token=SECRET, **{name: value})


def test_turns_are_counted_here_where_the_other_side_counts_none(server: Served) -> None:
    data = OpenEnvEnv.tasks(server.url)
    OpenEnvEnv(data, max_turns=3, reward_every_turn=True).close()
    with pytest.raises(UsageError, match="'memory', 'timeout' are decided"):
        OpenEnvEnv(data, timeout=300, memory="1G")
