"""What process 1 and its zygote, in C, make of messages: of right ones, and of any others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intercode_sandbox import Limits
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native import process_start, wire
from intercode_sandbox.native.process_start import PROGRAM, SOCKET
from intercode_sandbox.native.provider import NativeProvider
from intercode_sandbox.native.sandbox import NativeSandbox
from intercode_sandbox.privileges import is_root
from waiting import PATIENCE, eventually

from .test_static_walk import COMMON, OWN, SANITIZERS, STATIC

EXAMPLES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "150"))
MODULES = (STATIC / name for name in ("wire.c", "process.c", "sys.c", "text.c"))
SOURCES = (Path(__file__).parent / "static/messages.c", *MODULES)

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=30)
    | st.sampled_from(["", "/", "/root", "a" * 5000, "x\0y", "/proc/self/fd/3", "../.."])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
messages = st.dictionaries(st.text(max_size=9), values, max_size=5)
several = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


class Echo:
    """The driver, which reads messages and writes them again."""

    def __init__(self, program: Path) -> None:
        self.link, theirs = wire.pair()
        self.link.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [str(program)],
                stdin=theirs.fileno(),
                stderr=subprocess.PIPE,
                env={"ASAN_OPTIONS": "detect_leaks=0"},
            )

    def tell(self, packet: bytes, fds: tuple[int, ...] = ()) -> Any:
        """The message that comes back."""
        socket.send_fds(self.link, [packet], fds)
        try:
            found, came = wire.receive(self.link)
        except EOFError:
            raise AssertionError(self.process.communicate()[1].decode()) from None
        assert not came
        return found

    def close(self) -> None:
        self.link.close()
        assert self.process.wait(PATIENCE) == 0
        assert self.process.communicate()[1] == b""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("messages")
    objects = []
    for source in SOURCES:
        made = str(folder / f"{source.stem}.o")
        own = OWN if source.name == "text.c" else ()
        flags = (*COMMON, "-O1", *SANITIZERS, *own)
        subprocess.run(["gcc", *flags, "-c", "-o", made, str(source)], check=True)
        objects.append(made)
    subprocess.run(["gcc", *SANITIZERS, "-o", str(folder / "messages"), *objects], check=True)
    return folder / "messages"


@pytest.fixture(scope="module")
def echo(driver: Path) -> Iterator[Echo]:
    with closing(Echo(driver)) as found:
        yield found


@several
@given(message=messages)
def test_both_read_the_same(echo: Echo, message: dict[str, Any]) -> None:
    assert echo.tell(b"B" + wire.pack(message)) == message


@several
@given(message=messages, data=st.data())
def test_a_broken_message_is_refused_or_read_as_python_reads_it(
    echo: Echo, message: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(wire.pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        put = data.draw(st.sampled_from([b"", b"\xff", b"\0", b"E", b"M", b"L", b"s", b"i"]))
        body[at : at + data.draw(st.integers(0, 3))] = put
    found = echo.tell(b"B" + body)
    if found != {"errno": errno.EPROTO}:
        assert wire.pack(found) == body == wire.pack(wire.unpack(bytes(body)))


@several
@given(packet=st.binary(min_size=1, max_size=200))
def test_noise_is_refused(echo: Echo, packet: bytes) -> None:
    fits = packet[:1] == b"B" and packet[1:2] == b"M"
    assert echo.tell(packet) == {"errno": errno.EPROTO} or fits


@pytest.mark.parametrize("depth", [16, 17, 5000])
def test_depth_is_bounded(echo: Echo, depth: int) -> None:
    body = b"M" + b"s\1\0\0\0k\0" + b"L" * (depth - 1) + b"E" * depth
    assert (echo.tell(b"B" + body) == {"errno": errno.EPROTO}) == (depth > 16)


@pytest.mark.parametrize("kind", ["empty", "shrunk", "folder", "pipe", "none"])
def test_a_body_in_a_file_that_is_none(echo: Echo, kind: str, tmp_path: Path) -> None:
    """Nor does one that becomes shorter while it is read reach beyond its end."""
    if kind == "none":
        assert echo.tell(b"F") == {"errno": errno.EPROTO}
        return
    fds = []
    if kind == "pipe":
        fds = list(os.pipe())
    elif kind == "folder":
        fds = [os.open(tmp_path, os.O_RDONLY)]
    else:
        fds = [os.memfd_create("body")]
        os.write(fds[0], wire.pack({"a": "b" * 9000})[: 9000 if kind == "shrunk" else 0])
    assert "errno" in echo.tell(b"F", (fds[0],))
    for fd in fds:
        os.close(fd)


# -- the kernel's texts --------------------------------------------------------------------------

SHADOW_STACKS = "x86_Thread_features:\t\nx86_Thread_features_locked:\t\n"


@pytest.mark.parametrize(
    "more", ["", SHADOW_STACKS, SHADOW_STACKS.replace("\t\n", "\tshstk wrss\n")]
)
@pytest.mark.parametrize("groups", [0, 1, 9000])
def test_each_turn_of_a_thread_is_told(driver: Path, more: str, groups: int) -> None:
    """Some kernels have more lines after these; the list of groups may be of any length."""

    def turns(voluntary: int, others: int) -> bytes:
        lines = f"\nvoluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{others}\n"
        status = f"Name:\t\\nvoluntary_ctxt_switches:\nGroups:\t{'7 ' * groups}{lines}{more}"
        run = [str(driver), "turns"]
        return subprocess.run(run, input=status.encode(), capture_output=True, check=True).stdout

    pairs = [(voluntary, others) for voluntary in (0, 1, 12) for others in (0, 1, 21)]
    told = [turns(*pair) for pair in pairs]
    assert len({*told}) == len(pairs) and turns(12, 21) == told[-1]


# -- a sandbox's requests ------------------------------------------------------------------------

OPERATIONS = (
    *("memory", "spawn", "worker", "socket", "terminal", "signal", "kill", "processes"),
    *("programs", "kill_started", "open", "create", "stop", "go_on", "changes", "archive", "space"),
    *("root", "apply", "none"),
)
NAMES = ("argv", "cwd", "env", "numbers", "user", "track", "pid", "number", "keep", "path", "mode")
arguments = st.dictionaries(st.sampled_from((*NAMES, "timeout", "module", "op")), values)
likely = st.fixed_dictionaries(
    {},
    optional={
        "argv": st.lists(st.sampled_from(["true", "/nowhere", "", "-c", "x" * 5000]), max_size=3),
        "env": st.lists(st.sampled_from(["PATH=/bin", "PATH=", "x", "=", ""]), max_size=3),
        "cwd": st.sampled_from(["/", "", "/nowhere", "/proc/self/cwd", "x" * 5000]),
        "numbers": st.lists(st.integers(-3, 400), max_size=4),
        "user": st.lists(st.integers(-(2**40), 2**40), max_size=70) | st.none(),
        "path": st.sampled_from(["/", "", "/etc/passwd", "/a/b/c", "/dev/zero", "/proc/1/mem"]),
        "keep": st.lists(st.integers(-3, 9), max_size=5),
        "pid": st.integers(-5, 50),
        "number": st.integers(-5, 200),
        "mode": st.integers(-1, 2**20),
        "timeout": st.integers(0, 2000),
    },
)


@pytest.fixture(scope="module")
def box() -> Iterator[NativeSandbox]:
    with closing(NativeProvider()) as provider:
        yield provider.start()


def descriptors(box: NativeSandbox) -> list[str]:
    assert box._process is not None
    folder = f"/proc/{box._process.pid}/fd"
    found = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"{folder}/{name}").partition(":")[0])
    return sorted(found)


@pytest.mark.skipif(not is_root(), reason="process 1's descriptors are for root to see")
def test_any_request_is_answered_and_leaves_nothing(box: NativeSandbox) -> None:
    control = box._slot.control
    control.settimeout(PATIENCE)
    box.exec(["true"])
    before = Counter(descriptors(box))  # maybe with one that process 1 is about to close

    @several
    @given(
        op=st.sampled_from(OPERATIONS),
        wild=st.booleans(),
        rest=arguments,
        fitting=likely,
        count=st.integers(0, 4),
    )
    def ask(op: str, wild: bool, rest: dict[str, Any], fitting: dict[str, Any], count: int) -> None:
        given = [fd for _ in range(count) for fd in os.pipe()]
        try:
            told = {**(rest if wild else fitting), "op": op}
            wire.send(control, told, given[:count], packed=True)
            reply, came = wire.receive(control)
        finally:
            for fd in given:
                os.close(fd)
        for fd in came:
            os.close(fd)
        assert "error" not in reply or reply["errno"] > 0, reply
        for after in ({"op": "go_on"}, {"op": "kill", "keep": []}):
            wire.send(control, after, packed=True)
            wire.receive(control)

    ask()
    assert box.exec(["echo", "it serves"]).stdout == b"it serves\n"
    assert eventually(lambda: not Counter(descriptors(box)) - before), descriptors(box)


def asked(box: NativeSandbox, told: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
    """The reply to a request; nothing of it stays open here."""
    wire.send(box._slot.control, told, fds, packed=True)
    reply, came = wire.receive(box._slot.control)
    for fd in came:
        os.close(fd)
    return reply


@pytest.mark.parametrize("timeout", [2**63 - 1, -(2**63), 0])
@pytest.mark.parametrize("op", ["changes", "archive"])
def test_any_limit_of_a_walk(box: NativeSandbox, op: str, timeout: int) -> None:
    box.exec(["touch", "/tmp/x"])
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        reply = asked(box, {"op": op, "timeout": timeout}, [null])
    finally:
        os.close(null)
    assert reply.get("errno", 0) == (0 if timeout > 0 else errno.ETIMEDOUT)


@pytest.mark.parametrize(
    "user",
    [[2**32 - 1] * 2, [0, 2**32 - 1], [0, 0, 2**32 - 1], [-1, -1], [0, 2**32], ["0", "0"],
     [0, None], [0], [], [0] * 67, "0:0", 7, True, {"0": 0}],
)  # fmt: skip
def test_a_user_that_is_none_is_refused(box: NativeSandbox, user: object) -> None:
    """To the kernel the highest number means the user that process 1 has."""
    read, write = os.pipe()
    program = {"argv": ["true"], "env": [], "cwd": "/", "numbers": [], "user": user, "track": False}
    try:
        reply = asked(box, {"op": "spawn", **program}, [write])
    finally:
        os.close(read)
        os.close(write)
    assert reply.get("errno") == errno.EINVAL, reply


# -- the zygote ----------------------------------------------------------------------------------

LIMITS = ("memory", "disk", "files", "processes", "open_files")
COUNTS = (
    *("used_bytes", "used_files", "shared_pages", "kept", "rights", "filter", "frozen", "image"),
    *("first_id", "own_id"),
)
LISTS = ("layers", "programs", "hide", "special", "user")
ODD_PLANS = [
    *((name, odd) for name in LIMITS for odd in (0, -1, "1", None, [1])),
    *((name, odd) for name in COUNTS for odd in (-1, "1", None, [1])),
    *((name, odd) for name in LISTS for odd in (0, "x", None, {"x": "y"})),
    *(("user", odd) for odd in ([0], [-1, -1], [2**32 - 1] * 2, ["0", "0"], [0] * 67)),
    *(("first_id", 0), ("own_id", 0), ("filter", 4)),
]
"""Each name of a plan, with what must not be there; None: nothing is there."""
BEGIN_ODDLY = """
def oddly(*arguments, **more):
    told = plan(*arguments, **more)
    told.update(json.load(open(PLACE)))
    return {name: value for name, value in told.items() if name == "program" or value is not None}
