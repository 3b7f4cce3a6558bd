"""Messages between an engine and its workers: every value comes back as it was."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st

from intercode.databases.inside import wire

texts = st.text(st.characters(exclude_categories=[])) | st.text()
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | texts
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(texts | st.integers(), inner),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), [tuple(p) for p in other.items()])
    if isinstance(one, tuple):
        return same(list(one), list(other))
    return type(one) is type(other) and one == other and str(one) == str(other)


@given(st.lists(st.lists(scalars)))
@example([[float("inf"), -0.0, 2**70, b"\x00\xff", "\udc80", "\ud83d\ude00", "\x00", "😀"]])
def test_rows(rows: list[list[Any]]) -> None:
    assert same(rows, wire.decode(wire.encode(rows)))


@given(values)
@example({"map": {"bytes": [b"x", {}]}})
def test_nested_values(value: Any) -> None:
    assert same(value, wire.decode(wire.encode([wire.nest(value)]))[0])


def test_what_has_no_type_comes_as_text() -> None:
    uuid = UUID(int=7)
    assert wire.decode(wire.encode([uuid, Decimal("NaN"), float("nan")]))[0] == str(uuid)
    assert [str(v) for v in wire.decode(wire.encode([Decimal("NaN"), float("nan")]))] == [
        "NaN",
        "nan",
    ]


def test_kinds_that_are_kinds_of_each_other() -> None:
    moment = datetime(2020, 1, 2, 3, 4, 5, 6)
    row = [moment, moment.date(), moment.time(), timedelta(-1, 2, 3), True, 1, date.min, time.max]
    assert same(row, wire.decode(wire.encode(row)))


HOSTILE = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"decimal": "x"}',
    b'{"unknown": "x"}',
    b'{"date": "x", "time": "x"}',
    b"{}",
    b'{"timedelta": [99999999999999999999, 0, 0]}',
    b'{"datetime": [1]}',
    b'{"bytes": "x"}',
    b'{"map": 7}',
    b'{"map": [[[], 1]]}',
    b"[" * 100_000,
    b'[{"map":[["a",' * 20_000,
    b"9" * 10_000 + b" x",
]


@pytest.mark.parametrize("data", HOSTILE, ids=[str(data[:30]) for data in HOSTILE])
def test_malformed_messages(data: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(data)


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        wire.decode(data)
    except ValueError:
        return


@pytest.mark.parametrize("size", [0, 1, 65_531, 65_532, 65_533, 3_000_000])
def test_frames(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        message = b"x" * size
        thread = threading.Thread(target=wire.send, args=(theirs, message))
        thread.start()
        data, fds = wire.receive(ours, 4_000_000)
        thread.join()
        assert (bytes(data), fds) == (message, [])


def test_frames_that_are_refused() -> None:
    for sent, limit in ((b"\xff\xff\xff\xff", 1000), (b"\x01\0\0\0ab", 1000), (b"\5\0\0\0", 4)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent)
            with pytest.raises(ValueError):
                wire.receive(ours, limit)
    for sent in (b"", b"\1", b"\5\0\0\0abc"):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(sent)
            with pytest.raises(EOFError):
                wire.receive(ours, 1000)
