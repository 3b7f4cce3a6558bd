"""Dockerfiles on the native sandbox: what they make, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import resolve
from intercode_sandbox.images.tree import MergedTree
from intercode_sandbox.native.provider import NativeProvider
from sandbox.dockerfiles import Folder, read

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
def folder(provider: NativeProvider, tmp_path: Path) -> Folder:
    return Folder(tmp_path, provider)


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
}


@pytest.mark.parametrize("case", MADE)
def test_makes(folder: Folder, case: str) -> None:
    text, path, content = MADE[case]
    assert read(folder.build(text), path).endswith(content)


def test_files_of_the_folder(folder: Folder) -> None:
    (folder.path / "d/e").mkdir(parents=True)
    (folder.path / "d/e/f").write_text("f")
    (folder.path / "d/e/f").chmod(0o750)
    (folder.path / "d/l").symlink_to("e/f")
    (folder.path / "no.txt").symlink_to("/etc/passwd")
    image = folder.build(
        "FROM host\nCOPY d /srv/\nCOPY a? /srv/x/\nCOPY l b/", a1="1", a2="2", l="l"
    )
    tree = MergedTree(image.layers)
    found = {"/".join(parts): entry for parts, entry in tree.walk(("srv",))}
    assert set(found) == {f"srv/{name}" for name in ("e", "e/f", "l", "x", "x/a1", "x/a2")}
    assert found["srv/e/f"].info.st_mode & 0o7777 == 0o750
    assert read(image, "/srv/l") == "f" and read(image, "/b/l") == "l"
    # A link that leads out of the folder leads nowhere.
    with pytest.raises(ImageError, match=r"/Dockerfile:2: there is no 'no.txt' in "):
        folder.build("FROM host\nCOPY no.txt /x")


@as_root
def test_programs_start_as_the_image_says(folder: Folder, provider: NativeProvider) -> None:
    image = folder.build(
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
def test_a_build_has_the_rights_of_an_installation(folder: Folder) -> None:
    image = folder.build(
        "FROM host\nRUN touch /x && chown 5:6 /x && chmod 4755 /x\nUSER 3\nRUN id > /tmp/x"
    )
    found = MergedTree(image.layers).look(("x",))
    assert found is not None
    assert (found.info.st_uid, found.info.st_gid, found.info.st_mode & 0o7777) == (5, 6, 0o4755)
    assert "uid=3(sys) gid=3(sys)" in read(image, "/tmp/x")


def test_network_is_had_where_it_is_asked_for(folder: Folder) -> None:
    text = "FROM host\nRUN{} readlink /proc/self/ns/net > /x"
    alone = read(folder.build(text.format("")), "/x").strip()
    shared = read(folder.build(text.format(" --network=default")), "/x").strip()
    asked = read(folder.build(text.format(""), "[--network=default]"), "/x").strip()
    refused = read(
        folder.build(text.format(" --network=none"), "[--network=default]"), "/x"
    ).strip()
    machines = os.readlink("/proc/self/ns/net")
    assert shared == asked == machines
    assert machines not in (alone, refused) and alone and refused
    both = folder.build(text.format(" --network=default"))
    assert "etc/resolv.conf" not in {"/".join(p) for p, _ in MergedTree(both.layers).walk(("etc",))}


# --- what is refused -------------------------------------------------------------------------


REFUSED = {
    "RUN x": "1: RUN comes before any FROM",
    "FROM host\nRUN x\nONBUILD RUN y": "3: ONBUILD is not supported",
    "FROM host\nFOO bar": "2: there is no instruction FOO",
    "FROM host\nRUN --mount=target=/x y": "2: RUN --mount=type=bind .*: COPY what",
    "FROM host\nRUN --mount=type=secret,id=a y": "2: RUN --mount=type=secret .*: no build has",
    "FROM host\nRUN --mount=type=cache y": "2: RUN --mount needs a target",
    "FROM host\nRUN wget -T 1 -t 1 http://a.example": "2: (?s:.*)RUN --network=default, or name",
    "FROM host\nRUN dpkg --install /none.deb": "2: dpkg: FROM host cannot install .*debian:",
    "FROM host\nRUN --network=host x": "2: RUN --network=host is not supported",
    "FROM host\nCOPY --parents a b": "2: COPY --parents is not supported",
    "FROM host\nCOPY --chmod=u+x a b": "2: --chmod=u.x is not an octal number",
    "FROM host\nCOPY a": "2: COPY needs what to copy",
    "FROM host\nADD https://example.org/x /x": "2: ADD fetches nothing",
    "FROM host\nADD git@example.org:x.git /x": "2: ADD fetches nothing",
    "FROM host\nSHELL bash": "2: write SHELL",
    "FROM host\nCOPY nothing /x": "2: there is no 'nothing'",
    "FROM host\nCOPY no*thing /x": "2: nothing matches",
    "FROM host\nCOPY ../x /x": "2: '../x' is outside",
    "FROM host\nCOPY Dockerfile Dockerfile /x": "2: .* need a folder as destination: write /x/",
    "FROM host\nCOPY --from=later /x /x\nFROM host AS later": "2: the stage 'later' comes later",
    "FROM host\nCOPY --from=0 /x /x": "2: there is no stage 0 before",
    "FROM host\nENV A=${B:?missing}": "2: B: missing",
    "FROM host\nENV A=${B#x}": "2: .* unsupported operator",
    "FROM host\nENV A='x": "2: ",
    "FROM host\n\nRUN <<E\nx": "3: unterminated heredoc",
    "FROM host\nRUN [1]\n": "2: ",
    "FROM host AS 9": "1: '9' is not a name for a stage",
    "FROM --platform=linux/m68k host": "1: the platform linux/m68k",
    "ARG X\nFROM $X": "2: nothing is left of",
    "FROM ./nothing": "1: the image .*nothing does not exist",
    "FROM .": "1: '.' is another Dockerfile",
    "FROM ./Dockerfile": "1: './Dockerfile' is another Dockerfile",
    "# syntax=example/own\nFROM host": "1: the syntax",
    "FROM host\nRUN echo no; exit 3": (
        r"2: RUN echo no; exit 3: the command .* failed \(exit code 3\):\nno\n"
    ),
    "FROM host\nUSER nobody-there\nRUN true": "(3: the image has no|2: USER)",
    "FROM host\nCOPY --chown=nobody-there Dockerfile /x": "2: the image has no user",
    "FROM host\nCOPY --chown=70000 Dockerfile /x": "2: sandboxes have users and groups up to",
    "FROM host AS a\nFROM host\nCOPY --from=a /usr/x /": "3: there is no '/usr/x' in host, whose",
    "FROM host\nRUN ln -s l /l\nCOPY Dockerfile /l": "3: '/l' is a link to itself",
    "FROM host\nCOPY --from=./none /x /x": "2: the image .*none does not exist",
    "FROM host AS a\nRUN false\nFROM host\nCOPY --from=a /x /x": "2: RUN false: the command over",
    "FROM host\nCOPY Dockerfile /usr/x": "2: 'usr/x' would be hidden",
    "FROM host\nENV A=12345678\n" + "ENV A=$A$A$A$A\n" * 20: "10: a word is longer than 131072",
    "ARG A=12345678\n" + "ARG A=$A$A$A$A\n" * 20 + "FROM host": "9: a word is longer than 131072",
    f"FROM host\nENV A={'${A:-' * 500}{'}' * 500}": "2: .* nests deeper than 100 levels",
    f"FROM host\nCOPY {'*a' * 60}b /x": "2: nothing matches",
    f"FROM host\nCOPY {'**/' * 9}b* /x": "2: nothing matches",
    f"FROM host\nWORKDIR /{'x' * 300}": "2: .*File name too long",
    f"FROM host\nRUN ln -s {'x' * 300} /l\nCOPY Dockerfile /l/": "3: .*File name too long",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_with_line_and_reason(folder: Folder, text: str) -> None:
    with pytest.raises(ImageError, match=f"^{folder.path.name}/Dockerfile:{REFUSED[text]}"):
        folder.build(text)


def test_what_changes_nothing_in_a_sandbox_is_ignored_with_a_word(folder: Folder) -> None:
    text = (
        "FROM host\nMAINTAINER me\nVOLUME /data\nHEALTHCHECK CMD true\nSTOPSIGNAL SIGINT\n"
        "RUN --mount=type=cache,target=/c/d --mount=type=tmpfs,target=/t test -d /c/d -a -d /t"
    )
    assert folder.build(text).layers
    ignored = [line.partition("/Dockerfile:")[2] for line in folder.told if " is ignored: " in line]
    assert [line.partition(" is ignored")[0] for line in ignored] == [
        *("2: MAINTAINER", "3: VOLUME", "4: HEALTHCHECK", "5: STOPSIGNAL", "6: RUN --mount")
    ]


def test_what_cannot_be_done_is_refused_before_anything_runs(folder: Folder) -> None:
    for last in ("ONBUILD RUN x", "COPY nothing /x", "ENV A='x", "COPY --from=x Dockerfile /"):
        with pytest.raises(ImageError):
            folder.build(f"FROM host\nRUN echo {last[:4]}\n{last}")
    assert folder.ran == []


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
def test_options_are_checked(folder: Folder, options: str, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        folder.build("FROM host\nARG A", options)


def test_a_link_to_the_folder_is_the_folder(folder: Folder) -> None:
    image = folder.build("FROM host\nCOPY a /a", a="1")
    link = folder.path / "link"
    link.symlink_to(".")
    assert resolve(str(link / "Dockerfile")).digest == image.digest


def test_what_is_laid_over_it(folder: Folder) -> None:
    text = "FROM host\nENV A=1\nWORKDIR /srv/x"
    folder.build(text)
    (folder.path / "more.sh").write_text("id -u > /x; pwd >> /x")
    spec = f"{folder.path}/Dockerfile+{folder.path}/more.sh"
    build_script = folder.provider.build_script
    image = resolve(spec, build_script=build_script)
    assert read(image, "/x") == "0\n/\n" and (image.env["A"], image.cwd) == ("1", "/srv/x")
    (folder.path / "use").mkdir()
    (folder.path / "more.sh").rename(folder.path / "use/more.sh")
    (folder.path / "use/Dockerfile").write_text("FROM host+./more.sh\nCOPY Dockerfile /\n")
    assert read(resolve(f"{folder.path}/use", build_script=build_script), "/x") == "0\n/\n"
