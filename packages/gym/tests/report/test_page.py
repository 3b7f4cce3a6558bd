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
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from intercode import records
from intercode.cli.main import main
from intercode.cli.terminal import table
from intercode.episode import Episode, Score, Turn
from intercode.evaluate.manifest import session
from intercode.report.viewer_episodes import MAX_TEXT_LENGTH
from intercode.report.viewer_page import CHUNK, MODULES, STYLES, app

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
        huge.turns = [Turn("cat", "head" + "x" * 2 * MAX_TEXT_LENGTH + "tail")]
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
    # One script that can run, and the policy names it.
    scripts = elements.texts("script")
    [program] = [text for attrs, text in scripts if attrs.get("type") == "module"]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    [policy] = [a["content"] for a, _ in elements.texts("meta") if "http-equiv" in a]
    [(_, style)] = elements.texts("style")
    styled = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-{styled}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"url\(|@import", style)
    for attributes, text in scripts:
        if attributes["type"] == "text/plain":
            assert re.fullmatch(r"[A-Za-z0-9+/=]+", text), attributes
        elif attributes["type"] == "application/json":
            assert not set(text) & set("<>&"), "nothing in it can be taken for an element"
    assert page.isascii() or all(char.isprintable() or char == "\n" for char in page)
    [title] = [text for _, text in elements.texts("title")]
    assert "\\x1b[2J\\u202e" in title and "<img src=x" in title


def test_the_app_makes_elements_of_text_alone() -> None:
    script, style = app()
    assert not re.search(
        r"innerHTML|outerHTML\s*[+=]|insertAdjacent|document\.write|eval\(", script
    )
    assert not re.search(r"new Function|DOMParser|setHTML|srcdoc|createContextualFragment", script)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    declared = r"^(?:async )?(?:const|let|class|function\*?) (?:\[([^\]]*)\]|(\w+))"
    names = [
        name
        for some, one in re.findall(declared, script, re.MULTILINE)
        for name in re.findall(r"\w+", some or one)
    ]
    assert len(names) == len({*names}), "the modules become one"
    assert "https://" not in script.replace("http://www.w3.org/2000/svg", "")
    assert len(script) + len(style) < 200_000
    folder = resources.files("intercode.report") / "app"
    sources = {f"{name}.js" for name in MODULES} | {f"{name}.css" for name in STYLES}
    assert sources | {"index.html"} == {file.name for file in folder.iterdir()}


def unpacked(page: str, name: str) -> Any:
    texts = {attrs.get("id"): text for attrs, text in Elements(page).texts("script")}
    return json.loads(gzip.decompress(base64.b64decode(texts[name])))


def report_of(page: str) -> Any:
    [text] = [text for attrs, text in Elements(page).texts("script") if attrs.get("id") == "report"]
    return json.loads(text)


