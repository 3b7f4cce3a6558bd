"""Images on Docker: ours are the same there, file by file; an engine's own are as it says."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from intercode_sandbox import SandboxBackend, get_provider
from intercode_sandbox.docker.provider import DockerProvider
from intercode_sandbox.errors import ImageError
from private_engine import PrivateEngine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for ordinary users: they start no engine"
)
PROGRAMS = ("bash", "cat", "chmod", "env", "id", "ls", "mkdir", "rm", "sleep", "stat", "touch")
LIST = (
    "cd /; find etc root srv var data -printf '%p|%y|%m|%U|%G|%T@|%l|' "
    r"-a \( -type d -printf '\n' -o -printf '%s %n\n' \) | sort; "
    "find data -type f -exec md5sum {} + | sort; getfattr -Rdm - data 2>/dev/null"
)


@pytest.fixture(scope="module")
def provider(engine: PrivateEngine) -> Iterator[DockerProvider]:
    with closing(DockerProvider()) as found:
        yield found


def add(tar: tarfile.TarFile, name: str, data: bytes | None = None, **facts: Any) -> None:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
    info.mode, info.mtime, info.size = 0o755, 1_600_000_000, len(data or b"")
    for key, value in facts.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data or b""))


def odd_image(folder: Path) -> str:
    """Over ``host``: what archives and scripts can make, and remove again."""
    first, second, script = folder / "1.tar", folder / "2.tar", folder / "3.sh"
    with tarfile.open(first, "w") as tar:
        add(tar, "data", mode=0o1777, gid=50)
        for name in ("f", "gone", "é \udcff", "d/kept", "d/kept2", "e/x"):
            add(tar, f"data/{name}", b"one\n", mode=0o640, gid=33)
        add(tar, "data/suid", b"x", mode=0o6755, uid=33)
        add(tar, "data/hard", type=tarfile.LNKTYPE, linkname="data/d/kept2")
        add(tar, "data/link", type=tarfile.SYMTYPE, linkname="no/where")
        add(tar, "data/fifo", type=tarfile.FIFOTYPE, mode=0o600)
        add(tar, "data/" + "n" * 150, b"long")
    with tarfile.open(second, "w") as tar:
        add(tar, "data/d/new", b"two\n" * 70000)
        add(tar, "data/f", b"replaced\n")
    script.write_text("cd /data; rm -r gone e; mkdir e; touch -d @1500000000 e; echo 3 >> d/kept\n")
    return f"host+{first}+{second}+{script}"


def test_an_image_of_ours_is_the_same_there(provider: DockerProvider, tmp_path: Path) -> None:
    name = odd_image(tmp_path)

    def listed(sandbox: SandboxBackend) -> list[str]:
        with closing(sandbox):
            done = sandbox.exec(["bash", "-c", LIST], output_limit=16 << 20)
            text = done.stdout.decode(errors="surrogateescape")
            # The engine makes these anew, with the time of day.
            return [
                re.sub(r"(^etc(?:/hostname|/hosts|/mtab)?\|.*?)\|\d+\.\d+\|", r"\1|", line)
                for line in text.splitlines()
                if not line.startswith("etc/resolv.conf")
            ]

    there = listed(provider.start(name))
    assert len(there) > 60
    assert there == listed(get_provider("native").start(name))
    assert provider.digest(name) == get_provider("native").digest(name)


@pytest.fixture(scope="module")
def own_image(engine: PrivateEngine) -> Iterator[str]:
    """An image of the engine's: a few programs with their libraries, and no Python."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        paths = [str(shutil.which(name)) for name in PROGRAMS]
        ldd = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
        for path in {*paths, *re.findall(r"(/\S+) \(0x", ldd)}:
            place = path if path.startswith("/lib") else f"/bin/{Path(path).name}"
            with open(os.path.realpath(path), "rb") as file:
                add(tar, place.lstrip("/"), file.read())
        users = b"root:x:0:0::/root:/bin/sh\nann:x:1234:55::/home/ann:/bin/bash\n"
        add(tar, "etc/passwd", users, mode=0o644)
        add(tar, "etc/group", b"root:x:0:\nstaff:x:55:\nplay:x:77:ann\n", mode=0o644)
        add(tar, "root/secret", b"secret", mode=0o600)
        add(tar, "home/ann", uid=1234, gid=55)
        add(tar, "store", uid=1234)
        add(tar, "store/first", b"1", uid=1234)
    changes = ["USER ann", "ENV COLOUR=green", "ENV LD_PRELOAD=/lib/none.so", "WORKDIR /home/ann",
               "VOLUME /store", 'ENTRYPOINT ["/bin/false"]']  # fmt: skip
    with closing(docker.APIClient(base_url=engine.url)) as api:
        api.import_image_from_data(data.getvalue(), "own", "1", changes=changes)
        yield "docker-daemon:own:1"
        api.remove_image("own:1", force=True)


