"""The Docker provider beyond the contract: what it asks of an engine, and when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from intercode_sandbox import Limits
from intercode_sandbox.docker import provider as providers
from intercode_sandbox.docker.engine import LEASE, DockerEngine
from intercode_sandbox.docker.images import prune
from intercode_sandbox.docker.mounted_runtime import SHARED_ROOT
from intercode_sandbox.docker.provider import DockerProvider, sweep
from intercode_sandbox.doctor import check_docker
from intercode_sandbox.errors import ImageError, SandboxUnavailableError
from private_engine import REMAPPED, PrivateEngine
from waiting import PATIENCE, eventually, new_marker, sleepers

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for ordinary users: they start no engine"
)


@pytest.fixture
def api(engine: PrivateEngine) -> Iterator[Any]:
    with closing(docker.APIClient(base_url=engine.url)) as client:
        yield client


@pytest.fixture(scope="module")
def provider(engine: PrivateEngine) -> Iterator[DockerProvider]:
    with closing(DockerProvider()) as found:
        yield found


def eventually_none(api: Any, label: str = "intercode=1") -> bool:
    return eventually(lambda: not api.containers(all=True, filters={"label": [label]}))


def test_what_a_container_may_do(api: Any, provider: DockerProvider) -> None:
    limits = Limits(memory=300 << 20, processes=40)
    with closing(provider.start("host", limits)) as sandbox:
        facts = api.inspect_container(sandbox.container.id)
        host = facts["HostConfig"]
        assert host["CapDrop"] == ["ALL"] and not host["Privileged"]
        assert not {"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD"} & set(host["CapAdd"])
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert (host["NetworkMode"], host["IpcMode"], host["PidMode"]) == ("none", "private", "")
        assert host["PidsLimit"] == 42
        assert 300 << 20 <= host["Memory"] == host["MemorySwap"] < 500 << 20
        assert host["AutoRemove"] and not host["PortBindings"]
        assert all(not mount["RW"] for mount in facts["Mounts"] if mount["Type"] == "bind")
        assert facts["Config"]["Labels"]["intercode"] == "1"


@pytest.mark.parametrize("preload", [(), ("worker_probe",)])
def test_things_of_ours_are_closed_to_programs(engine: PrivateEngine, preload: list[str]) -> None:
    inside = "/dev/.intercode"
    with closing(DockerProvider(preload=preload, path=[str(Path(__file__).parent)])) as provider:
        sandbox = provider.start("host")
        done = sandbox.exec(["bash", "-c", f"ls -A {inside}; cd {inside}; ls -A {inside}/python"])
        assert not done.stdout
        for user in ("1234", "nobody"):
            assert not sandbox.exec(["ls", f"{inside}/code"], user=user).ok
        for program in ("process1", "python/ld.so"):
            assert not sandbox.exec([f"{inside}/{program}", "--version"]).ok
        told = sandbox.exec(["cat", "/proc/1/cmdline", "/proc/1/comm"]).stdout
        assert told.strip(b"\0").endswith(b"init\n") and b"json" not in told, told


@pytest.mark.attack(9)
@pytest.mark.defends("lateral")
@pytest.mark.defends("host DoS")
def test_an_engine_that_shares_root_is_asked_for_by_name(
    engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts inotify instances, signals and more by user: an agent takes root's."""
    monkeypatch.delenv(SHARED_ROOT)
    with (
        closing(DockerProvider()) as provider,
        pytest.raises(SandboxUnavailableError, match="is this machine's root") as caught,
    ):
        provider.start("host")
    assert caught.value.fix == f"export {SHARED_ROOT}=1"
    found = {check.name: check for check in check_docker()}
    assert found["docker sandbox"].ok is None and SHARED_ROOT in found["docker sandbox"].fix
    assert "inotify" in found["docker user"].detail and "userns-remap" in found["docker user"].fix


def test_each_sandbox_has_a_container_of_its_own(engine: PrivateEngine) -> None:
    """Also one that nobody wrote to: what an episode did to a kernel's object is no file."""
    with closing(DockerProvider()) as provider:
        used = set()
        for _ in range(6):
            with closing(provider.start("host")) as sandbox:
                used.add(sandbox.container.id)
                assert sandbox.exec(["cat", "/etc/hostname"]).ok
        assert len(used) == 6


@pytest.mark.attack(40)
@pytest.mark.defends("escape")
def test_an_engine_that_remaps_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """All works, for ids that nobody has on this machine."""
    monkeypatch.delenv(SHARED_ROOT, raising=False)
    with (
        tempfile.TemporaryDirectory(prefix="intercode-engine-", dir="/var/tmp") as folder,
        PrivateEngine(Path(folder), remap=True) as engine,
        closing(DockerProvider(url=engine.url)) as provider,
        closing(provider.start("host")) as sandbox,
    ):
        assert provider.facts()["remapped"]
        marker = new_marker()
        sandbox.popen(["sleep", marker], channels={})
        assert eventually(lambda: sleepers(marker))
        assert Path(f"/proc/{sleepers(marker)[0]}").stat().st_uid == REMAPPED
        assert sandbox.exec(["id", "-u"]).stdout == b"0\n"
        assert not sandbox.exec(["ls", "/dev/.intercode"]).ok
        assert not sandbox.exec(["/dev/.intercode/python/ld.so", "--version"]).ok
        sandbox.write_file("/etc/new", b"x")
        assert [change.path for change in sandbox.changes()] == ["/etc/new"]
        with closing(provider.start(sandbox.snapshot())) as again:
            assert again.read_file("/etc/new") == b"x" and again.changes() == []


