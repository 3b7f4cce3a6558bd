"""The same Dockerfile, built by Docker and by us: the same files, and programs that start alike."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intercode_sandbox.images import Image, resolve
from intercode_sandbox.images.tree import MergedTree
from intercode_sandbox.native.provider import NativeProvider
from private_engine import PrivateEngine
from sandbox import rootfs

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for an ordinary user: only root can start an engine"
)

DIFFERENT = {"dev", "proc", "sys"}
"""Ours has the places where a sandbox mounts its own."""

DOCKERFILE = r"""ARG VERSION=1
FROM scratch AS base
ADD rootfs.tar /
ENV COLOUR=blue PLACE="/opt/a b" LATE=$COLOUR
ARG VERSION
ARG EXTRA=${VERSION:-9}${NONE:+x}
WORKDIR /srv/app
RUN id > id; env | sort > env; pwd > where
RUN ["/bin/sh", "-c", "echo $0 exec > exec", "x"]
COPY a.txt b.txt sub/
COPY *.md docs/
COPY tree /copied
COPY tree /existing/
COPY tree/inner copied.txt ./two/
COPY link.txt through
COPY ["with space.txt", "$PLACE/"]
COPY --chown=app --chmod=640 a.txt /owned/by/app.txt
COPY --chown=7 tree /owned/tree
COPY --chown=app:staff a.txt /owned/staff.txt
COPY --chown=12:34 tree /owned/tree
ADD packed.tar.gz /unpacked/here/
ADD packed.tar.gz plain.gz /unpacked/both/
ADD --chown=app packed.tar.gz /unpacked/app
RUN rm -r /existing/deep && ln -s /srv/app /alias && touch -d 2020-01-01 old
COPY a.txt /alias/by-link.txt
COPY a.txt /alias/
RUN mkdir -p -m 700 /merge/deep/er && chown 1:1 /merge/deep && ln -s /merge /mlink
RUN mkdir /w && ln -s /w /wl && ln -s b.txt /to-file
COPY tree /merge
COPY tree /mlink/sub
COPY tree/inner /mlink/
COPY tree/./deep/../inner /normal
COPY tree/. /dot/
COPY [a-c].txt /glob/
COPY tree/i* tree/d* /star/
COPY . /all
WORKDIR /wl
RUN pwd > p; touch here
WORKDIR ../up
COPY a.txt .
COPY b.txt ./renamed
COPY b.txt /to-file
ENV A=1 \
  B="x\ny" C='$A' D=a\ b
ENV OLD  the old   way
LABEL version="$A $B"
RUN env | sort > env; echo "a\tb" 'c  d' \
  # a comment
  e > echoed

FROM base AS other
RUN mkdir -p /out/x && echo $COLOUR > /out/x/colour && ln -s x /out/y && chown -R 3:4 /out

FROM base
COPY --from=other /out /got
COPY --from=other /out/y/colour /one
COPY --from=1 --chown=app /out /theirs
ENV HOME_LIKE=$PLACE/\$x
USER app
WORKDIR made/by/app
RUN id > /tmp/id; env | sort > /tmp/env; touch own
USER 1000
RUN id -u > /tmp/again
SHELL ["/bin/sh", "-x", "-c"]
RUN echo traced > /tmp/traced 2>/tmp/trace
LABEL a=1 "b c"='$COLOUR' d="$COLOUR"
EXPOSE 80 90/udp
ENTRYPOINT ["/bin/sh"]
CMD echo hi
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is built from."""
    top = tmp_path_factory.mktemp("context")
    rootfs.write(top / "rootfs.tar")
    (top / "Dockerfile").write_text(DOCKERFILE)
    files = "a.txt b.txt copied.txt one.md two.md secret.md tree/inner tree/deep/er/x tree/no.log"
    for number, name in enumerate([*files.split(), "with space.txt", "kept/out", "kept/in"]):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"{name}\n")
        (top / name).chmod(0o600 + number)
    (top / "tree/deep").chmod(0o711)
    (top / "tree").chmod(0o750)
    (top / "tree/link").symlink_to("inner")
    (top / "tree/gone").symlink_to("/nowhere")
    (top / "link.txt").symlink_to("a.txt")
    (top / ".dockerignore").write_text("# no\nsecret.md\n**/*.log\nkept\n!kept/in\n")
    with tarfile.open(top / "packed.tar.gz", "w:gz") as archive:
        for name, uid in (("p/q", 9), ("./r", 0)):
            member = tarfile.TarInfo(name)
            member.uid, member.size, member.mode = uid, 3, 0o604
            archive.addfile(member, io.BytesIO(b"abc"))
    (top / "plain.gz").write_bytes(b"\x1f\x8b no archive")
    return top


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeProvider]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERCODE_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = NativeProvider()
        yield found
        found.close()


@pytest.fixture(scope="module")
def saved(engine: PrivateEngine, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Docker makes of it, as ``docker save`` writes it."""
    import docker
    from docker.utils.build import exclude_paths

    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        rules = (folder / ".dockerignore").read_text().splitlines()
        for name in sorted(exclude_paths(str(folder), rules)):
            archive.add(folder / name, name, recursive=False)
    client = docker.APIClient(base_url=engine.url, version="auto", timeout=120)
    path = tmp_path_factory.mktemp("saved") / "image.tar"
    try:
        # Version 2 is BuildKit, which the library does not know of.
        answer = client._post(
            client._url("/build"),
            params={"version": "2", "t": "same:1", "networkmode": "none"},
            data=context.getvalue(),
            headers={"Content-Type": "application/x-tar"},
            stream=True,
        )
        said = [json.loads(line) for line in answer.iter_lines()]
        assert [line["error"] for line in said if "error" in line] == []
        with path.open("wb") as file:
            for block in client.get_image("same:1"):
                file.write(block)
        client.remove_image("same:1", force=True)
    finally:
        client.close()
    return path


