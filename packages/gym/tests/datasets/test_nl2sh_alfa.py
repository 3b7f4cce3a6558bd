"""NL2SH-ALFA, from small folders of its layout, and its own data as `make set-up` gets it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

import intercode
from intercode.cli.main import main
from intercode.datasets import load, nl2sh_alfa
from intercode.datasets.files import read_rows
from intercode.errors import TaskError
from intercode.rewards.answer_types import AnswerType
from intercode.task import CANNOT, Dataset, Task

from .layouts import write

REAL = Path(os.environ.get("INTERCODE_ALFA", Path(sys.prefix, "alfa")))
ROWS = [row for _, row in read_rows(nl2sh_alfa.TYPES)]
SIZES = {suite: sum(row["suite"] == suite for row in ROWS) for suite in range(1, 6)}
SCRIPT = "#!/bin/bash\nmkdir -p /made\necho one > /made/a\n"


def package(folder: Path) -> Path:
    """A package of the same layout, with as many tasks; it must not be imported."""
    assets = folder / "icalfa" / "assets"
    for suite, size in SIZES.items():
        rows = [
            {"query": f"q {row}", "gold": f"echo {row}", "gold2": "exit", "difficulty": row % 3}
            for row in range(size)
        ]
        write(assets / "datasets" / f"nl2bash_fs_{suite}.json", rows)
        (assets / "docker").mkdir(exist_ok=True)
        (assets / "docker" / f"setup_nl2b_fs_{suite}.sh").write_text(SCRIPT)
    (folder / "icalfa" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    return folder


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, where neither the package nor a fetched dataset is to be found."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    places = [place for place in sys.path if not Path(place, "icalfa").is_dir()]
    monkeypatch.setattr(sys, "path", places)
    importlib.invalidate_caches()
    return tmp_path


def row(suite: int, number: int) -> dict[str, object]:
    return next(one for one in ROWS if (one["suite"], one["row"]) == (suite, number))


def test_every_task_has_a_type_or_a_reason() -> None:
    assert len({(one["suite"], one["row"]) for one in ROWS}) == len(ROWS) == 300
    assert SIZES == {1: 153, 2: 49, 3: 57, 4: 23, 5: 18}
    for one in ROWS:
        assert ("answer" in one) != (CANNOT in one), one
        assert one.keys() <= {"suite", "row", "answer", "may_change", "wrong", CANNOT}
        if CANNOT in one:
            assert one[CANNOT].partition(":")[0] in {
                *("network", "time", "machine", "missing", "nothing-to-do", "unclear", "golds")
            }
        assert one.get("wrong", [1]) in ([1], [2])
        AnswerType.parse(Task("t", "q", metadata={"answer": one.get("answer", "state")}))


def test_from_a_folder(tmp_path: Path) -> None:
    root = package(tmp_path / "src")
    tasks = load("nl2sh-alfa", root=tmp_path)
    assert (tasks.name, len(tasks)) == ("nl2sh-alfa", 300)
    first, last = tasks[0], tasks[-1]
    assert (first.task_id, first.query, first.tags) == ("fs1-0", "q 0", ("easy", "fs1"))
    assert first.gold == ("echo 0", "exit") and first.metadata["answer"] == row(1, 0)["answer"]
    script = root / "icalfa" / "assets" / "docker" / "setup_nl2b_fs_1.sh"
    assert first.image == f"nl2bash+{script}"
    assert first.files == {"/setup_nl2b_fs_1.sh": SCRIPT}
    assert (last.task_id, last.tags) == ("fs5-17", ("hard", "fs5"))
    reasons = {t.task_id: t.metadata[CANNOT] for t in tasks if CANNOT in t.metadata}
    assert reasons == {f"fs{r['suite']}-{r['row']}": r[CANNOT] for r in ROWS if CANNOT in r}
    changes = {t.task_id: list(t.may_change) for t in tasks if t.may_change}
    assert changes == {
        f"fs{r['suite']}-{r['row']}": r["may_change"] for r in ROWS if "may_change" in r
    }


def test_a_wrong_gold_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    wrong = {f"fs{r['suite']}-{r['row']}": r["wrong"][0] for r in ROWS if "wrong" in r}
    assert wrong
    every = nl2sh_alfa.load(package(tmp_path), every_gold=True)
    for task, whole in zip(nl2sh_alfa.load(tmp_path), every, strict=True):
        assert len(whole.gold) == 2
        left = {1: whole.gold[1:], 2: whole.gold[:1]}.get(wrong.get(task.task_id, 0), whole.gold)
        assert task.gold == left


def test_the_installed_package_is_found_and_not_imported(
    away: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["datasets", "info", "nl2sh-alfa"]) == 0
    assert "here      to get\n" in capsys.readouterr().out
    monkeypatch.syspath_prepend(package(away / "site"))
    assert len(load("nl2sh-alfa")) == 300
    assert main(["datasets", "info", "nl2sh-alfa"]) == 0
    said = capsys.readouterr().out
    assert f"folder    {away}/site/icalfa\ntasks     300\n" in said
    assert "icalfa" not in sys.modules


def test_it_is_nowhere(away: Path) -> None:
    with pytest.raises(TaskError, match="pip install --no-deps icalfa; or clone https://github"):
        load("nl2sh-alfa")
    with pytest.raises(TaskError, match=r"looked for assets/datasets/nl2bash_fs_1\.json"):
        load("nl2sh-alfa", root=away)


def test_fetched_from_a_folder(away: Path) -> None:
    package(away / "cache" / "datasets" / "nl2sh-alfa")
    assert len(load("nl2sh-alfa")) == 300


def test_another_version(tmp_path: Path) -> None:
    file = package(tmp_path) / "icalfa" / "assets" / "datasets" / "nl2bash_fs_4.json"
    rows = json.loads(file.read_text())
    write(file, [*rows, rows[0]])
    with pytest.raises(TaskError, match=r"nl2bash_fs_4\.json: .*is it another version"):
        load("nl2sh-alfa", root=tmp_path)
    write(file, [{"query": "q", "gold": "g", "difficulty": 0}])
    with pytest.raises(TaskError, match=r"nl2bash_fs_4\.json: .*field 'gold2' is missing"):
        load("nl2sh-alfa", root=tmp_path)


def test_a_task_is_played(tmp_path: Path) -> None:
    """On the image ``host``: that of the dataset takes minutes to build."""
    task = nl2sh_alfa.load(package(tmp_path))[8]
    env = intercode.make(
        "bash",
        data=Dataset([task]),
        image=f"host+{tmp_path}/icalfa/assets/docker/setup_nl2b_fs_1.sh",
    )
    env.reset()
    assert env.step("cat /made/a; head -n 1 /setup_nl2b_fs_1.sh")[0] == "one\n#!/bin/bash\n"
    env.step("echo ' 8'")
    assert env.step("submit")[1] == 1.0
    env.close()


@pytest.mark.skipif(not REAL.is_dir(), reason="make set-up has not been run")
def test_its_own_data() -> None:
    tasks = nl2sh_alfa.load(REAL, every_gold=True)
    assert len(tasks) == 300 and all(len(task.gold) == 2 for task in tasks)
    for task in tasks:
        answer = AnswerType.parse(task)
        assert (answer is None) == (CANNOT in task.metadata)
