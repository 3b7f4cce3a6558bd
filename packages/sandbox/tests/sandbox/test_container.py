"""InterCode in a container, started as docs/sandbox/containers.md says."""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from intercode_sandbox.privileges import STAND_IN_ID
from private_engine import PrivateEngine
from sources import ROOT, SOURCES, path_of

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for ordinary users: they start no engine"
)

# As its caller in the container sees it: whose its programs are, and what they can do.
ASK = """
import os, pathlib, subprocess, sys
from intercode_sandbox import get_provider
provider = get_provider()
sandbox, peer = provider.start("host"), provider.start("host")
sandbox.popen(["sleep", "4711"], channels={}, cwd="/")
while not (found := subprocess.run(["pgrep", "-x", "sleep"], capture_output=True).stdout.split()):
    pass
status = pathlib.Path("/proc", found[0].decode(), "status").read_text()
uids = {u for line in status.splitlines() if line.startswith("Uid:") for u in line.split()[1:]}
def tell(script): return sandbox.exec(["bash", "-c", script])
print("uids", *uids)
print("sysrq", tell("echo b > /proc/sysrq-trigger").ok)
print("irq", tell("for f in /proc/irq/*/smp_affinity; do echo 1 > $f && exit; done; exit 1").ok)
print("pci", tell("for f in /proc/bus/pci/*/*; do echo > $f && exit; done; exit 1").ok)
forks = "for (1 .. 300) { my $p = fork; last unless defined $p; $n++; $p or sleep 60 } print $n"
print("forks", int(sandbox.exec(["perl", "-e", forks]).stdout) <= 256)
sandbox.kill()
for path in ("/usr/bin/env", "/usr/bin"):
    holder = sandbox.popen(["flock", path, "bash", "-c", "echo y; exec sleep 60"], channels={})
    assert os.read(holder.fds[1], 1) == b"y"
print("locks", [peer.exec(["flock", "-n", p, "true"]).ok for p in ("/usr/bin/env", "/usr/bin")])
print("files", tell("echo x >> /etc/passwd && mkdir /etc/new").ok, len(sandbox.changes()))
print("owners", tell("stat -c %U /etc/passwd /usr/bin/env").stdout.split())
"""


@pytest.fixture
def api(engine: PrivateEngine) -> Iterator[Any]:
    with closing(docker.APIClient(base_url=engine.url)) as client:
        yield client


@pytest.fixture
def run(api: Any) -> Iterator[Any]:
    """Runs Python in a container with this machine's programs: its exit code and output."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("usr", "etc", "tmp", "root", "var", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        for path in Path("/").iterdir():
            if path.is_symlink() and str(path.readlink()).startswith("usr/"):
                link = tarfile.TarInfo(path.name)
                link.type, link.linkname = tarfile.SYMTYPE, str(path.readlink())
                tar.addfile(link)
    api.import_image_from_data(data.getvalue(), "intercode-tests-outer")
    needed = {"/usr", "/etc", sys.base_prefix, sys.prefix, str(ROOT)}
    made = []

    def run(user: str, home: str, *arguments: str, seconds: int = 120) -> tuple[int, str]:
        host = api.create_host_config(
            binds=[f"{path}:{path}:ro" for path in sorted(needed)],
            network_mode="none",
            security_opt=["seccomp=unconfined"],
        )
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}  # systempaths=unconfined
        container = api.create_container(
            "intercode-tests-outer",
            [sys.executable, *arguments],
            host_config=host,
            working_dir="/tmp",
            environment={
                "HOME": home,
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            },
            user=user,
        )["Id"]
        made.append(container)
        api.start(container)
        code = api.wait(container, timeout=seconds)["StatusCode"]
        return code, api.logs(container).decode()

    yield run
    for container in made:
        api.remove_container(container, force=True, v=True)
    api.remove_image("intercode-tests-outer", force=True)


@pytest.mark.attack(1)
@pytest.mark.case(79)
@pytest.mark.defends("escape", "host DoS", "peer DoS")
@pytest.mark.parametrize(("user", "home"), [("0", "/root"), ("54321:54321", "/tmp")])
def test_as_documented(run: Any, user: str, home: str) -> None:
    code, said = run(user, home, "-c", ASK)
    facts = dict(line.split(" ", 1) for line in said.splitlines())
    assert code == 0, said
    assert facts["uids"] == (str(STAND_IN_ID) if user == "0" else user.partition(":")[0])
    assert (facts["sysrq"], facts["irq"], facts["pci"]) == ("False",) * 3
    assert facts["forks"] == "True"
    assert facts["locks"] == "[True, True]"
    assert facts["files"] == "True 2"
    assert facts["owners"] == "[b'root', b'nobody']"


@pytest.mark.timeout(3600)  # as long as the others of an ordinary user
def test_what_holds_for_an_ordinary_user(run: Any) -> None:
    chosen = ["-m", "attack and ordinary", "-k", "not docker", str(path_of("sandbox"))]
    quiet = ["-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider"]
    code, said = run("0", "/root", "-m", "pytest", *quiet, *chosen, seconds=3600)
    assert code == 0, said[-15000:]
    assert int(re.findall(r"(\d+) passed", said)[-1]) > 30, said