def test_the_page_has_every_episode(page: str) -> None:
    index = unpacked(page, "index")
    rows = index["columns"]
    assert len(rows["task"]) == 2 * COUNT
    assert rows["run"].count(1) == COUNT and not {*rows["outcome"]} & {"lost", "refused"}
    assert rows["task"][:2] == ["t0", "t2"] and rows["task"][COUNT - 1] == "t1"  # as they ended
    chunks = [unpacked(page, f"chunk-{n}") for n in range(max(index["at"]) // CHUNK + 1)]
    assert max(map(len, chunks)) == CHUNK
    for row, at in enumerate(index["at"]):
        found = chunks[at // CHUNK][at % CHUNK]
        number = int(rows["task"][row][1:])
        expected = episode(number, good=bool(rows["success"][row]))
        assert found["query"] == expected.query
        assert found["talk"]["messages"][0]["content"] == EVIL
        if number != 1:
            assert [t["action"] for t in found["turns"]] == [t.action for t in expected.turns]
            assert found["detail"] == {"why": EVIL, "n": "nan"}
            assert bool(found["why"]) != rows["success"][row]
        else:
            [turn] = found["turns"]
            assert len(turn["observation"]) < MAX_TEXT_LENGTH + 100
            assert turn["observation"].startswith("head") and turn["observation"].endswith("tail")
            assert f"{MAX_TEXT_LENGTH + 8} characters more" in turn["observation"]


def test_the_page_has_verdicts_tables_and_curves(page: str) -> None:
    report = report_of(page)
    [verdict] = report["verdicts"]
    assert verdict["kind"] == "better" and "is better than one" in verdict["headline"]
    assert "by 16.5 points" in verdict["headline"] and "(McNemar)" in verdict["detail"]
    assert [text.split(" by ")[0] for text, _ in verdict["links"]] == [
        "38 tasks better",
        "76 tasks better",
    ]
    assert verdict["links"][1][1] == "compare?first=one&second=two&only=second"
    # What the page draws of it: the pair, the points with their interval, the p value.
    assert verdict["pair"] == ["one", "two"] and 0 < verdict["p_value"] < 0.05
    value, low, high = verdict["difference"]
    assert value == pytest.approx(0.165, abs=0.001) and low < value < high
    [first, second] = report["runs"]
    assert (first["successes"], second["successes"]) == (77, 115)
    assert first["scored"] == second["scored"] == 230 and first["tasks"] == 250
    assert report["facts"]["model"] == "m/one, m/two" and "made" in report["facts"]
    sections = [section["heading"] for section in report["sections"]]
    assert sections == ["Side by side", "Compared"] and len(report["details"]) == 2
    tables = {t["title"]: t for s in report["sections"] for t in s["tables"]}
    [row] = tables["Task by task: bash · fake"]["rows"]
    head = tables["Task by task: bash · fake"]["head"]
    assert {"detectable difference", "tasks needed"} <= {*head}
    assert row[head.index("only baseline")][1].endswith("&only=first")
    # Every number leads to its episodes.
    for one in tables.values():
        for cells in one["rows"]:
            words = one["title"].startswith("Consumption per task")  # its second column
            assert all(len(cell) > 1 for cell in cells[1 + words :]), one["title"]
    [curves] = report["curves"]
    assert [len(series["points"]) for series in curves["series"]] == [3, 3]
    [pair] = report["pairs"]
    assert [len(pair["better"][side]) for side in ("first", "second")] == [38, 76]


def test_what_quotes_gold_can_be_left_out(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "THE-GOLD"
    score = Score(0.0, {"output": 0.0}, {"output": "x", "gold_output": secret})
    made = Episode("t", "q", "bash", turns=[Turn("act", "seen")], score=score, status="submitted")
    made.metadata = {"judge": [{"messages": [{"role": "user", "content": secret}]}]}
    told = Episode("u", "q", "bash", turns=[Turn(secret, "")], score=Score(1.0), status="submitted")
    told.answer, told.metadata = secret, {"model": {"messages": []}, "note": secret}
    for name, episode, needs_gold in (("a", made, False), ("o", told, True)):
        manifest = {
            **json.loads((runs[0] / records.MANIFEST).read_text()),
            "needs_gold": needs_gold,
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / records.MANIFEST).write_text(json.dumps(manifest))
        (tmp_path / name / records.EPISODES).write_text(episode.to_json() + "\n")
    folders = [str(tmp_path / name) for name in "ao"]
    path = tmp_path / "r.html"
    for options, shown in (([], True), (["--hide-gold"], False)):
        assert main(["report", *folders, "--html", str(path), *options]) == 0
        page = path.read_text()
        [one, other] = unpacked(page, "chunk-0")
        assert (secret in json.dumps(one)) == (secret in json.dumps(other)) == shown
        assert (secret in page) is False
        assert one["turns"][0]["action"] == "act", "what the agent did is shown"
    assert main(["report", *folders, "--hide-gold"]) == 2


def test_text_and_markdown(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs[0])]) == 0
    text = capsys.readouterr().out
    for words in ("clusters: ", "fewer than 20", "250 tasks in the dataset", "19.2500", "92.0 %"):
        assert words in text, words
    assert "\x1b" not in text and "error" in text
    assert text.startswith("made ") and "model m/one\n" in text.split("Success", 1)[0]
    assert main(["report", *map(str, runs), "--markdown"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("## bash · fake: one") and "is better than one" in told.out
    # Nothing in it is markup: neither HTML nor a cell's end.
    assert not re.search(r"(?<!\\)<", told.out)
    [row] = [x for x in told.out.splitlines() if "only baseline" in x]
    cells = len(re.findall(r"(?<!\\)\|", row))
    compared = told.out.partition("only baseline")[2].partition("Consumption per task")[0]
    [row] = [x for x in compared.splitlines() if x.startswith("| two")]
    assert len(re.findall(r"(?<!\\)\|", row)) == cells


def test_the_text_names_the_tasks_at_which_runs_differ(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *map(str, runs)]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if "tasks better by" in x]
    first, second = lines
    assert first.startswith("38 tasks better by one ") and " than two" in first
    assert first.endswith(" and 18 more (--json names all)")
    assert second.startswith("76 tasks better by two ")
    assert main(["report", *map(str, runs), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["comparisons"].values()
    assert f": {', '.join(found['better_first'][:20])} and" in first
    assert f": {', '.join(found['better_second'][:20])} and" in second
    assert main(["report", *map(str, runs), "--markdown"]) == 0
    assert "\n- 38 tasks better by one" in capsys.readouterr().out
    assert main(["report", str(runs[0]), str(runs[0])]) == 0
    assert "better by" not in capsys.readouterr().out


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
    assert warning.startswith(
        f"intercode: warning: {folders[1]} and {folders[2]} differ in their conditions"
    )
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
    report = report_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    [verdict] = report["verdicts"]
    assert "success 33.6 % of 229 episodes" in verdict["headline"]
    assert verdict["links"][1][0] == "1 error" and "state=error" in verdict["links"][1][1]
    [section] = report["sections"]
    tables = {table["title"]: table for table in section["tables"]}
    assert {"Success", "Coverage", "Errors"} <= tables.keys() and not report["pairs"]
    assert [row[0][0] for row in tables["Errors"]["rows"]] == ["Oops"]
    heads = {row[0][0] for row in tables["Settings"]["rows"]}
    assert {"seed", "model", "folder"} <= heads


def test_a_page_that_cannot_be_written(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(runs[0]), "--html", str(runs[0] / "no" / "x.html")]) == 1
    assert "cannot write" in capsys.readouterr().err
