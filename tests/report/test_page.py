"""Reports of whole runs: as text, Markdown, CSV, JSON, and as a page that hostile texts are in."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from intercode import records
from intercode.cli.main import main
from intercode.cli.terminal import table
from intercode.episode import Episode, Score, Turn
from intercode.evaluate.manifest import session
from intercode.report.html import CHUNK, LONGEST

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e\udcff|&quot;"
COUNT = 2 * CHUNK + 30


def episode(number: int, *, good: bool) -> Episode:
    turns = [
        Turn(f"echo {number} {EVIL}", f"{EVIL} {turn}", ok=turn > 0, exit_code=0, seconds=0.5)
        for turn in range(1 + number % 3)
    ]
    score = Score(float(good), {"output": float(good)}, {"why": EVIL, "n": float("nan")})
    made = Episode(f"t{number}", f"task {number} {EVIL}", "bash", EVIL, turns=turns, score=score)
    made.status, made.seconds = "submitted", 2.0
    made.metadata = {
        "image": f"db{number % 5}",
        "tags": ["easy" if number % 2 else "hard", EVIL],
        "model": {
            "input_tokens": 10,
            "output_tokens": 2,
            "cost": 0.25,
            "messages": [{"role": "user", "content": EVIL}],
            "calls": [{"seconds": 1.5}],
        },
    }
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = []
    for name, solved in (("one", 3), ("two", 2)):
        folder = tmp_path_factory.mktemp("runs") / name
        folder.mkdir()
        lines = [episode(n, good=n % solved == 0).to_json() for n in range(COUNT)]
        failed = Episode("t0", "q", "bash", status="error", error=EVIL, metadata={"image": "db0"})
        huge = episode(1, good=False)
        huge.turns = [Turn("cat", "head" + "x" * 2 * LONGEST + "tail")]
        # t0 was tried again; t1, of the second run, has a long text.
        lines = [failed.to_json(), *lines, huge.to_json()]
        (folder / records.EPISODES).write_text("".join(f"{line}\n" for line in lines))
        manifest = {
            "format": 1,
            "dataset": {"name": "fake", "source": None, "digest": "d", "tasks": COUNT + 20},
            "env": {"env": "bash", "protocol": "default"},
            "agent": {
                "name": f"{name} {EVIL}",
                "options": {},
                "digest": "",
                "language_model": {"model": f"m/{name}"},
            },
            "seed": 0,
            "excluded": {},
            "sessions": [session(epochs=1, limit=None, tasks=None)],
        }
        (folder / records.MANIFEST).write_text(json.dumps(manifest))
        made.append(folder)
    return made[0], made[1]


@pytest.fixture(scope="module")
def page(runs: tuple[Path, Path]) -> str:
    path = runs[0].parent / "report.html"
    assert main(["report", *map(str, runs), "--html", str(path), "--json"]) == 0
    assert [file.name for file in path.parent.glob("*.html*")] == ["report.html"]
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every element of a page: name, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open = False
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.found[-1][2].append(data)

    def texts(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, "".join(text)) for name, attrs, text in self.found if name == tag]


def test_nothing_in_the_page_is_from_elsewhere_or_runs(page: str) -> None:
    elements = Elements(page)
    names = {name for name, _, _ in elements.found}
    assert not names & {"img", "link", "iframe", "object", "embed", "base"}, names
    for name, attributes, _ in elements.found:
        assert not {"src", "style"} & attributes.keys(), name
        assert (attributes.get("href") or "#").startswith("#"), attributes
        assert not [key for key in attributes if key.startswith("on")], name
    assert not re.search(r"https?://|url\(|@import", page)
    # One script that can run, and the policy names it.
    scripts = elements.texts("script")
    [(_, program)] = [(attrs, text) for attrs, text in scripts if "type" not in attrs]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    [policy] = [a["content"] for a, _ in elements.texts("meta") if "http-equiv" in a]
    assert policy is not None
    assert f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy
    [(_, style)] = elements.texts("style")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy and "unsafe" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", program)
    for attributes, text in scripts:
        if "type" in attributes:
            assert re.fullmatch(r"[A-Za-z0-9+/=]+", text), attributes
    # What cannot be seen, or turns other text around, is written out.
    shown = page[: page.index('<script type="text/plain"')]
    assert "\\x1b[2J\\u202e" in shown and "alert(1)&lt;/script&gt;" in shown
    assert all(char.isprintable() or char == "\n" for char in shown)


def unpacked(page: str, name: str) -> Any:
    texts = {attrs.get("id"): text for attrs, text in Elements(page).texts("script")}
    return json.loads(gzip.decompress(base64.b64decode(texts[name])))


def test_the_page_has_every_episode(page: str) -> None:
    index = unpacked(page, "index")
    assert len(index["task"]) == 2 * COUNT
    assert index["run"].count(1) == COUNT and "error" not in index["status"]
    assert index["task"][:2] == ["t0", "t2"] and index["task"][COUNT - 1] == "t1"  # as they ended
    chunks = [unpacked(page, f"chunk-{n}") for n in range(max(index["chunk"]) + 1)]
    assert max(map(len, chunks)) == CHUNK
    for row in range(2 * COUNT):
        found = chunks[index["chunk"][row]][index["offset"][row]]
        number = int(index["task"][row][1:])
        expected = episode(number, good=bool(index["success"][row]))
        assert found["query"] == expected.query
        assert found["metadata"]["model"]["messages"][0]["content"] == EVIL
        if number != 1:
            assert [t["action"] for t in found["turns"]] == [t.action for t in expected.turns]
            assert found["score"]["detail"] == {"why": EVIL, "n": "nan"}
        else:
            [turn] = found["turns"]
            assert len(turn["observation"]) < LONGEST + 100
            assert turn["observation"].startswith("head") and turn["observation"].endswith("tail")
            assert f"{LONGEST + 8} characters more" in turn["observation"]


def test_the_page_has_the_tables_and_the_figure(page: str) -> None:
    headings = [text for _, text in Elements(page).texts("h2")] + [
        text for _, text in Elements(page).texts("h3")
    ]
    for heading in (
        "Success against turns",
        "Task by task: bash · fake",
        "By hardness",
        "Where it went",
    ):
        assert heading in headings
    elements = Elements(page)
    assert len(elements.texts("polyline")) == len(elements.texts("polygon")) == 2
    assert len(elements.texts("circle")) == 6 + 2  # three turns each, and the legend's
    targets = {attributes["href"] for attributes, _ in elements.texts("a")}
    assert (
        targets == {f"#{found['id']}" for _, found, _ in elements.found if "id" in found} & targets
    )
    assert {"#turns", "#episodes", "#runs"} <= targets
    summaries = [text for _, text in elements.texts("summary")]
    assert len([text for text in summaries if text.endswith(": bash · fake")]) == 2


def test_text_and_markdown(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs[0])]) == 0
    text = capsys.readouterr().out
    for words in ("clusters: ", "fewer than 20", "250 tasks in the dataset", "19.2500", "92.0 %"):
        assert words in text, words
    assert "\x1b" not in text and "error" in text
    assert main(["report", *map(str, runs), "--markdown"]) == 0
    told = capsys.readouterr()
    # Nothing in it is markup: neither HTML nor a cell's end.
    assert not re.search(r"(?<!\\)<", told.out)
    [row] = [x for x in told.out.splitlines() if "only first" in x]
    cells = len(re.findall(r"(?<!\\)\|", row))
    compared = told.out.partition("only first")[2].partition("What a task took")[0]
    [row] = [x for x in compared.splitlines() if x.startswith("| two")]
    assert len(re.findall(r"(?<!\\)\|", row)) == cells


def test_only_runs_of_one_environment_are_compared(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(runs[0])]
    for name in ("three", "four"):
        folder = tmp_path / name
        folder.mkdir()
        manifest = json.loads((runs[0] / records.MANIFEST).read_text())
        manifest["env"]["env"] = "sql"
        manifest["agent"]["name"] = name
        manifest["dataset"]["digest"] = name * 10 + "0" * 64
        (folder / records.MANIFEST).write_text(json.dumps(manifest))
        (folder / records.EPISODES).write_text(episode(2, good=name == "four").to_json() + "\n")
        folders.append(str(folder))
    assert main(["report", *folders, str(runs[1])]) == 0
    told = capsys.readouterr()
    one, other = told.out.split("Task by task: ")[1:]
    assert one.startswith("bash · fake\nagainst one") and "\ntwo" in one and "four" not in one
    assert other.startswith("sql · fake\nagainst three") and "\nfour" in other
    [warning] = told.err.strip().split("\n\n")
    assert warning.startswith(f"intercode: warning: {folders[1]} and {folders[2]} were not made")
    assert main(["report", *folders, str(runs[1]), "--json"]) == 0
    told_json = json.loads(capsys.readouterr().out)["comparisons"]
    assert {key: one["against"] for key, one in told_json.items()} == {
        folders[2]: folders[1],
        str(runs[1]): folders[0],
    }


def test_csv_and_json(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *map(str, runs), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["successes"] for row in rows if row["group"] == "all"] == ["77", "115"]
    assert {row["name"] for row in rows if row["group"] == "level"} == {"easy", "hard"}
    assert len([row for row in rows if row["group"] == "place"]) == 10
    assert main(["report", *map(str, runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [found] = told["comparisons"].values()
    solved = [{n for n in range(COUNT) if n % every == 0 and n != 1} for every in (3, 2)]
    assert (found["test"]["only_first"], found["test"]["only_second"]) == (
        len(solved[0] - solved[1]),
        len(solved[1] - solved[0]),
    )
    assert found["difference"]["value"] == pytest.approx((115 - 77) / COUNT)
    assert any("(m/one)" in row["agent"] for row in rows)
    first = told["runs"][0]
    assert first["coverage"]["missing"] == 20 and first["coverage"]["errored"] == 0
    assert first["statistics"]["cost"] == 0.25 * COUNT
    assert first["spending"]["solved"]["model_seconds"] == 1.5 * 77
    assert [round(point["value"], 3) for point in first["turns"]] == [0.335, 0.335, 0.335]


def test_a_table_that_is_wider_than_the_terminal_stands_in_parts() -> None:
    header, rows = ["run", "scored", "errors"], [["one", "12", "0"], ["the second", "3", "4"]]
    whole = table(header, rows)
    assert whole == table(header, rows, 1, 26)
    assert whole.splitlines()[-1] == "the second       3       4"
    first, second = table(header, rows, 1, 25).split("\n\n")
    assert first.splitlines() == ["run         scored", "one             12", "the second       3"]
    assert second.splitlines() == ["run         errors", "one              0", "the second       4"]
    assert table(header, rows, 1, 5) == table(header, rows, 1, 25)  # no narrower than a column


def test_the_page_of_one_run_says_what_was_run_and_what_went_wrong(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    for file in (records.MANIFEST, records.EPISODES):
        (tmp_path / file).write_bytes((runs[0] / file).read_bytes())
    failed = Episode("t2", "q", "bash", status="error", error=EVIL, metadata={"error_type": "Oops"})
    with (tmp_path / records.EPISODES).open("a") as episodes:
        episodes.write(failed.to_json() + "\n")
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "r.html"), "--csv"]) == 0
    elements = Elements((tmp_path / "r.html").read_text(encoding="utf-8"))
    titles = [text for _, text in elements.texts("h3")]
    assert titles[:2] == ["Success", "Success against turns"] and "Errors" in titles
    heads = [text for attributes, text in elements.texts("th") if attributes["scope"] == "row"]
    assert {"Oops", "seed", "model", "folder"} <= set(heads)


def test_a_page_that_cannot_be_written(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(runs[0]), "--html", str(runs[0] / "no" / "x.html")]) == 1
    assert "cannot write" in capsys.readouterr().err
