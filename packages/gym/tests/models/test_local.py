"""Models of this machine: their files, and the server that runs for as long as it is used."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from file_server import Place, serve
from intercode.errors import FetchError, ModelAccessError, UsageError
from intercode.models import Message, get_model
from intercode.models.local import catalog, gguf, server, store
from intercode.models.local.catalog import entries, find_entry
from intercode.models.remote import RemoteModel
from intercode.models.upstream import serve_upstream
from models import local_server
from waiting import eventually

HELLO = [Message("user", "hello")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and the stand-in of llama.cpp's package."""
    return local_server.prepare(tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return local_server.write_model(tmp_path / "model", "first", "second")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def server_of(model: RemoteModel) -> server.LocalModelServer:
    (shared,) = server._shared_servers.values()
    return shared.server


def logs(cache: Path) -> list[Path]:
    return list((cache / "logs").iterdir())


def test_a_server_runs_from_the_first_call_to_the_end(path: Path, cache: Path) -> None:
    with get_model(f"local/{path}") as model:
        assert not server._shared_servers
        reply = model.complete(HELLO)
        assert (reply.text, reply.cost, reply.usage.total) == ("first", 0.0, 7)
        again = [*HELLO, Message("assistant", "first"), Message("user", "more")]
        assert model.complete(again).text == "second"
        pid = server_of(model).pid
        assert is_alive(pid) and len(logs(cache)) == 1
        assert model.weights == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not is_alive(pid)
    assert logs(cache) == []
    model.close()  # idempotent


def test_its_size_follows_from_the_machine_and_the_calls(path: Path) -> None:
    with get_model(f"local/{path}") as model:
        model.start(3)
        params = json.loads(path.with_name("params.json").read_text())
    assert params["n_parallel"] == 3
    assert params["n_ctx"] == 3 * 4096  # the model's own context is smaller than our usual one
    assert params["hostnames"] == ["127.0.0.1"]
    assert params["model"] == str(path)


@pytest.mark.parametrize(
    ("model_context", "memory", "expected"),
    [(12_000, 40_000, server.CONTEXT), (3000, 2500, server.LEAST_CONTEXT)],
)
def test_its_context_is_not_halved_below_the_least(
    monkeypatch: pytest.MonkeyPatch, model_context: int, memory: int, expected: int
) -> None:
    monkeypatch.setattr(server, "available_memory", lambda: server.BUFFERS + memory)
    header = SimpleNamespace(context=model_context, cache_bytes=lambda tokens: tokens)
    weights: Any = SimpleNamespace(size=0, header=header)
    assert server.plan_server("m", weights, 1).context == expected


def test_its_process_gets_no_key(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    monkeypatch.setenv("LLAMA_LOG_COLORS", "1")
    with get_model(f"local/{path}") as model:
        model.start()
        params = json.loads(path.with_name("params.json").read_text())
        command = Path(f"/proc/{server_of(model).pid}/cmdline").read_bytes()
    assert not {"OPENAI_API_KEY", "LLAMA_API_KEY"} & params["environ"].keys()
    assert params["environ"]["LLAMA_LOG_COLORS"] == "1"
    assert params["api_keys"][0].encode() not in command


def test_callers_of_a_file_share_its_server(path: Path) -> None:
    one, two = get_model(f"local/{path}"), get_model(f"local/{path}")
    assert one.complete(HELLO).text == two.complete(HELLO).text == "first"
    pid = server_of(one).pid
    one.close()
    assert is_alive(pid)
    assert two.complete(HELLO).text == "first"
    two.close()
    assert not is_alive(pid)


RUN = """
import sys
from intercode.models import Message, get_model
from intercode.models.local import server
model = get_model("local/" + sys.argv[1])
model.complete([Message("user", "hello")])
(shared,) = server._shared_servers.values()
print(shared.server.pid, shared.server.url, flush=True)
sys.stdin.read()
"""


def test_runs_side_by_side_use_one_file_and_a_killed_one_leaves_no_server(
    path: Path, cache: Path
) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    (pid, url), (other, second) = (run.stdout.readline().split() for run in runs)  # type: ignore[union-attr]
    assert url != second and is_alive(int(pid)) and is_alive(int(other))
    runs[0].send_signal(signal.SIGKILL)
    runs[0].communicate()
    assert eventually(lambda: not is_alive(int(pid)))
    assert is_alive(int(other))
    runs[1].communicate("")
    assert eventually(lambda: not is_alive(int(other)))
    assert logs(cache) == []


def test_a_fork_does_not_keep_it(path: Path) -> None:
    with get_model(f"local/{path}") as model:
        model.start()
        running = server_of(model)
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent's end is closed
            os._exit(0)
        os.close(reader)
    # Closed while the fork lives: by the end of a pipe that the fork does not hold.
    assert running._process.returncode == 0
    os.close(writer)
    os.waitpid(child, 0)


def test_a_taken_port_is_told(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        model = get_model(f"local/{path}", base_url=f"http://127.0.0.1:{port}")
        with model, pytest.raises(ModelAccessError, match=f"port {port} is taken"):
            model.start()
    with get_model(f"local/{path}", base_url=f"http://localhost:{port}/v1") as model:
        model.start()
        assert server_of(model).url.endswith(f":{port}")


@pytest.mark.parametrize(
    "url",
    ["http://example.com:80", "http://localhost:99999", "http://localhost:abc", "http://localhost"],
)
def test_a_url_without_a_port_of_this_machine_is_refused(path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"only selects the port, such as http://127\.0\.0\.1:"):
        get_model(f"local/{path}", base_url=url)


def test_a_server_that_does_not_start_is_told_with_its_log(path: Path, cache: Path) -> None:
    path.with_name("broken").touch()
    told = pytest.raises(ModelAccessError, match=r"exit code 1.*failed to load model")
    with get_model(f"local/{path}") as model, told as caught:
        model.start()
    (log,) = logs(cache)
    assert str(log) in str(caught.value)


def test_a_server_that_ends_by_itself_is_told(path: Path, cache: Path) -> None:
    path.with_name("dies").touch()
    with get_model(f"local/{path}") as model, pytest.raises(ModelAccessError, match="signal 9"):
        model.complete(HELLO)
    assert len(logs(cache)) == 1


def test_others_on_this_machine_need_its_key(path: Path) -> None:
    with serve_upstream(f"local/{path}") as upstream:
        assert upstream.url.startswith("http://127.0.0.1:")
        stranger = get_model(f"openai-compatible/{path}", base_url=upstream.url)
        with pytest.raises(ModelAccessError, match="no key"):
            stranger.complete(HELLO)
        stranger.close()
    assert not server._shared_servers


def test_too_little_memory_is_told_before_any_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "available_memory", lambda: server.BUFFERS)
    with pytest.raises(UsageError, match=r"needs 0\.5 GB of memory, and 0\.5 GB are free"):
        get_model(f"local/{path}")


def test_less_memory_means_fewer_dialogues_then_shorter_ones(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = store.find_weights(str(path))
    assert weights.header.cache_bytes(1) == 2 * 2 * (8 + 8) * 2  # layers, heads, sizes, f16
    most = weights.size + server.BUFFERS

    def plan(memory: int) -> tuple[int, int]:
        monkeypatch.setattr(server, "available_memory", lambda: most + memory)
        options = server.plan_server("small", weights, 4)
        return options.slots, options.context

    one = weights.header.cache_bytes(4096)
    assert plan(8 * one) == (4, 4096)  # half of what is free is left to others
    assert plan(6 * one) == (3, 4096)
    assert plan(one) == (1, 4096)
    assert plan(one // 2) == (1, 2048)
    assert plan(10**12) == (4, 4096)
    path.write_bytes(local_server.header(context=100_000))
    weights = store.find_weights(str(path))
    assert plan(10**12) == (4, 32_768)
    assert plan(4 * 4 * 4 * one) == (4, 16_384)  # a quarter holds four of 16,384 tokens
    assert plan(12 * one) == (3, 8192)


def test_the_memory_of_this_machine() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < server.available_memory() <= total


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing.gguf", "there is no such file"),
        ("qwen2.5-coder-1.5B", "did you mean 'qwen2.5-coder-1.5b'"),
        ("smollm2-135m", "intercode models fetch smollm2-135m"),
    ],
)
def test_no_such_model(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        get_model(f"local/{name}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 an archive",
        b"GGUF" + struct.pack("<I", 1),
        local_server.header()[:60],
        local_server.header(extra=struct.pack("<Q", 1 << 40), extras=1),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        local_server.header(extra=local_server.number("llama.block_count", math.inf), extras=1),
    ],
)
def test_what_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"other\.gguf: is not a model in the format GGUF"):
        gguf.read_header(path)


def test_without_the_package(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PACKAGE", "no_such_package")
    with pytest.raises(UsageError, match=r"pip install 'intercode-gym\[local\]'"):
        get_model(f"local/{path}")


# The catalog


def test_the_catalog_is_complete() -> None:
    assert len(entries()) >= 10
    for entry in entries():
        assert len(entry.sha256) == 64 and len(entry.revision) == 40
        assert entry.url.startswith("https://huggingface.co/") and entry.file.endswith(".gguf")
    assert len({entry.name for entry in entries()}) == len(entries())
    assert find_entry("smollm2-135m").size < find_entry("qwen2.5-coder-1.5b").size


@pytest.fixture
def catalogued(path: Path, monkeypatch: pytest.MonkeyPatch) -> catalog.LocalModelEntry:
    """The smallest model of the catalog, whose file is now the test's."""
    content = path.read_bytes()
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    changed = msgspec.structs.replace(entries()[0], **facts)
    monkeypatch.setattr(catalog, "entries", lambda: (changed, *entries()[1:]))
    return changed


def test_a_file_that_is_had_already(
    catalogued: catalog.LocalModelEntry, path: Path, cache: Path
) -> None:
    other = path.with_name("other.gguf")
    other.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FetchError, match="SHA-256 is"):
        store.fetch(catalogued, origin=other)
    with pytest.raises(UsageError, match="there is no such file"):
        store.fetch(catalogued, origin="missing.gguf")
    assert not store.home(catalogued).exists()
    place = store.fetch(catalogued, origin=path)
    assert place == store.home(catalogued) and place.read_bytes() == path.read_bytes()
    assert store.find_weights(catalogued.name).sha256 == catalogued.sha256
    place.chmod(0o600)
    place.write_bytes(b"damaged")
    with pytest.raises(UsageError, match=f"intercode models remove {catalogued.name}"):
        get_model(f"local/{catalogued.name}")
    assert store.remove(catalogued)
    assert store.remove(catalogued) is None


def test_a_download_goes_on_where_it_broke_off(
    catalogued: catalog.LocalModelEntry, path: Path, cache: Path
) -> None:
    content = path.read_bytes()
    said: list[str] = []
    with serve(Place(content, kind="application/octet-stream", answers=[404])) as place:
        with pytest.raises(FetchError, match="404"):
            store.fetch(catalogued, origin=place.url)
        part = store.home(catalogued).with_name(f".{catalogued.file}.new")
        part.parent.mkdir()
        part.write_bytes(content[:100])  # what a killed process has left
        store.fetch(catalogued, origin=place.url, report_line=said.append)
        assert place.ranges == ["bytes=100-"]
        store.fetch(catalogued, origin=place.url)
        assert place.asked == 2
    assert catalogued.licence in said[0]
    assert store.home(catalogued).read_bytes() == content
    assert not part.exists()


def test_a_run_fetches_what_it_names(
    catalogued: catalog.LocalModelEntry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with serve(Place(path.read_bytes(), kind="application/octet-stream")) as place:
        monkeypatch.setattr(catalog.LocalModelEntry, "url", place.url)
        store.ensure("openai/gpt-4o", said.append)
        store.ensure(f"local/{path}", said.append)
        store.ensure(None, said.append)
        assert place.asked == 0 and said == []
        store.ensure(f"local/{catalogued.name}", said.append)
        store.ensure(f"local/{catalogued.name}", said.append)
        assert place.asked == 1
    assert said[-1].endswith("(100 %)")
