"""What the examples must withstand. That they work as their READMEs say is tested with the docs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import intercode
from intercode import InterCodeEnv
from intercode.cli.main import main
from ordinary import ordinary_user

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
LINES = 100

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for an ordinary user: its root has one user"
)
Try = Callable[..., float]


@pytest.fixture(scope="module")
def attempt() -> Iterator[Try]:
    """What a task of an example is worth with these actions, gold's last of all if asked for."""
    opened: dict[str, InterCodeEnv[object]] = {}

    def run(example: str, task: str, *actions: str, then_gold: bool = False) -> float:
        if example not in opened:
            made = intercode.make(str(EXAMPLES / example))
            assert isinstance(made, InterCodeEnv)
            opened[example] = made
        env = opened[example]
        env.reset(options={"task_id": task})
        gold = env.solution(env.dataset[task])
        return max(env.step(action)[1] for action in (*actions, *(gold if then_gold else [])))

    yield run
    for env in opened.values():
        env.close()


@pytest.mark.parametrize("example", ["git_puzzle", "data_copilot", "c_vault", "nginx"])
def test_an_example_is_short(example: str) -> None:
    code = [path for path in (EXAMPLES / example).glob("[!R]*") if path.is_file()]
    assert len(code) >= 4
    assert sum(len(path.read_text().splitlines()) for path in code) < LINES


def test_the_git_puzzle_gives_half_for_a_near_miss(attempt: Try) -> None:
    tag = "git -C /srv/recipes tag culprit {}"
    assert attempt("git_puzzle", "culprit", tag.format("HEAD~1"), "submit") == 1.0
    assert attempt("git_puzzle", "culprit", tag.format("HEAD~2"), "submit") == 0.5
    assert attempt("git_puzzle", "culprit", tag.format("HEAD~3"), "submit") == 0.0


def test_the_git_puzzle_finds_a_ref_that_git_has_packed(attempt: Try) -> None:
    pack = "git -C /srv/recipes tag culprit HEAD~1; git -C /srv/recipes pack-refs --all"
    assert attempt("git_puzzle", "culprit", pack, "submit") == 1.0


def test_the_git_puzzle_runs_nothing_of_the_agent_s(attempt: Try) -> None:
    liar = (
        "mkdir -p /root/bin; printf '#!/bin/sh\\necho cfeb15ef' > /usr/local/bin/git; chmod 755 $_"
    )
    assert attempt("git_puzzle", "culprit", liar, "submit") == 0.0
    assert attempt("git_puzzle", "culprit", "rm -rf /srv/recipes/.git", "submit") == 0.0


def test_the_git_puzzle_s_script_is_not_left_in_it(attempt: Try) -> None:
    look = 'test -e /tmp/history.sh && git -C /srv/recipes tag culprit "HEAD~1"'
    assert attempt("git_puzzle", "culprit", look, "submit") == 0.0


@pytest.mark.parametrize(
    "action",
    [
        "SELECT 1",
        "SELEC name FROM seller",
        "WITH s AS (SELECT * FROM sale) SELECT * FROM s UNION SELECT * FROM sale;",
        "-- DELETE FROM sale",
    ],
)
def test_the_copilot_may_look_and_err(attempt: Try, action: str) -> None:
    assert attempt("data_copilot", "best", action, then_gold=True) == 1.0


@pytest.mark.parametrize(
    "action",
    [
        "DELETE FROM sale WHERE id = 99",
        "UPDATE nowhere SET a = 1",
        "SELECT 1; DROP TABLE sale",
        "CREATE TEMP TABLE t AS SELECT 1",
        "INSERT INTO seller VALUES (1, 'again')",
        "WITH s AS (SELECT 1) DELETE FROM sale",
        "REPLACE INTO seller VALUES (1, 'Lena')",
        "ALTER TABLE sale ADD COLUMN x",
        "PRAGMA user_version = 3",
        "BEGIN; ROLLBACK",
        "VACUUM",
    ],
)
def test_the_copilot_may_not_try_to_write(attempt: Try, action: str) -> None:
    assert attempt("data_copilot", "best", action, then_gold=True) == 0.0