def entries(image: Image) -> dict[str, tuple[object, ...]]:
    """Path → kind, mode, owner and content of all that there is."""
    tree = MergedTree(image.layers)
    found: dict[str, tuple[object, ...]] = {}
    for parts, entry in tree.walk(()):
        info = entry.info
        content = ""
        if stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(entry.path.read_bytes()).hexdigest()
            if info.st_size < 500:
                content = repr(entry.path.read_bytes())
        elif stat.S_ISLNK(info.st_mode):
            content = str(entry.path.readlink())
        found["/".join(parts)] = (f"{info.st_mode:o}", info.st_uid, info.st_gid, content)
    return {path: facts for path, facts in found.items() if path not in DIFFERENT}


def test_same_files(folder: Path, saved: Path, provider: NativeProvider) -> None:
    ours = entries(provider.image(f"{folder}/Dockerfile"))
    theirs = entries(provider.image(f"oci:{saved}"))
    different = {p: (ours.get(p), theirs.get(p)) for p in ours.keys() | theirs.keys()}
    assert [f"{p}: {a}, {b}" for p, (a, b) in sorted(different.items()) if a != b] == []
    assert len(ours) > 80


def test_programs_start_alike(folder: Path, saved: Path, provider: NativeProvider) -> None:
    ours, theirs = provider.image(f"{folder}/Dockerfile"), provider.image(f"oci:{saved}")
    assert (ours.env, ours.cwd, ours.user) == (theirs.env, theirs.cwd, theirs.user)
    assert ours.user == "1000:1001,50"
    names = ("Env", "Cmd", "Entrypoint", "WorkingDir", "User", "Labels", "ExposedPorts", "Shell")

    def settings(image: Image) -> dict[str, Any]:
        return {name: image.config.get(name) for name in names}

    assert settings(ours) == settings(theirs)


def test_sandboxes_of_both_back_ends_are_alike(
    engine: PrivateEngine, folder: Path, provider: NativeProvider
) -> None:
    """Who has built the image is all the same."""
    from intercode_sandbox.docker.provider import DockerProvider

    told: list[str] = []
    docker = DockerProvider(progress=told.append, url=engine.url)
    text = "id; pwd; echo $HOME $PLACE $COLOUR; touch new && ls -ln new | cut -c1-20; umask"
    outputs = []
    try:
        for one in (docker, provider):
            sandbox = one.start(f"{folder}/Dockerfile")
            done = sandbox.exec(["sh", "-c", text], merge_stderr=True)
            sandbox.write_file("more/x", b"")
            changes = {change.path: (change.uid, change.gid) for change in sandbox.changes()}
            outputs.append((done.stdout.decode(), changes))
            sandbox.close()
    finally:
        docker.close()
    assert outputs[0] == outputs[1]
    assert any("giving the image" in line for line in told)


SMALL = """\
FROM scratch
ADD rootfs.tar /
RUN mkdir /d && chown 5:6 /d && touch /d/x && chmod 4711 /d/x && ln -s x /d/y && rm /etc/group
USER app
RUN id > /tmp/id; env | sort > /tmp/env
"""


def test_both_back_ends_build_the_same(
    engine: PrivateEngine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intercode_sandbox.docker.provider import DockerProvider

    (folder / "small.Dockerfile").write_text(SMALL)
    found = []
    for one in (NativeProvider(), DockerProvider(url=engine.url)):
        monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / type(one).__name__))
        image = resolve(f"{folder}/small.Dockerfile", build_script=one.build_script)
        one.close()
        found.append((entries(image), image.digest))
    assert found[0] == found[1]
    assert found[0][0]["d/x"][:3] == ("104711", 0, 0) and "etc/group" not in found[0][0]
