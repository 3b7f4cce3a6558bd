"""Programs in every folder of an image's PATH are as before when the tests of a folder run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode_integrations.harbor.stage import home_variables
from intercode_integrations.harbor.system_files import TamperedSystemError, restore_system_files
from intercode_sandbox import SandboxBackend, get_provider
from sandbox import rootfs

PROGRAMS = f"{rootfs.PROGRAMS} bash rmdir test xargs tar"


@pytest.fixture
def image(tmp_path: Path) -> str:
    rootfs.write(tmp_path / "r.tar", PROGRAMS, {"opt/bin/own": "#!/bin/sh\necho own\n"})
    lines = ("FROM scratch", "ADD r.tar /", "WORKDIR /root", "ENV PATH=/root/bin:/opt/bin:/bin")
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    return f"{tmp_path}/Dockerfile"


@pytest.fixture
def place(image: str) -> Iterator[SandboxBackend]:
    with closing(get_provider().start(image)) as sandbox:
        yield sandbox


def put_back(place: SandboxBackend, image: str, *expected: str) -> None:
    restore_system_files(
        place, place.changes(), lambda: get_provider().start(image), lambda: expected
    )


def says(place: SandboxBackend, program: str) -> bytes:
    return place.exec(["/bin/sh", "-c", f"{program} 2>&1"]).stdout


def make(path: str) -> str:
    text = "'#!/bin/sh\\necho mine\\n'"
    return f"mkdir -p {path.rpartition('/')[0]}; printf {text} > {path}; chmod 755 {path}"


def test_a_program_in_the_place_of_another_is_removed(place: SandboxBackend, image: str) -> None:
    script = f"{make('/opt/bin/cat')}; {make('/root/bin/own')}; {make('/root/bin/tool')}"
    assert place.exec(["/bin/bash", "-c", script]).ok
    assert says(place, "own") == says(place, "cat") == b"mine\n"
    put_back(place, image)
    assert says(place, "own") == b"own\n" and says(place, "echo x | cat") == b"x\n"
    assert says(place, "tool") == b"mine\n"  # what hides nothing stays


def test_a_program_that_was_changed_is_put_back(place: SandboxBackend, image: str) -> None:
    assert place.exec(["/bin/bash", "-c", make("/opt/bin/own")]).ok
    put_back(place, image)
    assert says(place, "own") == b"own\n"


def test_what_the_solution_changes_stays(place: SandboxBackend, image: str) -> None:
    assert place.exec(["/bin/bash", "-c", make("/opt/bin/own")]).ok
    put_back(place, image, "/opt/bin/own")
    assert says(place, "own") == b"mine\n"


def test_a_link_in_the_place_of_a_folder(place: SandboxBackend, image: str) -> None:
    script = f"{make('/root/x/own')}; ln -s x /root/bin"
    assert place.exec(["/bin/bash", "-c", script]).ok
    with pytest.raises(TamperedSystemError):
        put_back(place, image)


def test_home_is_the_users_own_unless_the_image_says_it(place: SandboxBackend) -> None:
    assert home_variables(place, None) == {}
    assert home_variables(place, "app") == {"HOME": "/home/app", "USER": "app"}
    with pytest.raises(LookupError):
        home_variables(place, "nobody-here")
