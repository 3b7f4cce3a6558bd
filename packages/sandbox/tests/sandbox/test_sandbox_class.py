"""`Sandbox` and `AsyncSandbox`, as users construct them, over both providers."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foreign_sandbox import ForeignProvider
from intercode_sandbox import AsyncSandbox, Limits, Provider, Sandbox, get_provider
from intercode_sandbox.base import Change
from intercode_sandbox.errors import (
    ActionError,
    ImageError,
    InterCodeError,
    OutputLimitError,
    SandboxClosedError,
    UsageError,
)
from intercode_sandbox.units import MIB
from waiting import PATIENCE, becomes_readable, eventually, new_marker, sleepers

pytestmark = pytest.mark.ordinary

ENDLESS = "while :; do :; done"


@pytest.fixture
def box(provider: Provider) -> Iterator[Sandbox]:
    with Sandbox(provider=provider, timeout=PATIENCE) as sandbox:
        yield sandbox


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def paths(changes: list[Change]) -> list[str]:
    return [change.path for change in changes]


def test_what_a_readme_shows() -> None:
    with Sandbox(image="host", memory="512M") as box:
        done = box.exec(["bash", "-c", "echo hello | tee /root/note"])
        assert done.ok and done.stdout == b"hello\n"
        assert paths(box.changes()) == ["/root/note"]
        assert (box.limits.memory, box.cwd, box.env["HOME"]) == (512 * MIB, "/root", "/root")
    with pytest.raises(SandboxClosedError):
        box.exec(["true"])
    box.close()


def test_a_command_has_an_input_a_folder_variables_a_user_and_limits(box: Sandbox) -> None:
    script = 'read -r line; echo "$line $X $PWD"; echo oops >&2; exit 3'
    done = box.exec(["bash", "-c", script], stdin="ä\n", cwd="/tmp", env={"X": "1"}, timeout="60s")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "ä 1 /tmp\n".encode(), b"oops\n")
    assert box.exec(["id", "-u"], user="0:0").stdout == b"0\n"
    late = box.exec(["bash", "-c", f"echo early; {ENDLESS}"], timeout=0.3)  # allow limit: no end
    assert late.timed_out and late.stdout == b"early\n"
    long = box.exec(["bash", "-c", "printf %5000s x"], output_limit="1K", merge_stderr=True)
    assert long.truncated and len(long.stdout) < 2000


def test_files(box: Sandbox, tmp_path: Path) -> None:
    box.write_file("notes/a.txt", "ä")
    assert box.read_file("/root/notes/a.txt") == "ä".encode()
    source = tmp_path / "tool"
    source.write_bytes(b"#!/bin/sh\necho $1\xff\n")
    source.chmod(0o4755)
    box.upload(source, "/opt/tool")
    assert box.exec(["/opt/tool", "x"]).stdout == b"x\xff\n"
    assert {change.path: oct(change.mode) for change in box.changes()}["/opt/tool"] == "0o755"
    box.download("/opt/tool", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    with pytest.raises(OutputLimitError):
        box.download("/opt/tool", tmp_path / "never", limit=3)
    assert not (tmp_path / "never").exists()
    with pytest.raises(IsADirectoryError):
        box.upload(tmp_path, "/opt/folder")


def test_a_process_is_talked_to(box: Sandbox) -> None:
    process = box.popen(["cat"])
    os.write(process.fds[0], b"one\n")
    assert becomes_readable(process.fds[1]) and os.read(process.fds[1], 100) == b"one\n"
    assert len(box.processes()) == 1 and [p.name for p in box.programs()] == ["cat"]
    assert box.exec(["true"]).ok and process.poll() is None
    assert box.kill() == 1
    assert becomes_readable(process.exit_fd) and process.poll() == 137
    process.close()
    os.close(box.terminal())
    assert box.free_space().bytes > 0


def test_a_worker_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "adder.py").write_text(
        "def main(sock):\n    a, b = sock.recv(2)\n    sock.send(bytes([a + b]))\n"
    )
    with Sandbox(preload=["adder"], path=[tmp_path]) as box:
        worker = box.worker("adder")
        worker.socket.send(bytes([1, 2]))
        assert worker.socket.recv(1) == b"\x03"
        worker.close()
        peak = box.memory_peak()
        assert peak is None or peak > 0
        with pytest.raises(LookupError, match="was not preloaded"):
            box.worker("other")


def test_forks_and_snapshots(provider: Provider, box: Sandbox) -> None:
    assert box.exec(["bash", "-c", "echo 1 > a; sleep 999 >/dev/null 2>&1 &"]).ok
    with box.fork() as fork:
        assert box.processes() and not fork.processes()
        assert fork.changes() == box.changes() and fork.limits == box.limits
        fork.write_file("b", b"")
        assert paths(fork.changes()) == ["/root/a", "/root/b"]
    assert paths(box.changes()) == ["/root/a"]
    changes, snapshot = box.at_rest(lambda: (box.changes(), box.snapshot()))
    assert paths(changes) == ["/root/a"]
    with Sandbox(snapshot, provider=provider) as copy:
        assert copy.read_file("a") == b"1\n" and copy.changes() == []
    frozen = box.freeze()
    assert box.processes() == []
    twins = [Sandbox(frozen, provider=provider) for _ in range(2)]
    for twin in twins:
        assert paths(twin.changes()) == ["/root/a"]
        twin.close()


def test_a_network_policy_and_a_port(provider: Provider) -> None:
    def hello(connection: socket.socket) -> None:
        connection.sendall(b"hello")

    with Sandbox(provider=provider, network=["pypi.org"], timeout=PATIENCE) as box:
        assert box.env["https_proxy"].startswith("http://127.0.0.1:")
        forward = box.forward(4000, hello)
        assert box.exec(["bash", "-c", "cat < /dev/tcp/127.0.0.1/4000"]).stdout == b"hello"
        forward.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": ""}, "an image must be a name or a snapshot"),
        ({"image": None}, "an image must be a name or a snapshot"),
        ({"provider": "natve"}, "did you mean 'native'"),
        ({"provider": 3}, "a provider must be a name or an object"),
        ({"provider": get_provider(), "preload": ["x"]}, "are options of a named provider: pass"),
        ({"preload": "json"}, "preload must be a list"),
        ({"memroy": "1G"}, "a sandbox has no option 'memroy'; did you mean 'memory'"),
        ({"overrides": frozenset()}, "a sandbox has no option 'overrides'"),
        ({"memory": "1Q"}, "'memory' must be a size"),
        ({"memory": 1}, "'memory' must be at least 32M"),
        ({"processes": "many"}, "'processes' must be a whole number"),
        ({"timeout": 0}, "'timeout' must be a number of seconds"),
        ({"limits": 5}, "limits must be Limits"),
        ({"network": 5}, "network must be True, False"),
        ({"network": "http://"}, "network"),
    ],
)
def test_bad_options_start_nothing(options: dict[str, Any], message: str) -> None:
    for kind in Sandbox, AsyncSandbox:
        with pytest.raises(UsageError, match=message):
            kind(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("echo hi",), "argv must be a list"),
        ((b"echo",), "argv must be a list"),
        ((["echo", 1],), "argv: each argument must be a string, not 1"),
        ((None,), "argv must be a list"),
        ((["cat"], {"stdin": 5}), "stdin must be bytes or a text, not int"),
        ((["cat"], {"env": {"A": 1}}), "env: A must be a string"),
        ((["cat"], {"env": {"A=B": "1"}}), "is not the name"),
        ((["cat"], {"env": ["A=B"]}), "env must be a mapping of names to values"),
        ((["cat"], {"user": 0}), "user must be a string"),
        ((["cat"], {"timeout": -1}), "timeout must be a number of seconds"),
        ((["cat"], {"output_limit": "big"}), "output_limit must be a size"),
    ],
)
def test_bad_arguments_of_a_command_run_nothing(arguments: tuple[Any, ...], message: str) -> None:
    argv, options = arguments[0], arguments[1] if len(arguments) > 1 else {}
    with Sandbox() as box:
        for start in box.exec, box.popen:
            if options.keys() <= inspect.signature(start).parameters.keys():
                with pytest.raises(UsageError, match=message):
                    start(argv, **options)
        with pytest.raises(ActionError):
            box.exec([])
        with pytest.raises(UsageError, match="data must be bytes or a text"):
            box.write_file("/tmp/a", 5)  # type: ignore[arg-type]
        assert box.changes() == []


def test_options_are_those_of_the_limits() -> None:
    parameters = inspect.signature(Sandbox).parameters
    assert list(parameters)[:4] == ["image", "provider", "network", "limits"]
    limits = Limits().to_dict()
    assert {name: parameters[name].default for name in limits} == limits
    assert inspect.signature(AsyncSandbox) == inspect.signature(Sandbox)
    with Sandbox(limits=Limits(memory="64M"), processes=9) as box:  # type: ignore[arg-type]
        assert (box.limits.memory, box.limits.processes) == (64 * MIB, 9)
        assert box.limits.overrides == frozenset({"memory", "processes"})


def test_an_image_that_is_not_there() -> None:
    with pytest.raises((ImageError, UsageError)):
        Sandbox("no-such-image")


def test_a_backend_with_no_more_than_the_contract() -> None:
    with Sandbox(provider=ForeignProvider()) as box:
        assert box.exec(["echo", "x"]).stdout == b"x\n"
        for call in box.fork, box.freeze, box.programs, box.terminal, box.memory_peak:
            with pytest.raises(UsageError, match="sandboxes of this provider cannot"):
                call()
        with pytest.raises(UsageError, match="cannot forward ports"):
            box.forward(4000, "127.0.0.1:1")
        with pytest.raises(UsageError, match="cannot measure free space"):
            box.free_space()


def test_the_last_reference_frees_it() -> None:
    marker = new_marker()
    box = Sandbox()
    process = box.popen(["sleep", marker])
    assert eventually(lambda: sleepers(marker))
    backend = weakref.ref(box.backend)
    del process, box
    assert backend() is None
    assert eventually(lambda: not sleepers(marker))


def test_a_process_that_forgets_to_close() -> None:
    marker = new_marker()
    code = f"from intercode_sandbox import Sandbox; b = Sandbox(); b.popen(['sleep', '{marker}'])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
    assert eventually(lambda: not sleepers(marker))


def test_importing_costs_no_back_end() -> None:
    code = (
        "import sys, intercode_sandbox\n"
        "assert not {'intercode_sandbox.base', 'asyncio'} & sys.modules.keys()\n"
        "from intercode_sandbox import Sandbox\n"
        "assert not [name for name in sys.modules if 'native' in name or 'docker' in name]\n"
        "assert 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


# -- asyncio -------------------------------------------------------------------------------------


def test_awaited_calls(provider: Provider, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(provider=provider, timeout=PATIENCE) as box:
            await box.write_file("a", "1")
            done = await box.exec(["bash", "-c", "cat a; echo $X"], env={"X": "2"})
            assert done.stdout == b"12\n"
            await box.download("a", tmp_path / "a")
            await box.upload(tmp_path / "a", "/tmp/b")
            assert await box.read_file("/tmp/b") == b"1"
            assert paths(await box.changes()) == ["/root/a", "/tmp/b"]
            process = await box.popen(["cat"])
            assert len(await box.processes()) == len(await box.programs()) == 1
            assert await box.kill() == 1
            process.close()
            async with await box.fork() as fork:
                assert await fork.changes() == await box.changes()
            snapshot = await box.snapshot()
            async with AsyncSandbox(snapshot, provider=provider) as copy:
                assert await copy.changes() == []
            assert await box.run(lambda sandbox: sandbox.cwd) == box.sandbox.cwd
        with pytest.raises(SandboxClosedError):
            await box.exec(["true"])
        await box.close()

    run(main)


def test_sandboxes_run_at_once_and_calls_of_one_in_turn() -> None:
    """Each command waits for all others to have begun; no thread of the loop is needed."""

    async def main() -> None:
        count = 2 * (os.cpu_count() or 1) + 8  # more than asyncio's own threads, on few cores
        boxes = [AsyncSandbox(timeout=PATIENCE) for _ in range(count)]
        await asyncio.gather(*(box.write_file("/tmp/log", "") for box in boxes))
        waiting = [
            asyncio.create_task(box.exec(["bash", "-c", "until [ -e /tmp/go ]; do :; done"]))
            for box in boxes[:1]
        ]
        await asyncio.gather(*(box.exec(["true"]) for box in boxes[1:]))
        assert not waiting[0].done()
        later = asyncio.create_task(boxes[0].write_file("/tmp/later", ""))
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await later
        assert paths(await boxes[0].changes()) == ["/tmp/later", "/tmp/log"]
        await asyncio.gather(*(box.close() for box in boxes))

    run(main)


def test_a_cancelled_command_is_stopped_and_no_other(provider: Provider) -> None:
    async def main() -> None:
        before, marker = new_marker(), new_marker()
        async with AsyncSandbox(provider=provider, timeout=PATIENCE) as box:
            process = await box.popen(["sleep", before])
            task = asyncio.create_task(box.exec(["bash", "-c", f"sleep {marker} & sleep {marker}"]))
            behind = asyncio.create_task(box.exec(["touch", "/tmp/never"]))
            assert await asyncio.to_thread(eventually, lambda: len(sleepers(marker)) == 2)
            behind.cancel()
            task.cancel()
            for cancelled in task, behind:
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
            assert await asyncio.to_thread(eventually, lambda: not sleepers(marker))
            assert process.poll() is None and len(await box.processes()) == 1
            assert await box.changes() == []
            process.close()

    run(main)


def test_a_callers_stop_and_a_cancellation_stop_an_awaited_command(provider: Provider) -> None:
    async def main() -> None:
        async with AsyncSandbox(provider=provider, timeout=PATIENCE) as box:
            stop = os.eventfd(0)
            for end in "stop", "cancellation":
                marker = new_marker()
                task = asyncio.create_task(box.exec(["sleep", marker], stop=stop))
                assert await asyncio.to_thread(eventually, partial(sleepers, marker))
                if end == "stop":
                    os.eventfd_write(stop, 1)
                    assert not (await task).ok
                    os.eventfd_read(stop)
                else:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert await box.processes() == []
            os.close(stop)

    run(main)


def test_a_time_limit_of_asyncio() -> None:
    async def main() -> None:
        async with AsyncSandbox(timeout=PATIENCE) as box:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):  # allow limit: the loop has no end
                    await box.exec(["bash", "-c", ENDLESS])
            assert await box.processes() == []

    run(main)


def test_what_a_cancelled_call_made_is_freed() -> None:
    """At whatever point the start or the fork is: no sandbox outlives the wait for it."""

    async def main() -> None:
        live = get_provider()._live  # type: ignore[attr-defined]
        async with AsyncSandbox() as box:
            count = len(live)
            for turns in range(6):
                for call in box.fork, AsyncSandbox().__aenter__:
                    task = asyncio.create_task(call())
                    for _ in range(turns):
                        await asyncio.sleep(0)  # allow sleep: it lets the task go on
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert len(live) <= count
            assert (await box.exec(["true"])).ok

    run(main)


def test_closing_ends_a_running_command_and_those_that_wait() -> None:
    async def main() -> None:
        box = AsyncSandbox(timeout=PATIENCE)
        marker = new_marker()
        tasks = [asyncio.create_task(box.exec(["sleep", marker])) for _ in range(2)]
        assert await asyncio.to_thread(eventually, lambda: sleepers(marker))
        await box.close()
        for task in tasks:
            with pytest.raises(InterCodeError):
                await task
        assert not sleepers(marker)

    run(main)


def test_closing_while_it_starts() -> None:
    async def main() -> None:
        box = AsyncSandbox()
        with pytest.raises(SandboxClosedError, match="not started"):
            _ = box.sandbox
        task = asyncio.create_task(box.exec(["true"]))
        await asyncio.sleep(0)  # allow sleep: it lets the task begin
        await box.close()
        with pytest.raises(SandboxClosedError):
            await task

    run(main)


def test_a_loop_that_ends_ends_its_commands() -> None:
    marker = new_marker()

    async def main() -> None:
        box = AsyncSandbox(timeout=PATIENCE)
        task = asyncio.create_task(box.exec(["sleep", marker]))
        assert await asyncio.to_thread(eventually, lambda: sleepers(marker))
        del box
        assert not task.done()

    asyncio.run(main())
    assert eventually(lambda: not sleepers(marker))
