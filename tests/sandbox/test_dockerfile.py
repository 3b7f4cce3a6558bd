"""Dockerfiles on the native sandbox: what they make, what is refused, what is not done again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from intercode.errors import ImageError
from intercode.sandbox.images import Command, Image, list_images, resolve
from intercode.sandbox.images.tree import Tree
from intercode.sandbox.native.provider import NativeProvider

pytestmark = pytest.mark.ordinary
ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="not for an ordinary user: there is no other user")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeProvider]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTERCODE_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = NativeProvider()
        yield found
        found.close()


@pytest.fixture
def ran() -> list[str]:
    """The commands that builds ran."""
    return []


Build = Callable[..., Image]


@pytest.fixture
def build(provider: NativeProvider, tmp_path: Path, ran: list[str]) -> Build:
    """Builds a Dockerfile of this text in a folder of its own, and notes the commands that run."""

    def run(base: Image, script: bytes | Command, layer: Path) -> None:
        ran.append(script.argv[-1] if isinstance(script, Command) else "")
        provider.build_script(base, script, layer)

    def one(text: str, options: str = "", **files: str) -> Image:
        (tmp_path / "Dockerfile").write_text(textwrap.dedent(text))
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        return resolve(f"{tmp_path}/Dockerfile{options}", build_script=run)

    return one


def read(image: Image, path: str) -> str:
    tree = Tree(image.layers)
    parts = tree.resolve(path)
    found = tree.look(parts) if parts is not None else None
    assert found is not None, path
    return found.path.read_text()


# --- what it makes ---------------------------------------------------------------------------


MADE = {
    "a command in the shell": ("FROM host\nRUN echo $((1+2)) > /x", "/x", "3\n"),
    "a command without one": ('FROM host\nRUN ["sh", "-c", "echo $0 > /x", "a b"]', "/x", "a b\n"),
    "another shell": ('FROM host\nSHELL ["bash", "-c"]\nRUN echo ${BASH##*/} > /x', "/x", "bash\n"),
    "a script": ("FROM host\nRUN <<E\nset -e\necho 1 > /x\necho 2 >> /x\nE\n", "/x", "1\n2\n"),
    "a script's interpreter": (
        "FROM host\nRUN <<E\n#!/usr/bin/env bash\necho ${BASH##*/} > /x\nE\n",
        "/x",
        "bash\n",
    ),
    "a script without tabs": ("FROM host\nRUN <<-E\n\t\techo 1 > /x\n\tE\n", "/x", "1\n"),
    "a command's document": ("FROM host\nENV A=1\nRUN cat <<E > /x\n $A\nE\n", "/x", " 1\n"),
    "a document": ("FROM host\nENV A=1\nCOPY <<E /d/\n$A 'b'\nE\n", "/d/E", "1 'b'\n"),
    "a document as it is": ("FROM host\nCOPY <<'E' /x\n$A\nE\n", "/x", "$A\n"),
    "lines that go on": ("FROM host\nRUN echo a \\\n # no\n  b > /x", "/x", "a b\n"),
    "another escape": (
        "# escape=`\nFROM host\nENV A=a\\b`$\nRUN printf %s `\n $A > /x",
        "/x",
        "a\\b$",
    ),
    "variables": ("FROM host\nENV A=1 B=$A\nENV C=${A:+x}${B:-y}\nRUN echo $C > /x", "/x", "xy\n"),
    "an argument before": ("ARG X=host\nFROM $X\nARG X\nRUN echo $X > /x", "/x", "host\n"),
    "an argument's default": ("FROM host\nARG X=a\nARG Y=${X}b\nRUN echo $Y > /x", "/x", "ab\n"),
    "a variable over an argument": (
        "FROM host\nARG X=a\nENV X=b\nRUN echo $X > /x",
        "/x",
        "b\n",
    ),
    "a folder": ("FROM host\nWORKDIR /a\nWORKDIR b\nRUN pwd > x", "/a/b/x", "/a/b\n"),
    "another stage": (
        "FROM host AS A\nRUN echo 1 > /x\nFROM host\nCOPY --from=a /x /y",
        "/y",
        "1\n",
    ),
    "a stage from a stage": ("FROM host AS a\nENV X=1\nFROM a\nRUN echo $X > /x", "/x", "1\n"),
    "a stage that is not needed": (
        "FROM host AS a\nRUN false\nFROM host\nRUN echo 1 > /x",
        "/x",
        "1\n",
    ),
    "bundled files": ("FROM host+builtin:fs_shop.sh\nRUN ls / | wc -l > /x", "/x", ""),
}


@pytest.mark.parametrize("case", MADE)
def test_makes(build: Build, case: str) -> None:
    text, path, content = MADE[case]
    assert read(build(text), path).endswith(content)


def test_files_of_the_folder(build: Build, tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/f").write_text("f")
    (tmp_path / "d/e/f").chmod(0o750)
    (tmp_path / "d/l").symlink_to("e/f")
    (tmp_path / "no.txt").symlink_to("/etc/passwd")
    image = build("FROM host\nCOPY d /srv/\nCOPY a? /srv/x/\nCOPY l b/", a1="1", a2="2", l="l")
    tree = Tree(image.layers)
    found = {"/".join(parts): entry for parts, entry in tree.walk(("srv",))}
    assert set(found) == {f"srv/{name}" for name in ("e", "e/f", "l", "x", "x/a1", "x/a2")}
    assert found["srv/e/f"].info.st_mode & 0o7777 == 0o750
    assert read(image, "/srv/l") == "f" and read(image, "/b/l") == "l"
    # A link that leads out of the folder leads nowhere.
    with pytest.raises(ImageError, match=r"/Dockerfile:2: there is no 'no.txt' in "):
        build("FROM host\nCOPY no.txt /x")


@as_root
def test_programs_start_as_the_image_says(build: Build, provider: NativeProvider) -> None:
    image = build(
        """
        FROM host
        RUN echo app:x:7:8::/home/app:/bin/sh >> /etc/passwd && echo more:x:9:app >> /etc/group
        ENV COLOUR="light blue"
        USER app
        WORKDIR /home/app
        CMD ["serve"]
        """
    )
    assert (image.user, image.cwd, image.config["Cmd"]) == ("7:8,9", "/home/app", ["serve"])
    sandbox = provider.start(image)
    try:
        done = sandbox.exec(["sh", "-c", "id -u; id -G; pwd; echo $HOME $COLOUR; touch own"])
        assert done.stdout.decode() == "7\n8 9\n/home/app\n/home/app light blue\n"
        sandbox.write_file("new/file", b"x")
        entries = {change.path: (change.uid, change.gid) for change in sandbox.changes()}
        assert set(entries.values()) == {(7, 8)} and len(entries) == 3
        with pytest.raises(PermissionError):
            sandbox.write_file("/etc/new", b"x")
        with pytest.raises(PermissionError):
            sandbox.read_file("/root/x")
        assert sandbox.exec(["id", "-u"], user="root").stdout == b"0\n"
        assert sandbox.exec(["touch", "/etc/new"], user="root").ok
    finally:
        sandbox.close()


@as_root
def test_a_build_has_the_rights_of_an_installation(build: Build) -> None:
    image = build(
        "FROM host\nRUN touch /x && chown 5:6 /x && chmod 4755 /x\nUSER 3\nRUN id > /tmp/x"
    )
    found = Tree(image.layers).look(("x",))
    assert found is not None
    assert (found.info.st_uid, found.info.st_gid, found.info.st_mode & 0o7777) == (5, 6, 0o4755)
    assert "uid=3(sys) gid=3(sys)" in read(image, "/tmp/x")


def test_network_is_had_where_it_is_asked_for(build: Build) -> None:
    names = "FROM host\nRUN{} ls /sys/class/net /proc/sys/net/ipv4/conf | sort -u | wc -l > /x"
    alone = int(read(build(names.format("")), "/x"))
    shared = int(read(build(names.format(" --network=default")), "/x"))
    asked = int(read(build(names.format(""), "[--network=default]"), "/x"))
    refused = read(build(names.format(" --network=none"), "[--network=default]"), "/x")
    assert shared == asked
    assert int(refused) == alone
    machine = len(set(os.listdir("/proc/sys/net/ipv4/conf")))
    assert machine == 3 or shared > alone


# --- what is refused -------------------------------------------------------------------------


REFUSED = {
    "RUN x": "1: RUN comes before any FROM",
    "FROM host\nVOLUME /x": "2: VOLUME is not supported",
    "FROM host\nHEALTHCHECK NONE": "2: HEALTHCHECK is not supported",
    "FROM host\nRUN x\nONBUILD RUN y": "3: ONBUILD is not supported",
    "FROM host\nFOO bar": "2: there is no instruction FOO",
    "FROM host\nRUN --mount=type=cache,target=/x y": "2: RUN --mount is not supported",
    "FROM host\nRUN --network=host x": "2: RUN --network=host is not supported",
    "FROM host\nCOPY --parents a b": "2: COPY --parents is not supported",
    "FROM host\nCOPY --chmod=u+x a b": "2: --chmod=u.x is no octal number",
    "FROM host\nCOPY a": "2: COPY needs what to copy",
    "FROM host\nADD https://example.org/x /x": "2: ADD fetches nothing",
    "FROM host\nADD git@example.org:x.git /x": "2: ADD fetches nothing",
    "FROM host\nSHELL bash": "2: write SHELL",
    "FROM host\nCOPY nothing /x": "2: there is no 'nothing'",
    "FROM host\nCOPY no*thing /x": "2: nothing matches",
    "FROM host\nCOPY ../x /x": "2: '../x' is outside",
    "FROM host\nCOPY Dockerfile Dockerfile /x": "2: several files are copied: write /x/",
    "FROM host\nCOPY --from=later /x /x\nFROM host AS later": "2: the stage 'later' comes later",
    "FROM host\nCOPY --from=0 /x /x": "2: there is no stage 0 before",
    "FROM host\nENV A=${B:?missing}": "2: B: missing",
    "FROM host\nENV A=${B#x}": "2: .* not supported",
    "FROM host\nENV A='x": "2: ",
    "FROM host\n\nRUN <<E\nx": "3: unterminated heredoc",
    "FROM host\nRUN [1]\n": "2: ",
    "FROM host AS 9": "1: '9' is no name for a stage",
    "FROM --platform=linux/m68k host": "1: the platform linux/m68k",
    "ARG X\nFROM $X": "2: nothing is left of",
    "FROM ./nothing": "1: the image .*nothing does not exist",
    "FROM .": "1: '.' is another Dockerfile",
    "FROM ./Dockerfile": "1: './Dockerfile' is another Dockerfile",
    "# syntax=example/own\nFROM host": "1: the syntax",
    "FROM host\nRUN echo no; exit 3": r"2: the command .* failed \(exit code 3\):\nno\n",
    "FROM host\nUSER nobody-there\nRUN true": "(3: the image has no|2: USER)",
    "FROM host\nCOPY --chown=nobody-there Dockerfile /x": "2: the image has no user",
    "FROM host\nCOPY Dockerfile /usr/x": "2: 'usr/x' would be hidden",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_with_line_and_reason(build: Build, tmp_path: Path, text: str) -> None:
    with pytest.raises(ImageError, match=f"^{tmp_path.name}/Dockerfile:{REFUSED[text]}"):
        build(text)


def test_what_cannot_be_done_is_refused_before_anything_runs(build: Build, ran: list[str]) -> None:
    for last in ("VOLUME /x", "COPY nothing /x", "ENV A='x", "COPY --from=x Dockerfile /"):
        with pytest.raises(ImageError):
            build(f"FROM host\nRUN echo {last[:4]}\n{last}")
    assert ran == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("[A]", "cannot understand 'A'"),
        ("[--file=x]", "cannot understand '--file=x'"),
        ("[--network=host]", "neither none nor default"),
        ("[--target=x]", "no stage 'x'"),
        ("[B=1]", "no build argument 'B'; it has: A"),
    ],
)
def test_options_are_checked(build: Build, options: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        build("FROM host\nARG A", options)


# --- what is not done again ------------------------------------------------------------------


def test_only_what_changed_is_run(build: Build, ran: list[str]) -> None:
    text = "FROM host\nARG V=1\nCOPY a /a\nRUN cat /a > /x\nRUN echo $V >> /x\nRUN echo {} >> /x"
    first = build(text.format("one"), a="1")
    assert len(ran) == 3
    assert build(text.format("one"), a="1").digest == first.digest
    assert len(ran) == 3
    assert build(text.format("two")).digest != first.digest
    assert ran[3:] == ["echo two >> /x"]
    build(text.format("two"), a="2")
    assert len(ran) == 7
    assert read(build(text.format("two"), "[V=5]"), "/x") == "25\ntwo\n"[:1] + "5\ntwo\n"
    assert ran[7:] == ["cat /a > /x", "echo $V >> /x", "echo two >> /x"]
    build("# another comment\n" + text.format("one"), a="1")
    assert len(ran) == 10


def test_how_programs_start_is_part_of_an_image(build: Build, ran: list[str]) -> None:
    text = "FROM host\nRUN echo start > /x\n"
    digests = {build(text + rest).digest for rest in ("", "ENV A=1", "WORKDIR /tmp", "CMD x")}
    assert len(digests) == 4 and len(ran) == 1


def test_a_process_sees_that_a_file_changed(build: Build, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    text = "FROM host\nCOPY d /d\nRUN ls /d > /x"
    assert read(build(text), "/x") == ""
    (tmp_path / "d/new").write_text("")
    assert read(build(text), "/x") == "new\n"


def test_stages_and_folders(build: Build, tmp_path: Path, ran: list[str]) -> None:
    image = build("FROM host AS a\nRUN echo folder\nFROM a\nRUN false", "[--target=a]")
    assert ran == ["echo folder"]
    (tmp_path / "Dockerfile").write_text("FROM host AS a\nRUN echo folder\n")
    same = resolve(str(tmp_path))
    assert same.digest == image.digest
    assert resolve(f"dockerfile:{tmp_path}").digest == image.digest


_BUILDER = """
    import sys
    from intercode.sandbox.native.provider import NativeProvider
    provider = NativeProvider()
    print(provider.image(sys.argv[1]).digest)
    provider.close()
"""


def start(path: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(_BUILDER)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )


def test_builds_at_once_and_killed(build: Build, tmp_path: Path, provider: NativeProvider) -> None:
    mark = tmp_path / "mark"
    text = "FROM host\nRUN echo killed; while :; do sleep 9; done"
    (tmp_path / "Dockerfile").write_text(text)
    builder = start(tmp_path / "Dockerfile")
    images = Path(os.environ["INTERCODE_CACHE"], "images")
    while not list(images.glob("*.tmp-*")):
        assert builder.poll() is None
    builder.kill()
    builder.communicate()
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN sleep 0.3; date +%N > /x")
    both = [start(tmp_path / "Dockerfile") for _ in range(2)]
    digests = {one.communicate()[0] for one in both}
    assert len(digests) == 1
    assert not mark.exists() and not list(images.glob("*.tmp-*"))
    names = [info.name for info in list_images()]
    assert not [name for name in names if "echo killed" in name]
    assert len([name for name in names if "date +%N" in name]) == 1
