"""The seats of clients of MCP, without its SDK: how episodes end, and what clients are told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import intercode
from intercode.envs.bash import BashEnv
from intercode.envs.tools import ALREADY_ENDED, ENDED, TURN_LIMIT
from intercode.episode import Episode
from intercode.evaluate import Progress, RunResult, evaluate
from intercode_integrations.mcp.sessions import (
    CANCELLED,
    FAILED,
    MAX_WAITING_CALLS,
    EpisodeSession,
    EpisodeSessions,
)
from waiting import eventually, new_marker, sleepers

TASKS = intercode.load_dataset("bash").filter(lambda task: task.task_id == "archive-01")
TASK = TASKS[0]
GOLD = {"command": TASK.gold[0]}
Client = Callable[[EpisodeSession], Awaitable[None]]


def play(
    seats: EpisodeSessions, client: Client, made: list[BashEnv] | None = None, **options: int
) -> RunResult:
    """Run the task, whose client acts on a thread of its own."""

    class Told(Progress):
        def episode(self, episode: Episode) -> None:
            seats.finish_episode(episode)

    def make() -> BashEnv:
        env = BashEnv(TASKS, **options)
        (made if made is not None else []).append(env)
        return env

    async def both() -> RunResult:
        run = asyncio.to_thread(
            evaluate, TASKS, seats, make, progress=Told(), max_retries=0, settings={"env": "bash"}
        )
        running = asyncio.create_task(run)
        try:
            await client(seats.session(TASK.task_id))
        except BaseException:
            seats.leave()  # else the run would wait for it
            raise
        result = await running
        seats.close()
        return result

    return asyncio.run(both())


@pytest.mark.parametrize("show_score", [False, True])
def test_a_client_acts_and_learns_the_score_only_if_asked(show_score: bool) -> None:
    told: list[tuple[str, bool]] = []

    async def client(seat: EpisodeSession) -> None:
        told.append(await seat.call("bash", GOLD))
        told.append(await seat.call("bash", {}))  # makes no sense
        told.extend([await seat.call("submit", {}), await seat.call("bash", GOLD)])

    result = play(EpisodeSessions(show_score=show_score), client)
    [episode] = result.kept
    assert (episode.agent, episode.reward, episode.status) == ("mcp", 1.0, "submitted")
    assert "mcp" not in episode.metadata and len(episode.turns) == 2
    last = f"{ENDED}\n[reward: 1.0]" if show_score else ENDED
    assert told[0] == (episode.turns[0].observation, False)
    assert "needs 'command'" in told[1][0]
    assert told[2:] == [(last, False), (ALREADY_ENDED, False)]


def test_a_call_is_cancelled_by_the_id_of_its_request() -> None:
    marker, told = new_marker(), []

    async def client(seat: EpisodeSession) -> None:
        sleeps = asyncio.create_task(seat.call("bash", {"command": f"sleep {marker}"}, 1))
        waits = asyncio.create_task(seat.call("bash", GOLD, "2"))
        assert await asyncio.to_thread(eventually, lambda: sleepers(marker))
        for request_id in ("1", 2, None, [], "2", 1):  # the last two are there
            seat.cancel(request_id)
        told.extend([await sleeps, await waits, await seat.call("submit", {}, 1)])

    [episode] = play(EpisodeSessions(), client).kept
    [turn] = episode.turns
    assert told == [(turn.observation, False), CANCELLED, (ENDED, False)]
    assert turn.exit_code == 130 and not sleepers(marker)


@pytest.mark.parametrize("action", [{"command": "echo the last words"}, {}])
def test_the_last_turn_has_its_output_and_the_reason_of_the_end(action: dict[str, str]) -> None:
    told: list[tuple[str, bool]] = []

    async def client(seat: EpisodeSession) -> None:
        told.extend([await seat.call("bash", GOLD), await seat.call("bash", action)])

    [episode] = play(EpisodeSessions(), client, max_turns=2).kept
    assert episode.status == "truncated"
    text = "the last words" if action else "needs 'command'"
    assert text in told[1][0]
    assert told[1][0].endswith(f"\n{TURN_LIMIT}")


def test_a_client_that_leaves_hands_in() -> None:
    seats = EpisodeSessions()

    async def client(seat: EpisodeSession) -> None:
        await seat.call("bash", GOLD)
        seats.leave()

    [episode] = play(seats, client).kept
    assert (episode.reward, episode.status) == (1.0, "submitted")
    assert episode.metadata["mcp"] == {"left": "disconnected"}


def test_one_that_has_done_nothing_has_no_episode() -> None:
    seats = EpisodeSessions()

    async def client(seat: EpisodeSession) -> None:
        seats.leave()

    result = play(seats, client)
    assert not result.kept and result.planned == 1


@pytest.mark.parametrize("acts", [False, True])
def test_a_silent_client_has_left(acts: bool) -> None:
    async def client(seat: EpisodeSession) -> None:
        if acts:
            await seat.call("bash", GOLD)

    sessions = EpisodeSessions(idle_seconds=0.5)  # allow limit: the client has left
    [episode] = play(sessions, client).kept
    if acts:
        assert episode.reward == 1.0 and episode.metadata["mcp"] == {"left": "no call in 0.5 s"}
    else:
        assert episode.status == "error" and episode.reward is None
        assert episode.metadata["error_type"] == "ModelError"


def test_a_lost_sandbox_is_an_error() -> None:
    made: list[BashEnv] = []
    told: list[tuple[str, bool]] = []

    async def client(seat: EpisodeSession) -> None:
        told.append(await seat.call("bash", GOLD))
        made[0].sandbox.close()
        told.extend([await seat.call("bash", GOLD), await seat.call("submit", {})])

    [episode] = play(EpisodeSessions(), client, made).kept
    assert (episode.status, episode.reward) == ("error", None)
    assert told[1:] == [(FAILED, True)] * 2


def test_a_cancelled_call_is_taken_back_before_its_turn_and_stopped_later() -> None:
    marker = new_marker()

    async def client(seat: EpisodeSession) -> None:
        running = asyncio.create_task(seat.call("bash", {"command": f"sleep {marker}"}))
        assert await asyncio.to_thread(eventually, lambda: sleepers(marker))
        waiting = asyncio.create_task(seat.call("bash", {"command": "touch /never"}))
        await asyncio.sleep(0)  # allow sleep: the task begins
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        there, _ = await seat.call("bash", {"command": "ls /never"})
        assert "No such file" in there
        await seat.call("submit", {})

    [episode] = play(EpisodeSessions(), client).kept
    assert [turn.action for turn in episode.turns] == [f"sleep {marker}", "ls /never"]
    assert episode.turns[0].exit_code == 130


def test_not_all_calls_may_wait() -> None:
    async def client() -> None:
        seat = EpisodeSession()
        calls = [asyncio.create_task(seat.call("bash", GOLD)) for _ in range(MAX_WAITING_CALLS)]
        await asyncio.sleep(0)  # allow sleep: the tasks begin
        text, failed = await seat.call("bash", GOLD)
        assert failed and "too many" in text
        seat.end(FAILED, failed=True)
        assert await asyncio.gather(*calls) == [(FAILED, True)] * MAX_WAITING_CALLS

    asyncio.run(client())


def test_a_seat_is_found_by_its_secret_alone() -> None:
    seats = EpisodeSessions()
    one, other = seats.session("one"), seats.session("one", 1)
    assert one is seats.session("one") is not other
    assert len({one.secret, other.secret}) == 2 and len(one.secret) >= 32
    assert seats.find(one.secret) is one and seats.find(other.secret) is other
    assert seats.find("") is seats.find(one.secret[:-1]) is seats.find("ü") is None


def test_the_command_says_which_package_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp/__init__.py").write_text("")  # as version 1 has no `types` of version 2
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from intercode.cli.main import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(main(['mcp', 'bash']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "pip install 'intercode-gym[mcp]'" in done.stderr
