"""Probes of agents from outside: how they are installed, what they may take, and how they end."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from intercode.agents.language import EpisodeLimits
from intercode.errors import AgentStartError, BudgetError, ImageError
from intercode.rewards.bash import _is_scratch, _scratch_pattern
from intercode.rewards.gold import GoldResult
from intercode_integrations.external_agents import agent_layers, episode_runner
from intercode_integrations.external_agents.profile import find_profile
from intercode_integrations.gateway import Call, Gateway, Upstream
from intercode_sandbox import Completed
from intercode_sandbox.images.tarballs import LayerUnpacker

from .tools import ProbeError, one_of, start

_SECRET = "hunter2"


def _refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except ImageError:
        return True
    return False


# -- layers ------------------------------------------------------------------------------------


def _has_a_file_at(name: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "layer.tar")
        with tarfile.open(made, "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
        return _refused(lambda: agent_layers._check_members(made, "tiny"))


def layer_elsewhere() -> bool:
    return _has_a_file_at("etc/passwd")


def layer_parents() -> bool:
    return _has_a_file_at("opt/agents/tiny/../../../etc/passwd")


class _Machine:
    """A sandbox in which an installer has done what it is asked to; it keeps its commands."""

    def __init__(self, **files: object) -> None:
        self.files = {f"/{name}": json.dumps(each).encode() for name, each in files.items()}
        self.asked: list[str] = []

    def write_file(self, path: str, data: bytes) -> None:
        """Take a file."""

    def read_file(self, path: str) -> bytes:
        """Return the file whose name, without its folder and end, was given."""
        return self.files[f"/{Path(path).stem.strip('.').replace('-', '_')}"]

    def run(self, *argv: str, **_: str) -> bytes:
        self.asked += argv
        return b""


def _installs(machine: _Machine, agent: str, before: str | None = None) -> bool:
    recipe = agent_layers.find_recipe(agent)
    build = (
        agent_layers._install_npm if recipe.install.source == "npm" else agent_layers._install_pypi
    )
    sandbox = cast(Any, machine)
    return not _refused(lambda: build(recipe, "http://index", sandbox, machine.run, before))


class _Npm(_Machine):
    """One whose lock differs from what npm says that it has installed."""

    def __init__(self, listed: dict[str, Any], there: dict[str, Any]) -> None:
        super().__init__(package={})
        self.listed, self.there = listed, there

    def read_file(self, path: str) -> bytes:
        if not path.endswith("lock.json"):
            return b"{}"
        found = self.there if path.endswith("/.package-lock.json") else self.listed
        return json.dumps({"packages": found}).encode()


def layer_checksums_of_npm() -> bool:
    return not _installs(_Npm({}, {"node_modules/x": {"version": "1"}}), "codex")


def layer_left_out_by_npm() -> bool:
    return not _installs(_Npm({"node_modules/x": {"version": "1"}}, {}), "codex")


def layer_lock_of_npm() -> bool:
    machine = _Npm({}, {})
    _installs(machine, "codex", before="{}")
    return one_of(machine.asked[1], holds="ci", gone="install")


def _report(**hashes: str) -> _Machine:
    info = {"archive_info": {"hashes": hashes}}
    package = {"metadata": {"name": "x", "version": "1"}, "download_info": info}
    return _Machine(report={"install": [package]})


def layer_checksums_of_pip() -> bool:
    return not _installs(_report(md5="0"), "aider")


def layer_lock_of_pip() -> bool:
    machine = _report(sha256="0")
    _installs(machine, "aider", before="x==1 --hash=sha256:0\n")
    return one_of(machine.asked[-1], holds="/tmp/lock", gone="aider-chat==0.86.2")


def layer_password() -> bool:
    said = f"no such package at http://reader:{_SECRET}@index/simple".encode()
    sandbox = SimpleNamespace(exec=lambda *_, **__: Completed(1, b"", said))
    try:
        agent_layers._run(cast(Any, sandbox), {}, "pip")
    except ImageError as error:
        return _SECRET not in str(error)
    raise ProbeError("it did not fail")


# -- archives that are laid over an image ----------------------------------------------------------


def _laid(*members: tarfile.TarInfo) -> Path:
    layer = Path(tempfile.mkdtemp())
    with tarfile.open(fileobj=io.BytesIO(bytes(10240))) as archive:
        unpacker = LayerUnpacker(layer, (), ())
        for member in members:
            unpacker.add(archive, member)
    return layer


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def archive_devices() -> bool:
    return _refused(lambda: _laid(_member("null", tarfile.CHRTYPE)))


def archive_parents() -> bool:
    return _refused(lambda: _laid(_member("a/../../x", tarfile.DIRTYPE)))


def archive_links() -> bool:
    """Whether a hard link to a symbolic link is one to it, not to a file of this machine."""
    with tempfile.NamedTemporaryFile() as secret:
        link = _member("a", tarfile.SYMTYPE, secret.name)
        layer = _laid(link, _member("b", tarfile.LNKTYPE, "a"))
        return (layer / "b").is_symlink()


# -- an episode --------------------------------------------------------------------------------


def _gateway() -> Gateway:
    os.environ["OPENAI_COMPATIBLE_API_KEY"] = "none"
    return Gateway(Upstream.resolve("openai-compatible/x", "http://127.0.0.1:9/v1"))


def _played(command: str, seconds: float) -> tuple[Any, episode_runner.ExternalAgent, str]:
    """Play an episode with this program: its sandbox, the player, and the output."""
    sandbox = start()
    full_episode = SimpleNamespace(turns=[])
    env = SimpleNamespace(
        run_guarded=lambda work: work(sandbox),
        full_episode=full_episode,
        observation="?",
        directory="/",
    )
    with _gateway() as gateway:
        limits = EpisodeLimits(seconds=seconds)
        agents = episode_runner.ExternalAgentFactory(
            find_profile(f"cli:{command}"), gateway, "x/y", limits
        )
        player = episode_runner.ExternalAgent(agents)
        with suppress(AgentStartError):  # the program asks no model
            player.run(cast(Any, env))
    return sandbox, player, str(player.episode_metadata()["outside"]["output"])


def player_kills_all() -> bool:
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine, it does not run so soon
        command = "bash -c 'setsid -f sleep 99; echo y; exec sleep 99'"
        sandbox, player, said = _played(command, seconds)
        if player.episode_metadata().get("ended_by") != "seconds":
            raise ProbeError(f"it ended: {player.episode_metadata()}")
        if said:
            return not sandbox.processes()
    raise ProbeError("it did not run")


def player_hides_its_token() -> bool:
    _, player, said = _played("bash -c 'echo $OPENAI_API_KEY'", 60)
    assert player._session is not None
    return one_of(said.strip(), holds="***", gone=player._session.token)


def _allows(limits: EpisodeLimits, calls: int = 9) -> bool:
    """Whether a call is allowed after one that took 10 tokens and a dollar."""
    purse = episode_runner.EpisodeBudget(limits, calls)
    purse.reserve(10, 1.0).presume()
    purse.count(Call("chat", "", ""))
    try:
        purse.reserve(10, 1.0).release()
    except BudgetError:
        return False
    return True


def purse_of_calls() -> bool:
    return not _allows(EpisodeLimits(), calls=1)


def purse_of_tokens() -> bool:
    return not _allows(EpisodeLimits(tokens=10))


def purse_of_dollars() -> bool:
    return not _allows(EpisodeLimits(cost=1.0))


def ignored_paths_of_the_task() -> bool:
    gold = GoldResult("", {}, {}, frozenset({"/root/.mine/answer"}))
    return not _is_scratch("/root/.mine/answer", gold, _scratch_pattern(["/root/.mine"]), ())
