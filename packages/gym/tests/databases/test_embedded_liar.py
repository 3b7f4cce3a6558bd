"""A worker that an agent has taken over: its engine is not deceived into harm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode.databases import DatabaseSource
from intercode.databases.embedded import (
    EmbeddedDatabaseSession,
    EmbeddedDatabaseWorker,
    PristineDatabaseFile,
)
from intercode.errors import DatabaseError
from intercode_sandbox import Limits
from intercode_sandbox.native.provider import NativeProvider

from .worker_liar import ANSWERS

pytestmark = pytest.mark.defends("escape", "host DoS")


REST = EmbeddedDatabaseWorker.close, lambda pristine: pytest.fail("no other session is asked for")
"""What a session does at its end, and how it opens another one."""


@pytest.fixture(scope="module")
def provider() -> Iterator[NativeProvider]:
    provider = NativeProvider(preload=("worker_liar",), path=(str(Path(__file__).parent),))
    yield provider
    provider.close()


@pytest.fixture
def session(provider: NativeProvider, source: DatabaseSource) -> Iterator[EmbeddedDatabaseSession]:
    limits, pristine = Limits(), PristineDatabaseFile.from_path(source.path)
    worker = EmbeddedDatabaseWorker(provider.start("scratch", limits), "worker_liar")
    with closing(EmbeddedDatabaseSession(source, limits, pristine, worker, *REST)) as opened:
        yield opened


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_none(session: EmbeddedDatabaseSession, answer: str) -> None:
    with pytest.raises(DatabaseError):
        session.execute(answer)


def test_an_answer_that_does_not_end(session: EmbeddedDatabaseSession) -> None:
    outcome = session.execute("drip", timeout=0.2)  # allow limit: it drips for ever
    assert outcome.timed_out
    assert outcome.restarted


def test_an_answer_to_save_that_is_none(session: EmbeddedDatabaseSession) -> None:
    with pytest.raises(DatabaseError, match="could not be saved"):
        session.save()


def test_a_worker_that_ends(session: EmbeddedDatabaseSession) -> None:
    outcome = session.execute("end")
    assert outcome.restarted
    assert outcome.failure is not None
    assert "exit code 7" in outcome.failure.message


def test_a_worker_that_ends_at_every_statement(session: EmbeddedDatabaseSession) -> None:
    """The least statement ends the next process, too: no action was the cause."""
    with pytest.raises(DatabaseError, match="ended with exit code 134"):
        session.execute("end for good")