def test_podman_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="podman-") as folder:  # Podman wants a short name
        url = f"unix://{folder}/socket"
        places = [f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp"]
        # What it mounts goes with it.
        command = ["unshare", "--mount", "podman", *places, "system", "service", "--time=0", url]
        with subprocess.Popen(command) as service:
            try:
                assert eventually(Path(folder, "socket").exists)
                with (
                    closing(DockerProvider(url=url)) as provider,
                    pytest.raises(SandboxUnavailableError, match="Podman's") as caught,
                ):
                    provider.start("host")
            finally:
                service.terminate()
    assert caught.value.fix


def test_what_the_engine_lacks(engine: PrivateEngine, provider: DockerProvider) -> None:
    with pytest.raises(ImageError, match="docker pull no-such-image"):
        provider.start("docker-daemon:no-such-image")
    with (
        closing(DockerProvider(url="unix:///nowhere/docker.sock")) as nowhere,
        pytest.raises(SandboxUnavailableError, match=r"there is no /nowhere/docker.sock") as caught,
    ):
        nowhere.start("host")
    assert caught.value.fix


def test_an_engine_that_does_not_see_our_files(engine: PrivateEngine) -> None:
    with closing(DockerProvider()) as provider:
        provider._prepare_runtime().mounts["code"] = Path("/only/here")
        with pytest.raises(SandboxUnavailableError, match="cannot see this machine's files"):
            provider.start("host")


FORK = """
import ctypes
if (child := ctypes.PyDLL(None).fork()) == 0:
    time.sleep(600)
"""
"""A fork that runs no code of ours: it holds all that the caller has open."""


@pytest.mark.parametrize(
    ("number", "fork"), [(signal.SIGKILL, ""), (signal.SIGINT, ""), (signal.SIGKILL, FORK)]
)
def test_nothing_is_left_of_a_caller_that_ends(
    api: Any, engine: PrivateEngine, number: int, fork: str
) -> None:
    program = (
        "import time; from intercode_sandbox import get_provider; "
        "p = get_provider('docker'); boxes = [p.start('host') for _ in range(3)]; "
        "boxes[0].changes(); boxes[1].snapshot()\n"
        # One that the engine is just making would stay, to be found by its label.
        "while any(p._pool._starting_counts.values()): time.sleep(0.01)\n"
        f"child = 0\n{fork}\n"
        "print(p._home.lease, child, flush=True)\n"
        "for _ in range(600): time.sleep(0.1)"  # a long one may miss an interrupt
    )
    caller = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    with caller:
        assert caller.stdout is not None
        lease, child = caller.stdout.readline().decode().split()
        assert len(api.containers(filters={"label": [f"{LEASE}={lease}"]})) >= 4
        caller.send_signal(number)
    try:
        assert eventually_none(api, f"{LEASE}={lease}")
    finally:
        if fork:
            os.kill(int(child), signal.SIGKILL)
    with closing(DockerEngine()) as own:
        sweep(own)
    assert not list(Path.home().glob(f".cache/intercode/docker/run-{lease}"))


def test_what_is_begun_ahead_is_waited_for(
    api: Any, engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, going_on = providers.start_container, threading.Event()

    def slowly(*arguments: Any) -> providers.DockerContainer:
        if threading.current_thread() is not threading.main_thread():
            going_on.set()
            eventually_none(api, label)  # the others are gone
        return begin(*arguments)

    monkeypatch.setattr(providers, "start_container", slowly)
    # What takes too long is not waited for: not here, however slow the machine is.
    monkeypatch.setattr("intercode_sandbox.docker.provider._SETTLE_SECONDS", PATIENCE)
    monkeypatch.setattr("intercode_sandbox.docker.provider._REMOVAL_SECONDS", PATIENCE)
    provider = DockerProvider()
    label = f"{LEASE}={provider._prepare_runtime().lease}"
    sandboxes = [provider.start("host") for _ in range(2)]
    pool = provider._pool
    assert going_on.wait(60)
    provider.close()
    assert not any(pool._starting_counts.values()), sandboxes
    assert not api.containers(all=True, filters={"label": [label]})


def test_images_of_ours_are_removed_but_not_those_of_containers(
    provider: DockerProvider, api: Any
) -> None:
    with closing(provider.start("host")) as sandbox:
        used = api.inspect_container(sandbox.container.id)["Image"]
        prune()  # those of other tests
        spare = api.import_image_from_data(b"\0" * 1024, "spare", changes=["LABEL intercode=1"])
        api.import_image_from_data(b"\0" * 1024, "theirs")
        [gone] = prune(dry_run=True)
        assert gone[0] in spare and prune() == [gone] and prune() == []
        assert used in {one["Id"] for one in api.images()} and api.images("theirs")
        assert sandbox.exec(["true"]).ok
    api.remove_image("theirs")


def test_doctor(engine: PrivateEngine) -> None:
    found = {one.name: one for one in check_docker()}
    assert found["docker"].ok and found["docker sandbox"].ok and found["docker memory limit"].ok
    assert found["docker disk limit"].fix
