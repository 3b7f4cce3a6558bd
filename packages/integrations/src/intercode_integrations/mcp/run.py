"""Serve an environment to clients of the Model Context Protocol."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from intercode.cli.results import Watcher
from intercode.cli.run import assign_folder
from intercode.cli.terminal import output, safe, tell
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.evaluate import RunResult, evaluate
from intercode.evaluate.budget_spent import make_budget
from intercode.evaluate.prepare import Plan, plan, setting
from intercode.spec import RunSpec, read_arguments
from intercode_integrations.cli.serve import token_of

if TYPE_CHECKING:
    from intercode_integrations.mcp.sessions import Seat, Seats

T = TypeVar("T")


def execute(args: argparse.Namespace) -> int:
    """Serve until every episode has ended, or the client has left."""
    try:
        from intercode_integrations.mcp.server import Http, Stdio
        from intercode_integrations.mcp.sessions import Seats
    except ImportError as error:
        raise UsageError(
            f"MCP needs version 2 of its SDK: pip install 'intercode-gym[mcp]' ({error})"
        ) from None
    spec = assign_folder(RunSpec.of(read_arguments(args)).merge(agent="mcp", retries=0))
    seats = Seats(idle=args.idle, show_score=args.show_score)
    watcher = _Watcher(seats, quiet=spec.how.quiet)
    asked = plan(spec, watcher)
    out = Path(str(spec.how.out))
    fresh = not out.exists()
    with ExitStack() as stack:
        if args.http:
            http = Http(seats, args.host, args.port or 0, token_of(args))
            seats.announce = lambda seat, episode: _print(http.url(seat), episode, args.json)
            http.start()
            stack.callback(http.stop)
        else:
            Stdio(seats, _only_seat(asked, seats)).start()
        stack.callback(seats.close)
        stack.enter_context(_signals(seats.leave))
        result = _aside(lambda: _carry_out(asked, seats, watcher))
        if not args.http and result.ran:
            seats.left.wait()  # it may look at its tools once more
    if result.complete and not result.ran:
        raise UsageError(f"{out} has a result for every episode: choose another folder (--out)")
    if not result.outcomes and fresh:
        shutil.rmtree(out)  # the client has only asked which tools there are
        return 1
    tell(f"run: {out}")
    return 0 if result.complete else 1


class _Watcher(Watcher):
    """Tells the clients, too, that their episodes have ended."""

    def __init__(self, seats: Seats, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._seats = seats

    def episode(self, episode: Episode) -> None:
        """Answer the last call of an episode, which is recorded by now."""
        self._seats.ended(episode)
        super().episode(episode)


def _only_seat(asked: Plan, seats: Seats) -> Seat:
    """Return the seat of the one episode that there is over stdio.

    Raises:
        UsageError: There are others.
    """
    if len(asked.tasks) * asked.spec.epochs != 1:
        raise UsageError(
            "over stdio a client plays one episode: name one task (--task ID), or use --http"
        )
    return seats.seat(asked.tasks[0].task_id)


def _print(url: str, episode: Episode, as_json: bool) -> None:
    """Print what an operator needs to start the client of an episode."""
    line = f"{safe(episode.id)}  {url}"
    if as_json:
        found = {"task_id": episode.task_id, "epoch": episode.epoch, "query": episode.query}
        line = json.dumps({**found, "url": url})
    # In one piece, as episodes begin on several threads.
    print(f"{line}\n", end="", file=output(), flush=True)


def _carry_out(asked: Plan, seats: Seats, watcher: Watcher) -> RunResult:
    """Run the episodes, as 'intercode run' does."""
    spec = asked.spec
    where = setting(asked, watcher, budget=make_budget(spec))
    try:
        return evaluate(
            asked.dataset,
            seats,
            where.make,
            progress=watcher,
            workers=spec.how.workers,
            max_sandboxes=spec.how.max_sandboxes,
            out=spec.how.out,
            tasks=[task.task_id for task in asked.tasks],
            exclude=asked.exclude,
            epochs=spec.epochs,
            seed=spec.seed,
            max_retries=0,
            settings=where.facts,
            context={**asked.context(), **where.context()},
        )
    finally:
        where.close()


@contextmanager
def _signals(leave: Callable[[], None]) -> Iterator[None]:
    """Leave at the first SIGINT or SIGTERM, by which clients end their servers; die at the next."""
    queue: SimpleQueue[int] = SimpleQueue()  # a handler may do no more than put into one

    def heard(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        queue.put(number)

    def wait() -> None:
        queue.get()
        leave()

    threading.Thread(target=wait, daemon=True).start()
    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        queue.put(0)  # ends the thread


def _aside(work: Callable[[], T]) -> T:
    """Work on another thread, where a run does not hear the signals itself."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()
