"""A recipe builds the place that the stage opens: here by us, in test_base_image by Docker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.envs.ctf import CtfStage
from intercode.envs.stage import SandboxStage
from intercode.errors import TaskError, UsageError
from intercode.task import Task
from intercode_sandbox import get_provider
from trees import ODD, tree


def test_bundled_tasks_of_every_kind_have_the_files_that_an_agent_is_given(tmp_path: Path) -> None:
    provider, seen, built = get_provider(), set(), 0
    for name in ("bash", "ctf", "python", "swe"):
        with closing(intercode.make(name)) as env:
            for task in env.dataset:
                kind = (env.image(task), bool(task.files), bool(task.setup), *task.metadata)
                if kind in seen or built > 12:
                    continue
                seen.add(kind)
                built += 1
                recipe = env.stage.recipe(task, base="host")
                file = recipe.write(tmp_path / f"{name}-{task.task_id}")
                with (
                    closing(env.stage.open(task)) as given,
                    closing(provider.start(str(file))) as made,
                ):
                    assert tree(made) == tree(given), task.task_id
                    assert made.cwd == recipe.workdir
                    assert {**recipe.env, "PWD": recipe.workdir} == dict(made.env)
    assert built > 10


def test_names_and_setups_are_taken_literally(tmp_path: Path) -> None:
    stage = SandboxStage("native")
    file = stage.recipe(ODD, base="host").write(tmp_path)
    with closing(stage.open(ODD)) as given, closing(stage.provider.start(str(file))) as made:
        assert tree(made) == tree(given)
        assert made.read_file("/root/a b/$HOME \\x.txt") == b"1"
    with pytest.raises(UsageError, match="a Dockerfile is UTF-8"):
        stage.recipe(Task("x", "?", files={"\udcff": ""}))


def first(image: str, **options: Any) -> list[str]:
    stage = SandboxStage("native", image, **options)
    return stage.recipe(Task("x", "?")).dockerfile.splitlines()


def test_where_a_recipe_begins() -> None:
    assert first("host")[0] == first("base")[0] == "FROM base"
    assert first("nl2bash")[0] == "FROM nl2bash"
    assert first("scratch")[0] == "FROM scratch"
    assert first("debian:bookworm")[0] == "FROM debian:bookworm"
    begin, install, *_ = first("debian:trixie[jq,python3]")
    assert begin == "FROM debian:trixie"
    assert install.startswith("RUN apt-get update") and install.endswith(" jq python3")
    recipe = SandboxStage("native").recipe(Task("x", "?"))
    assert dict(recipe.carried) == {"base": "base"}
    with pytest.raises(UsageError, match=r"in no registry.*recipe\(task, base=NAME\)"):
        first("/")
    assert SandboxStage("native", "/").recipe(Task("x", "?"), base="mine:1").carried == {}


DOCKERFILE = """\
# The shop.
FROM host AS shop
ARG FRUIT=apples
COPY stock.txt run.sh /srv/
RUN echo "$FRUIT" > /srv/fruit
USER 0:5
WORKDIR /srv
ENV SHOP=/srv

FROM shop
RUN touch /srv/last
"""


@pytest.mark.parametrize("options", ["", '[FRUIT=a "b" $c]', "[--target=shop]"])
def test_a_dockerfile_is_taken_over_with_its_files(tmp_path: Path, options: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Dockerfile").write_text(DOCKERFILE)
    (source / ".dockerignore").write_text("*\n!stock.txt\n!run.sh\n")
    (source / "stock.txt").write_text("apples 3\n")
    (source / "run.sh").write_text("echo\n")
    (source / "run.sh").chmod(0o755)
    stage = SandboxStage("native", f"{source}/Dockerfile{options}")
    task = Task("x", "?", files={"mine": "1"}, setup="id -g > group; ls > list")
    recipe = stage.recipe(task)
    assert recipe.dockerfile.startswith("# The shop.\nFROM base AS shop\n")
    assert recipe.carried == {"base": "base"}
    made = recipe.write(tmp_path / "made")
    made.write_text(recipe.dockerfile.replace("FROM base ", "FROM host "))
    with closing(stage.open(task)) as given, closing(stage.provider.start(str(made))) as built:
        assert tree(built) == tree(given)
        assert (built.cwd, built.env["SHOP"]) == (recipe.workdir, "/srv")
        assert recipe.user == "0:5"


def test_what_a_recipe_cannot_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nCOPY . /srv\n")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="link is not a regular file"):
        first(f"{tmp_path}/Dockerfile")
    with (
        closing(intercode.make("sql")) as env,
        pytest.raises(UsageError, match="a Dockerfile cannot"),
    ):
        env.stage.recipe(env.dataset[0])
    with pytest.raises(TaskError, match="field 'image'"):
        SandboxStage("native").recipe(Task("x", "?", image="host+./none.sh"))


def test_a_service_is_told_and_not_in_the_image() -> None:
    facts = {"service": "cat > /tmp/x; sleep 9", "service_input": "secret-flag", "health": "true"}
    recipe = CtfStage("native").recipe(Task("x", "?", metadata=facts))
    assert recipe.service is not None and recipe.limits.debugger
    assert (recipe.service.stdin, recipe.service.health) == (b"secret-flag", "true")
    assert "secret-flag" not in recipe.dockerfile and not recipe.files