def test_an_image_of_the_engines(provider: DockerProvider, own_image: str) -> None:
    for _ in range(2):  # the second time, the container has been used
        with closing(provider.start(own_image)) as sandbox:
            done = sandbox.exec(["bash", "-c", "id -u; id -G; echo $COLOUR $HOME $USER $PWD"])
            assert done.stdout == b"1234\n55 77\ngreen /home/ann ann /home/ann\n"
            assert not sandbox.exec(["cat", "/root/secret"]).ok
            with pytest.raises(PermissionError):
                sandbox.read_file("/root/secret")
            with pytest.raises(PermissionError):
                sandbox.write_file("/root/x", b"")
            sandbox.write_file("notes/mine", b"x")
            assert sandbox.exec(["stat", "-c", "%u:%g", "notes/mine"]).stdout == b"1234:55\n"
            assert sandbox.exec(["id", "-u"], user="root").stdout == b"0\n"
            script = "rm /store/first; echo 2 > /store/second"
            assert sandbox.exec(["bash", "-c", script]).ok
            changes = [(change.kind, change.path) for change in sandbox.changes()]
            home = [("added", "/home/ann/notes"), ("added", "/home/ann/notes/mine")]
            assert changes == [*home, ("deleted", "/store/first"), ("added", "/store/second")]
            with closing(provider.start(sandbox.snapshot())) as copy:
                assert copy.read_file("/store/second") == b"2\n"
                assert not copy.exec(["ls", "/store/first"]).ok
                assert copy.changes() == []


def test_its_digest_is_the_engines(provider: DockerProvider, own_image: str) -> None:
    with closing(docker.APIClient(base_url=os.environ["DOCKER_HOST"])) as api:
        assert f"sha256:{provider.digest(own_image)}" == api.inspect_image("own:1")["Id"]


def test_what_is_laid_over_it(provider: DockerProvider, own_image: str, tmp_path: Path) -> None:
    archive, script = tmp_path / "more.tar.gz", tmp_path / "more.sh"
    script.write_text("true\n")
    for content in (b"one", b"two"):  # the same name, another file
        with tarfile.open(archive, "w:gz") as tar:
            add(tar, "srv/task", uid=1234)
            add(tar, "srv/task/given", content, mode=0o600, uid=1234)
        name = f"{own_image}+{archive}"
        digests = [provider.digest(name), provider.digest(name), provider.digest(own_image)]
        assert len(set(digests)) == 2
        with closing(provider.start(name)) as sandbox:
            assert sandbox.read_file("/srv/task/given") == content
            assert sandbox.exec(["bash", "-c", "id -u; echo $COLOUR"]).stdout == b"1234\ngreen\n"
            assert sandbox.changes() == []
            sandbox.write_file("/srv/task/mine", b"")
            assert [change.path for change in sandbox.changes()] == ["/srv/task/mine"]
    with pytest.raises(ImageError, match="engine: run it"):
        provider.start(f"{own_image}+{script}")
    with pytest.raises(ImageError, match="cannot read"):
        provider.start(f"{own_image}+{tmp_path}/none.tar")


def test_it_is_for_containers_alone(own_image: str) -> None:
    with pytest.raises(ImageError, match=r"for --sandbox docker.*oci:image\.tar"):
        get_provider("native").start(own_image)
