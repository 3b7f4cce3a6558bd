"""The code of a repository's fix, where an agent can read it before it has done anything."""

from __future__ import annotations

import io
import json
import marshal
import shutil
import struct
import subprocess
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from envs.swe_tasks import git, write
from envs.test_swe_history import FULL_CODE, GOLD, STUBS, make_past, past_task
from intercode.cli.main import main
from intercode.envs.swe import SweEnv
from intercode.evaluate.gold_leaks import GoldLeak, leaks
from intercode.evaluate.validate import validate
from intercode.task import Dataset, Task
from intercode_sandbox.images.base import SEARCH_PATH

OTHER = "def add(a, b):\n    return b + a\n"


def zipped(name: str, data: bytes | str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def tarred(name: str, data: bytes, mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def compiled(place: Path, source: str) -> bytes:
    """Compile with the Python of the image ``host``."""
    (place / "source.py").write_text(source)
    python = shutil.which("python3", path=SEARCH_PATH) or "python3"
    code = "import py_compile; py_compile.compile('source.py', 'x.pyc')"
    subprocess.run([python, "-c", code], cwd=place, check=True)
    return (place / "x.pyc").read_bytes()


def of_another_python(source: str) -> bytes:
    """A compiled file with a magic number of no Python here; its constants are as everywhere."""
    return struct.pack("<HH12x", 1234, 0x0A0D) + marshal.dumps(compile(source, "x", "exec"))


def packed(folder: Path, place: Path) -> str:
    path = place / "image.tar"
    subprocess.run(["tar", "-cf", path, "-C", folder, "."], check=True)
    return f"host+{path}"


def found(task: Task, image: str | None = None, history: str = "none") -> list[GoldLeak]:
    with closing(SweEnv(Dataset([task]), image=image, history=history)) as env:
        env.reset()
        return leaks(task, env.workspace, image or "host", flags=False)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fix") / "calc"
    make_past(folder)
    return folder


def store(past: Path, place: Path) -> None:
    """Lay git's files about: whole, loose, dangling, a pack alone, a bundle."""
    git(past, "clone", "--quiet", "--mirror", ".", str(place / "opt/mirror.git"))
    blob = git(past, "rev-parse", "v0:calc.py")
    loose = past.parent / "loose"
    git(past, "init", "--quiet", str(loose))
    write(loose, {"x": FULL_CODE})
    git(loose, "hash-object", "-w", "x")
    target = place / "opt/objects" / blob[:2]
    target.mkdir(parents=True)
    (loose / ".git/objects" / blob[:2] / blob[2:]).rename(target / blob[2:])
    git(past, "bundle", "create", "--quiet", str(place / "opt/calc.bundle"), "v0")
    git(past, "repack", "-q", "-a", "-d", "-k")
    (pack,) = (past / ".git/objects/pack").glob("*.pack")
    (place / "opt/alone.pack").write_bytes(pack.read_bytes())


def test_all_places_are_searched(past: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    site = "usr_/lib/python3/site-packages/"
    code = FULL_CODE.encode()
    wheel = zipped("calc.py", code)
    leaking = {
        f"{site}calc.py": code,
        "repo/calc.py.orig": code,
        "repo/build/lib/calc.py": code,
        "repo/.pytest_cache/v/calc.py": code,
        "repo/htmlcov/calc.py.txt": b"<pre>\n" + code,
        "root/.cache/pip/http-v2/a/b/0123.body": wheel,
        "root/.cache/pip/wheels/ab/calc-2-py3-none-any.whl": wheel,
        "opt/calc.zip": wheel,
        "opt/calc.egg": wheel,
        "opt/calc.tar": tarred("calc-2/calc.py", code, "w"),
        "opt/calc.tar.gz": tarred("calc-2/calc.py", code, "w:gz"),
        "opt/calc.tar.bz2": tarred("calc-2/calc.py", code, "w:bz2"),
        "opt/calc.tar.xz": tarred("calc-2/calc.py", code, "w:xz"),
        "opt/layers.tgz": tarred("layer/x.tar", tarred("calc-2.whl", wheel, "w"), "w:gz"),
        "repo/__pycache__/calc.cpython-311.pyc": compiled(tmp_path, FULL_CODE),
        f"{site}calc/old.whl": zipped("calc.pyc", compiled(tmp_path, FULL_CODE)),
    }
    harmless = {
        "opt/stubs.whl": zipped("calc.py", STUBS),
        "opt/other.zip": zipped("calc.py", OTHER),
        "opt/__pycache__/calc.cpython-311.pyc": compiled(tmp_path, STUBS),
        "opt/x/__pycache__/calc.cpython-310.pyc": of_another_python(FULL_CODE),
        "opt/broken.zip": wheel[:-20],
        "opt/no.tar.gz": b"\x1f\x8b nothing",
        "opt/no.pack": b"PACK nothing",
        "opt/no.bundle": b"# v2 git bundle\n\nnothing",
        "opt/vector.py": b"def plus(a, b):\n    return a + b\n",
    }
    for name, data in {**leaking, **harmless}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "usr_").rename(root / "srv")  # /usr is this machine's
    store(past, root)
    seen = found(past_task(repository=str(past)), packed(root, tmp_path))
    places = {leak.place for leak in seen}
    stores = {place for place in places if place.startswith("/opt/") and "calc.py" not in place}
    assert {f"/{name}".replace("usr_", "srv") for name in leaking} <= places
    assert {f"/{name}" for name in harmless}.isdisjoint(places)
    assert all(leak.is_problem and leak.task_id == "past" for leak in seen)
    by_git = {place for place in stores if "git's object" in texts(seen, place)}
    assert {"/opt/calc.bundle", "/opt/alone.pack"} <= by_git
    assert any("/opt/mirror.git/objects/" in place for place in places)
    assert any(place.startswith("/opt/objects/") for place in places)


def texts(seen: list[GoldLeak], place: str) -> str:
    return " ".join(leak.text for leak in seen if leak.place == place)


def test_names_and_constants_of_another_python_s(past: Path, tmp_path: Path) -> None:
    fixed = FULL_CODE.replace("return a + b  # as it was", "return numbers.combine(a, 'plus sign')")
    gold = GOLD.replace("return a + b  # as it was", "return numbers.combine(a, 'plus sign')")
    task = past_task(repository=str(past))
    task = Task("past", task.query, (gold,), metadata=task.metadata)
    cache = tmp_path / "root" / "opt" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "calc.cpython-38.pyc").write_bytes(of_another_python(fixed))
    (cache / "calc.cpython-39.pyc").write_bytes(of_another_python(STUBS))
    (cache / "other.cpython-38.pyc").write_bytes(of_another_python(fixed))
    (leak,) = found(task, packed(tmp_path / "root", tmp_path))
    assert leak.place == "/opt/__pycache__/calc.cpython-38.pyc"


def test_the_history_is_searched_where_there_is_one(past: Path) -> None:
    task = past_task(repository=str(past))
    assert found(task) == []
    (leak,) = found(task, history="full")
    assert leak.place.startswith("/repo/.git/objects/pack/") and "git's object" in leak.text
    allowed = Task("past", "?", task.gold, metadata={**task.metadata, "flag_in": "*.pack"})
    assert found(allowed, history="full") == []


def test_lines_of_the_base_and_short_ones_say_nothing(past: Path, tmp_path: Path) -> None:
    """As a history that had the same line elsewhere, or a brace."""
    folder = tmp_path / "calc"
    make_past(folder)
    git(folder, "checkout", "--quiet", "-b", "more", "v1")
    write(folder, {"vector.py": "def plus(a, b):\n    return a + b  # as it was\n"})
    git(folder, "add", "vector.py")
    git(folder, "commit", "--quiet", "--message=More")
    assert found(past_task(repository=str(folder), base_commit="more"), history="full") == []
    gold = GOLD.replace("return a + b  # as it was", "x = 1")
    row = past_task(repository=str(folder))
    assert found(Task("past", "?", (gold,), metadata=row.metadata), history="full") == []


def test_validate_does_not_call_such_a_task_as_it_should_be(
    past: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = Dataset([past_task(repository=str(past))])
    bad = validate(tasks, lambda: SweEnv(tasks, history="full"), timeout=60.0)
    assert [problem.kind for problem in bad.problems] == ["leak"] and not bad.valid
    assert [leak.is_problem for leak in bad.leaks] == [True]
    (past.parent / "tasks.json").write_text(json.dumps([past_task(repository="calc").to_dict()]))
    command = ["validate", str(past.parent / "tasks.json"), "--env", "swe", "--quiet"]
    assert main(command) == 0
    assert "1 of 1 task is valid\n" in capsys.readouterr().out
    assert main([*command, "--history", "full"]) == 1
    out = capsys.readouterr().out
    assert "past: the lines that gold adds are in git's object" in out
    assert "0 of 1 task is valid: the fix of 1 can be read" in out