if setup["module"] == "spawner":
    from intercode_sandbox.native import zygote
    plan, zygote.plan = zygote.plan, oddly
importlib"""


@pytest.mark.skipif(not is_root(), reason="an ordinary user's plan has no ids")
def test_a_plan_that_is_not_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing would be a limit, a filter, or a folder to hide."""
    place = tmp_path / "odd"
    begin = BEGIN_ODDLY.replace("PLACE", repr(str(place)))
    text = process_start._BOOTSTRAP_CODE.replace("\nimportlib", begin)
    assert text != process_start._BOOTSTRAP_CODE
    monkeypatch.setattr(process_start, "_BOOTSTRAP_CODE", text)
    started = []
    with closing(NativeProvider()) as provider:
        for number, (name, odd) in enumerate([("none", 0), *ODD_PLANS, ("none", 1)]):
            place.write_text(json.dumps({name: odd}))
            with suppress(SandboxError):
                # No two ask for the same: none is made ready before its plan is.
                sandbox = provider.start("host", Limits(timeout=PATIENCE + number))
                started.append((name, odd))
                assert name != "none" or sandbox.exec(["true"]).ok
                sandbox.close()
    assert started == [("none", 0), ("none", 1)]


def apart() -> None:
    """Keep its mounts, if it came to make any, from the machine's."""
    from intercode_sandbox.native import syscalls as sc

    sc.unshare(sc.CLONE_NEWNS)
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)