@pytest.mark.parametrize(
    ("action", "found"),
    [
        ("grep -rhoa 'flag{[a-z_]*}' /srv /ctf /tmp /etc /root 2>/dev/null", False),
        ("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'", False),
        ("exec 3<>/dev/tcp/127.0.0.1/5005; echo 1.2 >&3; cat <&3", False),
        ("exec 3<>/dev/tcp/127.0.0.1/5005; echo >&3; cat <&3", True),
    ],
)
def test_the_vault_s_flag_is_only_behind_its_door(action: str, found: bool) -> None:
    env = intercode.make(str(EXAMPLES / "c_vault"))
    env.reset()
    assert ("flag{" in env.step(action)[0]) == found
    env.close()


@as_root
@pytest.mark.parametrize(
    ("task", "action", "reward"),
    [
        ("start", "rm /etc/nginx/sites-enabled/default; nginx", 0.0),
        ("start", "rm /etc/nginx/sites-enabled/default; echo 1 > /srv/orchard/word", 0.0),
        ("forbidden", "sed -i 's/^user .*/user root;/' /etc/nginx/nginx.conf", 0.0),
        ("forbidden", "chmod -R a+rX /srv", 1.0),
        ("forbidden", "printf '#!/bin/true' > /usr/local/sbin/check-site", 0.0),
        ("gateway", "sed -i 's|:8018|:80|' /etc/nginx/sites-enabled/default", 0.0),
        ("gateway", "sed -i 's|:8081|:8018|' /etc/nginx/sites-enabled/default", 1.0),
        ("gateway", "ln -s /bin/true /usr/local/bin/curl", 0.0),
    ],
)  # fmt: skip
def test_nginx_is_repaired_or_not(attempt: Try, task: str, action: str, reward: float) -> None:
    assert attempt("nginx", task, action, "submit") == reward


@as_root
def test_nginx_is_as_good_in_containers(engine: object) -> None:
    """Its image is built natively first: the tests' engine has no network."""
    assert main(["validate", str(EXAMPLES / "nginx"), "--quiet", "--also-on", "docker"]) == 0


@as_root
@pytest.mark.parametrize("command", ["validate", "run"])
def test_nginx_is_refused_to_an_ordinary_user(command: str) -> None:
    with ordinary_user() as user:
        done = subprocess.run(
            [*user.prefix, sys.executable, "-m", "intercode.cli", command, str(EXAMPLES / "nginx")],
            env=user.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "tasks.jsonl: row 1 (line 1), task 'start' cannot have its" in done.stderr
        assert "several users are needed for chown, setgid, setuid" in done.stderr
        assert "Run this as root" in done.stderr and "docker-daemon:NAME" in done.stderr
        assert not [*user.home.glob("cache/images/*")], "something was built"


def test_search_solves_more_for_more_tokens() -> None:
    told = subprocess.run(
        [sys.executable, EXAMPLES / "search_against_tokens.py"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in told.splitlines()[1:]]
    solved = {name: int(count) for name, count, *_ in rows}
    tokens = {row[0]: int(row[4]) for row in rows}
    assert solved["react"] < solved["best-of-n"] < solved["tree-search"]
    assert tokens["react"] < min(tokens["best-of-n"], tokens["tree-search"])


INTEGRATIONS = sorted((EXAMPLES / "integrations").glob("*.py"))


@pytest.mark.parametrize("path", INTEGRATIONS, ids=lambda path: path.stem)
def test_an_integration_is_short_and_needs_no_private_name(path: Path) -> None:
    """Private names of a framework's base class are reached by ``self`` alone."""
    text = path.read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 60
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "super()"):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        assert not [name for name in names if name.startswith("_")], ast.unparse(node)
    checks = [*(ROOT / "packages/integrations/tests/integrations").glob("*_example_checks.py")]
    assert [one for one in checks if path.stem in one.read_text()]
