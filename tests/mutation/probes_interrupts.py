"""Probes of exceptions of the caller, of code that ends Python, and of what is dropped."""

from __future__ import annotations

import gc
import os
import signal
import socket
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

import intercode
from intercode.cli.main import main
from intercode.databases.inside import wire
from intercode.episode import Episode
from intercode.errors import DatabaseError, EnvironmentStateError, ModelUnavailableError
from intercode.evaluate import evaluate
from intercode.interpreters.bash import BashInterpreter
from intercode.models.base import Answer, AttemptError
from intercode.models.interrupted_calls import run_drain
from intercode.models.limits import Retry
from intercode.models.remote import ModelCallContext, ModelCallLimiter
from intercode.task import Dataset, Task
from intercode_sandbox.native import wire as messages
from intercode_sandbox.ownership import CallGuard

from .tools import one_of


class _Struck(BaseException):
    pass


def _strike(*arguments: object, **named: object) -> None:
    raise _Struck


def interrupted_attempt() -> bool:
    """Whether an action is refused that comes after an interrupted one."""
    with closing(intercode.make("bash")) as env:
        env.reset(seed=0)
        execute, BashInterpreter.execute = BashInterpreter.execute, _strike  # type: ignore[assignment]
        with suppress(_Struck):
            env.step("echo 1")
        BashInterpreter.execute = execute  # type: ignore[method-assign]
        try:
            return one_of(env.step("echo 2")[0], holds="", gone="2\n")
        except EnvironmentStateError:
            return True


def interrupted_call() -> bool:
    """Whether an interrupt on the way out of a call leaves the environment usable."""
    with closing(intercode.make("sql")) as env:
        env.reset(seed=0)
        leave, CallGuard.__exit__ = CallGuard.__exit__, _strike  # type: ignore[assignment]
        with suppress(_Struck):
            env.step("SELECT 1")
        CallGuard.__exit__ = leave  # type: ignore[method-assign]
        try:
            env.reset(seed=0)
        except EnvironmentStateError as error:
            return one_of(str("another call" in str(error)), holds="False", gone="True")
        return True


def owed_answer() -> bool:
    """Whether the answer to an interrupted statement is none to the next one."""
    with closing(intercode.make("sql")) as env:
        env.reset(seed=0)
        session = env.unwrapped.workspace  # type: ignore[attr-defined]
        receive, wire.receive = wire.receive, _strike  # type: ignore[assignment]
        with suppress(_Struck):
            session.execute("SELECT 1")
        wire.receive = receive
        try:
            results = session.execute("SELECT 2").results
        except DatabaseError:  # two answers at once
            return False
        return [result.rows for result in results] == [((2,),)]


def dropped_pipes() -> bool:
    """Whether an environment that is dropped gives its descriptors back."""

    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def drop() -> None:
        env = intercode.make("python")
        env.reset(seed=0)
        env.step("1")

    drop()
    before = count()
    for _ in range(4):
        drop()
    return one_of(str(count() - before >= 4), holds="False", gone="True")


def interrupted_message() -> bool:
    """Whether an interrupt while a message is awaited leaves its descriptors in the socket."""
    lost = 0
    for _ in range(8):
        ours, theirs = messages.pair()
        read, write = os.pipe()
        waiter = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

        def strike(theirs: socket.socket, write: int, waiter: Path) -> None:
            while waiter.read_text().rpartition(")")[2].split()[0] != "S":
                os.sched_yield()
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            messages.send(theirs, {"a": 1}, [write])

        before = signal.signal(signal.SIGUSR1, _strike)
        striker = threading.Thread(target=strike, args=(theirs, write, waiter))
        try:
            striker.start()
            messages.receive(ours)
        except _Struck:
            pass
        finally:
            striker.join()
            signal.signal(signal.SIGUSR1, before)
        for end in (ours, theirs):
            end.close()
        os.close(write)
        os.set_blocking(read, False)
        try:
            os.read(read, 1)
        except BlockingIOError:
            lost += 1
        os.close(read)
    return lost == 0


def exit_in_an_agent() -> bool:
    """Whether an agent that calls sys.exit() has an error as its episode's result."""

    class Leaves:
        def act(self, observation: str, history: object) -> str:
            raise SystemExit(0)

    class Env:
        episode = Episode("t", "q", "fake")

        def reset(self, **options: object) -> tuple[str, dict[str, object]]:
            return "", {}

        def close(self) -> None:
            pass

    try:
        result = evaluate(Dataset([Task("t", "q")], "one"), lambda task: Leaves(), Env)  # type: ignore[arg-type, return-value]
    except SystemExit:
        return False
    return one_of(str(result.statistics.errors), holds="1", gone="0")


def exit_code_of_a_command() -> bool:
    """Whether a command that code of its user ends has not succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder, "agent.py")
        agent.write_text(
            "class Make:\n    def check(self, tasks): raise SystemExit(0)\n"
            "    def __call__(self, task): return None\nmake = Make()\n"
        )
        command = ["run", "bash", "--quiet", "--agent", f"{agent}:make", "--out", f"{folder}/run"]
        try:
            return one_of(str(main(command)), holds="1", gone="0")
        except SystemExit:
            return False


def repeated_call() -> bool:
    """Whether no call of a model is repeated after an interrupt of the run."""
    frame = ModelCallLimiter(
        "openai/any", "http://host", ModelCallContext(retry=Retry(retries=1, first_wait=0))
    )
    requests: list[int] = []

    def send() -> Answer:
        requests.append(1)
        raise AttemptError("no answer")

    with run_drain() as drain, suppress(ModelUnavailableError):
        drain.interrupt()
        frame.ask(send, 1)
    return len(requests) == 1
