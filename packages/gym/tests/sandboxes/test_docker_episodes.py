"""Episodes in containers: an engine that dies, and what is left of one that did."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from intercode.cli.main import main
from intercode.envs.bash import BashEnv
from intercode.errors import SandboxError
from intercode.task import Dataset, Task
from intercode_sandbox.docker.engine import LEASE
from intercode_sandbox.docker.provider import DockerProvider
from private_engine import PrivateEngine
from sandbox.test_docker_engine import api as api, provider as provider
from sandbox.test_docker_images import own_image as own_image


def test_what_is_left_is_found_by_its_label(
    api: Any, provider: DockerProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    """A caller and its engine both died between making a container and starting it."""
    with closing(provider.start("host")) as sandbox:
        image = api.inspect_container(sandbox.container.id)["Image"]
        gone = f"999999-1-{os.stat('/proc/self/ns/pid').st_ino}-abcdef"
        config = {"Image": image, "Cmd": ["/x"], "Labels": {"intercode": "1", LEASE: gone}}
        made = api.create_container_from_config(config)["Id"]
        assert main(["clean", "--dry-run"]) == 0
        assert f"container {made[:12]}" in capsys.readouterr().out
        assert main(["clean"]) == 0
        assert made not in [one["Id"] for one in api.containers(all=True)]
        assert sandbox.exec(["true"]).ok, "a living process's is not touched"


def test_an_engine_that_dies_and_comes_back() -> None:
    """Errors, never zeros; then it goes on, with nothing of the engine's that was."""
    task = Task("done", "Create done.", ("touch done",))
    with (
        tempfile.TemporaryDirectory(prefix="intercode-engine-") as folder,
        PrivateEngine(Path(folder)) as engine,
        closing(DockerProvider(url=engine.url)) as provider,
        closing(BashEnv(Dataset([task], "one"), provider=provider)) as env,
    ):
        env.reset()
        env.step("touch done")
        assert env.step("submit")[1] == 1.0
        env.reset()
        engine.stop(signal.SIGKILL)
        with pytest.raises(SandboxError):
            env.step("touch done")
        with pytest.raises(SandboxError):
            env.reset()
        engine.start()
        env.reset()
        env.step("touch done")
        assert env.step("submit")[1] == 1.0


def test_the_name_of_an_image_of_the_engine_is_refused_natively(
    own_image: str, tmp_path: Path
) -> None:
    """The name means something, but not to the native sandbox."""
    argv = ["run", "bash", "--image", own_image, "--limit", "1", "--out", str(tmp_path / "run")]
    assert main(argv) == 1
