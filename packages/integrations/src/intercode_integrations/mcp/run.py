"""The command that serves an environment to clients of the Model Context Protocol."""

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

from intercode.cli.run import assign_folder
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import output, print_message, safe
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.evaluate import RunResult, evaluate
from intercode.evaluate.run_setup import RunPlan, plan, resolve_setting
from intercode.evaluate.spending import make_budget
from intercode.spec import RunSpec, read_arguments
from intercode_integrations.cli.serve import read_token

if TYPE_CHECKING:
    from intercode_integrations.mcp.sessions import EpisodeSession, EpisodeSessions

T = TypeVar("T")


def execute(args: argparse.Namespace) -> int:
    """Run the command: serve until every episode has ended, or the client has left.

    Returns:
        The exit code: 0 if every episode has a result, else 1.

    Raises:
        UsageError: The MCP SDK is missing, the arguments are invalid, or every episode already had
            a result before the command.
    """
    try:
        from intercode_integrations.mcp.server import McpHttpServer, McpStdioServer
        from intercode_integrations.mcp.sessions import EpisodeSessions
    except ImportError as error:
        raise UsageError(
            f"MCP needs version 2 of its SDK: pip install 'intercode-gym[mcp]' ({error})"
        ) from None
    spec = assign_folder(RunSpec.from_layers(read_arguments(args)).merge(agent="mcp", retries=0))
    sessions = EpisodeSessions(idle_seconds=args.idle, show_score=args.show_score)
    run_watcher = _ClientNotifier(sessions, quiet=spec.run_options.quiet)
    run_plan = plan(spec, run_watcher)
    output_folder = Path(str(spec.run_options.out))
    is_new_folder = not output_folder.exists()
    with ExitStack() as stack:
        if args.http:
            http_server = McpHttpServer(sessions, args.host, args.port or 0, read_token(args))
            sessions.announce = lambda session, episode: _print(
                http_server.url(session), episode, args.json
            )
            http_server.start()
            stack.callback(http_server.stop)
        else:
            McpStdioServer(sessions, _only_session(run_plan, sessions)).start()
        stack.callback(sessions.close)
        stack.enter_context(_signals(sessions.leave))
        run_result = _run_in_thread(lambda: _run_episodes(run_plan, sessions, run_watcher))
        if not args.http and run_result.ran:
            sessions.leave_event.wait()  # the client may still list its tools after the episode
    if run_result.complete and not run_result.ran:
        raise UsageError(
            f"{output_folder} already has a result for every episode: choose another folder (--out)"
        )
    if not run_result.outcomes and is_new_folder:
        shutil.rmtree(output_folder)  # the client has called no tool, so no episode was recorded
        return 1
    print_message(f"run: {output_folder}")
    return 0 if run_result.complete else 1


class _ClientNotifier(ProgressPrinter):
    """A watcher of the run that also informs the client when its episode has ended."""

    def __init__(self, sessions: EpisodeSessions, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._sessions = sessions

    def episode(self, episode: Episode) -> None:
        """Answer the client's last call, after its episode has been recorded."""
        self._sessions.finish_episode(episode)
        super().episode(episode)


def _only_session(run_plan: RunPlan, sessions: EpisodeSessions) -> EpisodeSession:
    """Return the session of the run's only episode, because stdio has only one client.

    Raises:
        UsageError: The run does not have exactly one episode.
    """
    if len(run_plan.tasks) * run_plan.spec.epochs != 1:
        raise UsageError(
            "over stdio, a client plays a single episode: name one task (--task ID), or use --http"
        )
    return sessions.session(run_plan.tasks[0].task_id)


def _print(url: str, episode: Episode, as_json: bool) -> None:
    """Print a line with the URL at which an operator connects the client of an episode."""
    line = f"{safe(episode.id)}  {url}"
    if as_json:
        fields = {"task_id": episode.task_id, "epoch": episode.epoch, "query": episode.query}
        line = json.dumps({**fields, "url": url})
    # A single write keeps the line whole, because episodes start on several threads.
    print(f"{line}\n", end="", file=output(), flush=True)


def _run_episodes(
    run_plan: RunPlan, sessions: EpisodeSessions, run_watcher: ProgressPrinter
) -> RunResult:
    """Run the episodes with the settings of ``intercode run``, except retries."""
    spec = run_plan.spec
    run_setting = resolve_setting(run_plan, run_watcher, budget=make_budget(spec))
    try:
        return evaluate(
            run_plan.dataset,
            sessions,
            run_setting.make,
            progress=run_watcher,
            workers=spec.run_options.workers,
            max_sandboxes=spec.run_options.max_sandboxes,
            out=spec.run_options.out,
            tasks=[task.task_id for task in run_plan.tasks],
            exclude=run_plan.exclude,
            epochs=spec.epochs,
            seed=spec.seed,
            max_retries=0,
            settings=run_setting.facts,
            context={**run_plan.context(), **run_setting.context()},
        )
    finally:
        run_setting.close()


@contextmanager
def _signals(leave: Callable[[], None]) -> Iterator[None]:
    """Call `leave` at the first SIGINT or SIGTERM; the same signal then ends the process.

    MCP clients end a server by these signals.
    """
    signal_queue: SimpleQueue[int] = (
        SimpleQueue()
    )  # a signal handler may only put into such a queue

    def handle_signal(signal_number: int, frame: FrameType | None) -> None:
        signal.signal(signal_number, signal.SIG_DFL)
        signal_queue.put(signal_number)

    def wait() -> None:
        signal_queue.get()
        leave()

    threading.Thread(target=wait, daemon=True).start()
    previous_handlers = {
        signal_number: signal.signal(signal_number, handle_signal)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
        signal_queue.put(0)  # ends the thread of `wait`


def _run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` on another thread, and return its result.

    A run handles signals itself only on the main thread. On another thread, the handlers of
    `_signals` stay in force.
    """
    result_future: Future[T] = Future()

    def run() -> None:
        try:
            result_future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            result_future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result_future.result()
