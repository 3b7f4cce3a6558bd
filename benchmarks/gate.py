"""The gateway: calls through it, as multiples of the same calls to the model's server itself.

Agents, gateway and server are three processes, all on this machine: what the gateway takes, the
others lack, as in a run. The model is scripted; it answers at once, or thinks for a while.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import caller
import floors
from intercode_sandbox import get_provider
from intercode_sandbox.forwarding import SupportsForwarding
from processes import own, pss
from rounds import Figures, take_turns
from rows import Row, below, spread

THOUGHT = 0.05
"""Seconds that the slow model takes for an answer: a quick one of a real server takes more."""
PORT = 8080
SERVER = f"""
import sys
from intercode_integrations.testing import Fault, Line, ScriptedServer
slow = Fault("slow", delay=float(sys.argv[1]))
line = Line("word " * {caller.WORDS})
plan = lambda number: slow if slow.delay else None
with ScriptedServer(lambda _: line, plan=plan) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
GATE = """
import logging, socket, sys, threading
from intercode_integrations.gateway import Gateway, Upstream
from intercode_sandbox.forwarding import set_no_delay

# Nobody has to know that what is scripted has no price.
logging.getLogger("intercode").setLevel(logging.ERROR)

def serve(seat, connection):
    with connection:
        seat.serve(connection)

def listen(seat, listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(seat, connection), daemon=True).start()

with Gateway(Upstream.resolve("openai-compatible/any", sys.argv[1])) as gateway:
    for _ in range(int(sys.argv[2])):
        seat, listener = gateway.open_session(), socket.create_server(("127.0.0.1", 0))
        set_no_delay(listener)  # as a sandbox's forward does
        threading.Thread(target=listen, args=(seat, listener), daemon=True).start()
        print(listener.getsockname()[1], seat.token)
    print(flush=True)
    sys.stdin.read()
"""
Door = tuple[int, str]
"""A port that takes calls, and the key for it."""


@contextmanager
def program(code: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that ends with its input."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", code, *argv], stdin=pipe, stdout=pipe, text=True
    )
    assert child.stdin
    try:
        yield child
    finally:
        child.stdin.close()
        child.wait()


class Place:
    """A server, and a gateway with many seats before it."""

    def __init__(self, stack: ExitStack, thought: float, seats: int) -> None:
        os.environ.setdefault("OPENAI_COMPATIBLE_API_KEY", "none")
        server = stack.enter_context(program(SERVER, str(thought)))
        assert server.stdout
        url = server.stdout.readline().strip()
        gate = stack.enter_context(program(GATE, url, str(seats)))
        assert gate.stdout
        self.pid = gate.pid
        self.direct: list[Door] = [(int(url.rpartition(":")[2].partition("/")[0]), "none")] * seats
        answers = [gate.stdout.readline().split() for _ in range(seats)]
        if [] in answers:
            raise SystemExit("the gateway's program has ended: its error stands above")
        self.through: list[Door] = [(int(port), token) for port, token in answers]
        self.begun = pss(gate.pid)


def alone(place: Place, calls: int, stream: bool) -> Figures:
    """Calls of one agent, by both ways."""
    ways = {"direct": place.direct, "through it": place.through}
    return {name: median(caller.times(*doors[0], calls, stream)) for name, doors in ways.items()}


def inside(place: Place, calls: int) -> Figures:
    """Streamed calls of an agent in a sandbox, whose port leads to the gateway."""
    program = Path(caller.__file__).read_text()
    port, token = place.through[0]
    with closing(get_provider("native").start("host")) as sandbox:
        assert isinstance(sandbox, SupportsForwarding)
        sandbox.write_file("/tmp/caller.py", program.encode())
        sandbox.forward(PORT, f"127.0.0.1:{port}")
        done = sandbox.exec(["python3", "/tmp/caller.py", str(PORT), token, str(calls)])
    if done.exit_code:
        raise SystemExit(done.stderr.decode())
    direct = median(caller.times(*place.direct[0], calls))
    return {"direct": direct, "through it": median(map(float, done.stdout.split()))}


def together(place: Place, calls: int) -> Figures:
    """Streamed calls of many agents at once, by both ways."""
    with ThreadPoolExecutor(len(place.direct)) as pool:

        def all_of(doors: list[Door]) -> float:
            ports, keys = zip(*doors, strict=True)
            found = pool.map(partial(caller.times, calls=calls), ports, keys)
            return median(one for each in found for one in each)

        direct = all_of(place.direct)
        before = own(place.pid)
        through = all_of(place.through)
        spent = own(place.pid) - before
    made = (calls + 1) * len(place.through)
    return {"direct": direct, "through it": through, "CPU": 1e3 * spent / made}


def measure(rounds: int = 5, calls: int = 50, agents: int = 32) -> list[Row]:
    """All of it. The last calls keep all processors busy, also without a gateway."""
    many = f"{agents} agents at once, {1e3 * THOUGHT:.0f} ms of thought"
    with ExitStack() as stack:
        quick = Place(stack, 0.0, 1)
        slow = Place(stack, THOUGHT, agents)
        measures = {
            "a call": partial(alone, quick, calls, False),
            "a streamed call": partial(alone, quick, calls, True),
            "a call from a sandbox": partial(inside, quick, calls),
            many: partial(together, slow, max(1, calls // 5)),
        }
        found = {
            name: take_turns(partial(floors.programs, 1), [one], rounds)
            for name, one in measures.items()
        }
        memory = (pss(slow.pid) - slow.begun) / agents / 2**20
        whole = pss(slow.pid) / 2**20
    rows = []
    for name, figures in found.items():
        direct, through = figures["direct"], figures["through it"]
        ratio, low, high = spread([a / b for a, b in zip(through, direct, strict=True)])
        rows.append(Row(f"{name}, direct", direct, "ms"))
        note = f"{ratio:.2f} x ({low:.2f} to {high:.2f})"
        rows.append(Row(f"{name}, by the gateway", through, "ms", note=note))
    each = f"a call of one of the {agents}"
    return [
        *rows,
        below(f"CPU of the gateway, {each}", found[many]["CPU"], 20, "ms"),
        below(f"memory of the gateway with {agents} agents", whole, 64, "MiB"),
        Row("the same, of each agent", memory, "MiB"),
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
