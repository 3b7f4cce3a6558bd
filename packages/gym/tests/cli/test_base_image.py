"""``--image base``, really built, by root and by an ordinary user; every bundled task of Bash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode_sandbox import get_provider
from intercode_sandbox.docker.engine import DockerEngine
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.images import resolve
from intercode_sandbox.images.debian import MIRROR
from intercode_sandbox.images.image_export import export_image
from intercode_sandbox.images.pinned_debian import trees
from ordinary import ordinary_user
from trees import ODD, tree
from waiting import PATIENCE

RUN = ("run", "bash", "--image", "base", "--agent", "oracle", "--quiet", "--json", "--out")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A mirror that fetches each package once."""
    folder = tmp_path_factory.mktemp("mirror")
    upstream = os.environ.get("INTERCODE_DEBIAN_MIRROR") or MIRROR

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kept = folder / self.path.rpartition("/")[2]
            if not kept.exists():
                with urllib.request.urlopen(upstream + self.path) as response:
                    kept.write_bytes(response.read())
            self.send_response(200)
            self.send_header("Content-Length", str(kept.stat().st_size))
            self.end_headers()
            self.wfile.write(kept.read_bytes())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def run(
    prefix: tuple[str, ...], env: dict[str, str], out: Path, mirror: str, *options: str
) -> dict[str, Any]:
    """Run the oracle in an image that is built for it; return the run's record."""
    command = [*prefix, sys.executable, "-m", "intercode.cli", *RUN, str(out), *options]
    done = subprocess.run(
        command, env={**env, "INTERCODE_DEBIAN_MIRROR": mirror}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["finished"] == told["planned"] == told["statistics"]["successes"], told
    assert told["planned"] >= 50 or options
    record: dict[str, Any] = json.loads((out / "run.json").read_text())
    return record


def test_all_bundled_tasks_and_two_builds_alike(
    mirror: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A build that leaves another tree than the lock's fails, so that both have the same."""
    with ordinary_user() as user:
        record = run(user.prefix, user.env, user.home / "run", mirror)
    images = record["env"]["images"]
    assert all(name.startswith("base+builtin:fs_") for name in images)
    if os.geteuid() == 0:
        monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
        again = run((), dict(os.environ), tmp_path / "run", mirror, "--limit", "1")
        assert again["env"]["images"].items() <= images.items()
        unchanged_by_python()
        request.getfixturevalue("engine")
        built_by_docker(tmp_path)
    [tools] = record["sessions"][0]["tools"].values()
    assert tools["system"] == "Debian GNU/Linux 12 (bookworm)" and tools["git"] == "2.39.5"


def unchanged_by_python() -> None:
    """Python compiles nothing there: what it wrote would count as a change by the agent."""
    provider = get_provider()
    sandbox = provider.start("base")
    program = "import asyncio, json, pytest, sqlite3, unittest, xml.dom"
    assert sandbox.image.digest in trees()
    assert sandbox.exec(["python3", "-c", program], timeout=PATIENCE).ok
    assert sandbox.changes() == []
    sandbox.close()


def built_by_docker(folder: Path) -> None:
    """Docker builds the recipes of bundled tasks, and the files are those that agents are given."""
    export_image(resolve("base"), "base", folder / "base.tar")
    provider, engine = DockerProvider(), DockerEngine()
    with engine.errors("importing base") as api, (folder / "base.tar").open("rb") as source:
        api.import_image_from_data(source, "base")
    bash, swe = intercode.make("bash", image="base"), intercode.make("swe", image="base")
    odd = replace(ODD, image=bash.dataset[0].image)
    for env, task in ((bash, odd), (swe, swe.dataset[0])):
        env.stage.recipe(task).write(folder / task.task_id)
        with engine.errors("building a recipe") as api:
            place = str(folder / task.task_id)
            lines = api.build(place, tag="made", network_mode="none", decode=True)
            said = [line for line in lines if "error" in line]
        assert not said, said
        given, made = env.stage.open(task), provider.start("docker-daemon:made")
        with closing(given), closing(made):
            left_out = ("usr", ".dockerenv")
            assert tree(made, *left_out) == tree(given, *left_out), task.task_id
    for one in (bash, swe, provider, engine):
        one.close()