@contextmanager
def bare_zygote(
    *told: bytes, fds: tuple[int, ...] = ()
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """One that was told this, and its socket. Its forks are children of this process."""
    ours, theirs = wire.pair()
    ours.settimeout(PATIENCE)
    with ours:
        with theirs:
            run = ["bash", "-c", f"exec {PROGRAM} {SOCKET}<&{theirs.fileno()}"]
            zygote = subprocess.Popen(run, pass_fds=[theirs.fileno()], preexec_fn=apart)
        for packet in told:
            with suppress(BrokenPipeError):
                socket.send_fds(ours, [packet], fds)
        yield ours, zygote
    zygote.wait(PATIENCE)


@pytest.mark.skipif(not is_root(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize(
    "told",
    [
        [],
        [b"B"],
        [b"noise"],
        [b"B" + wire.pack({"root": True, "masks": 7, "filters": [b"", b""]})],
        [b"B" + wire.pack({"root": True, "masks": [], "filters": [b""] * 4}), b"noise"],
        [b"B" + wire.pack({"root": True, "masks": [], "filters": [b""] * 4}), b"BME"],
        [
            b"B" + wire.pack({"root": 1, "masks": [[1]], "filters": [b""] * 4}),
            b"B" + wire.pack({"network": "x", "cgroups": [7, {}, [], "/nowhere", "x" * 5000]}),
        ],
    ],
)
def test_a_zygote_that_is_told_nonsense(told: list[bytes]) -> None:
    """It ends, or refuses; a child of it becomes nothing."""
    link, its = wire.pair()
    link.settimeout(PATIENCE)
    with link:
        with its, bare_zygote(*told, fds=(its.fileno(),)) as (ours, zygote):
            its.close()
            with suppress(EOFError, OSError):
                wire.send(link, {"layers": 7, "user": "x", "ahead": False}, packed=True)
                wire.receive(ours)
            ours.shutdown(socket.SHUT_RDWR)
            assert zygote.wait(PATIENCE) in (0, 1)
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.receive(link)  # nobody holds the other end any more


MACHINE = {"root": True, "masks": [], "filters": [b"x" * 8] * 4}


@pytest.mark.skipif(not is_root(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize(
    "odd",
    [{"root": 1}, {"root": "x"}, {"root": None}, {"masks": 7}, {"masks": "x"}, {"masks": None},
     {"filters": None}, {"filters": [b"x" * 8] * 3}, {"filters": b"x"}],
)  # fmt: skip
def test_a_zygote_that_does_not_know_the_machine_ends(odd: dict[str, Any]) -> None:
    """What it was not told would be an ordinary user's, or a file of /proc to read."""
    with bare_zygote(b"B" + wire.pack({**MACHINE, **odd})) as (_, zygote):
        assert zygote.wait(PATIENCE) == 1


@pytest.mark.skipif(not is_root(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize("odd", [{}, {"cgroups": "x"}, {"cgroups": 7}, {"cgroups": {"a": "b"}}])
def test_a_fork_without_its_cgroups_ends(odd: dict[str, Any]) -> None:
    link, theirs = wire.pair()
    with link, bare_zygote(b"B" + wire.pack(MACHINE)) as (ours, _):
        with theirs:
            wire.send(ours, {"network": False, **odd}, [theirs.fileno()], packed=True)
            pid = wire.receive(ours)[0]["pid"]
        link.settimeout(PATIENCE)
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.receive(link)  # which has told it nothing, and is still open here
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
