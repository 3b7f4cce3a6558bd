"""A stand-in of llama.cpp's package, and files that have the header of a model.

The stand-in listens as the real one does, refuses callers without its key, and answers each call of
``chat/completions`` with the line of ``replies.txt`` beside the model's file that has the number of
the assistant's messages before it.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

PACKAGE = """
import http.server, json, os, signal, sys, threading
from pathlib import Path
from types import SimpleNamespace

class CommonParams(SimpleNamespace):
    def __init__(self):
        super().__init__(model=SimpleNamespace(path=""), cpuparams=SimpleNamespace(),
                         cpuparams_batch=SimpleNamespace())

class Server:
    def __init__(self, params):
        folder = Path(params.model.path).parent
        if (folder / "broken").exists():
            print("0.00.1 E srv    load_model: failed to load model", file=sys.stderr)
            raise RuntimeError("Failed to init server")
        said = {name: value for name, value in vars(params).items() if not name.startswith("cpu")}
        said = {**said, "model": params.model.path, "model_alias": sorted(params.model_alias)}
        (folder / "params.json").write_text(json.dumps({**said, "environ": dict(os.environ)}))

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != "Bearer " + params.api_keys[0]:
                    return self.answer(401, {"error": {"message": "no key"}})
                if (folder / "dies").exists():
                    os.kill(os.getpid(), signal.SIGKILL)
                spoken = sum(m["role"] == "assistant" for m in body["messages"])
                replies = (folder / "replies.txt").read_text().split("\\n")
                text = replies[min(spoken, len(replies) - 1)]
                message = {"role": "assistant", "content": text}
                self.answer(200, {"model": body["model"], "usage": {"prompt_tokens": 5,
                    "completion_tokens": 2}, "choices": [{"message": message,
                    "finish_reason": "stop"}]})
            def answer(self, status, data):
                content = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            def log_message(self, *parts):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            allow_reuse_address = False

        try:
            server = Listener(("127.0.0.1", params.port), Handler)
        except OSError:
            print("0.00.1 E srv  start: couldn't bind HTTP server socket", file=sys.stderr)
            raise RuntimeError("Failed to init server")
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
"""


def install(folder: Path) -> None:
    """Put the stand-in into a folder of Python's path."""
    (folder / "xllamacpp.py").write_text(PACKAGE, encoding="utf-8")


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test a cache of its own, and this server as llama.cpp's package.

    Returns:
        The folder of models in that cache.
    """
    monkeypatch.setenv("INTERCODE_CACHE", str(folder / "cache"))
    packages = folder / "packages"
    packages.mkdir()
    install(packages)
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("PYTHONPATH", str(packages))
    return folder / "cache" / "models"


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: float) -> bytes:
    """A key with a number of four bytes."""
    return _text(key) + struct.pack("<If", 6, value)


def header(context: int = 4096, layers: int = 2, extra: bytes = b"", extras: int = 0) -> bytes:
    """Return the header of a small model: 4 heads, 2 of them cached, of 8 values each."""
    numbers = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": 32,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    pairs = [_text("general.architecture") + struct.pack("<I", 8) + _text("llama")]
    pairs += [
        _text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in numbers.items()
    ]
    pairs.append(
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b")
    )
    count = struct.pack("<QQ", 0, len(pairs) + extras)
    return b"GGUF" + struct.pack("<I", 3) + count + b"".join(pairs) + extra


def write_model(folder: Path, *replies: str) -> Path:
    """Write a model's file whose stand-in gives these replies."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "replies.txt").write_text("\n".join(replies), encoding="utf-8")
    path = folder / "small.gguf"
    path.write_bytes(header())
    return path
