"""Dockerfiles: what is not done again, builds at once, builds that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images import list_images, resolve
from intercode_sandbox.native.provider import NativeProvider
from sandbox.dockerfiles import Folder, read
from waiting import eventually

pytestmark = pytest.mark.ordinary


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


def test_only_what_changed_is_run(folder: Folder) -> None:
    text = "FROM host\nARG V=1\nCOPY a /a\nRUN cat /a > /x\nRUN echo $V >> /x\nRUN echo {} >> /x"
    first = folder.build(text.format("one"), a="1")
    assert len(folder.ran) == 3
    assert folder.build(text.format("one"), a="1").digest == first.digest
    assert len(folder.ran) == 3
    assert folder.build(text.format("two")).digest != first.digest
    assert folder.ran[3:] == ["echo two >> /x"]
    folder.build(text.format("two"), a="2")
    assert len(folder.ran) == 7
    assert read(folder.build(text.format("two"), "[V=5]"), "/x") == "25\ntwo\n"[:1] + "5\ntwo\n"
    assert folder.ran[7:] == ["cat /a > /x", "echo $V >> /x", "echo two >> /x"]
    folder.build("# another comment\n" + text.format("one"), a="1")
    assert len(folder.ran) == 10


def test_errors_name_nothing_of_another_folder(provider: NativeProvider, tmp_path: Path) -> None:
    """A cached layer, and a cached image, were built from a file that the user may not know."""
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    theirs, ours = (Folder(tmp_path / name, provider) for name in ("theirs", "ours"))
    text = "FROM host AS tools\nRUN echo shared > /x\nFROM tools\n{}"
    assert theirs.build(text.format("ENV A=1")).name == "theirs/Dockerfile"
    assert ours.build(text.format("ENV A=1")).name == "ours/Dockerfile"
    assert len(theirs.ran) == 1 and not ours.ran
    with pytest.raises(ImageError) as caught:
        ours.build(text.format("RUN echo why; exit 3"))
    failure = "RUN echo why; exit 3: the command over host failed (exit code 3):\nwhy\n"
    assert str(caught.value) == f"ours/Dockerfile:4: {failure}"
    # An ordinary user's sandboxes have no user but root, whatever the image says.
    refusal = "the image has no user 'x'" if os.geteuid() == 0 else "USER x: in an ordinary user's"
    with pytest.raises(ImageError, match=f"^ours/Dockerfile:4: {refusal}"):
        ours.build(text.format("USER x"))


def test_how_programs_start_is_part_of_an_image(folder: Folder) -> None:
    text = "FROM host\nRUN echo start > /x\n"
    digests = {
        folder.build(text + rest).digest for rest in ("", "ENV A=1", "WORKDIR /tmp", "CMD x")
    }
    assert len(digests) == 4 and len(folder.ran) == 1


def test_a_process_sees_that_a_file_changed(folder: Folder) -> None:
    (folder.path / "d").mkdir()
    text = "FROM host\nCOPY d /d\nRUN ls /d > /x"
    assert read(folder.build(text), "/x") == ""
    (folder.path / "d/new").write_text("")
    assert read(folder.build(text), "/x") == "new\n"


def test_stages_and_folders(folder: Folder) -> None:
    image = folder.build("FROM host AS a\nRUN echo folder\nFROM a\nRUN false", "[--target=a]")
    assert folder.ran == ["echo folder"]
    (folder.path / "Dockerfile").write_text("FROM host AS a\nRUN echo folder\n")
    same = resolve(str(folder.path))
    assert same.digest == image.digest
    assert resolve(f"dockerfile:{folder.path}").digest == image.digest


_BUILDER = """
    import sys
    from intercode_sandbox.native.provider import NativeProvider
    provider = NativeProvider()
    print(provider.image(sys.argv[1]).digest)
    provider.close()
"""


def start(path: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(_BUILDER)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )


def test_builds_at_once_and_killed(folder: Folder, provider: NativeProvider) -> None:
    text = "FROM host\nRUN echo killed; while :; do sleep 9; done"
    (folder.path / "Dockerfile").write_text(text)
    builder = start(folder.path / "Dockerfile")
    images = Path(os.environ["INTERCODE_CACHE"], "images")
    assert eventually(lambda: list(images.glob("*.tmp-*")))
    builder.kill()
    builder.communicate()
    (folder.path / "Dockerfile").write_text("FROM host\nRUN sleep 0.3; date +%N > /x")
    both = [start(folder.path / "Dockerfile") for _ in range(2)]
    digests = {one.communicate()[0] for one in both}
    assert len(digests) == 1
    assert not list(images.glob("*.tmp-*"))
    names = [info.name for info in list_images()]
    assert not [name for name in names if "echo killed" in name]
    assert len([name for name in names if "date +%N" in name]) == 1
