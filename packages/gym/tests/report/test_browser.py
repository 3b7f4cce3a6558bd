"""The viewer in a real browser: what a reader does with it, with a mouse, keys, and a phone."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intercode import records
from intercode.cli.main import main
from intercode.episode import Episode, FileChange, Fork, Score, Turn, TurnChanges
from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from report.test_view import append, begun
from waiting import PATIENCE

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
EVIL = (
    "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>"
    "<a href='javascript:window.evil=1'>x</a>\x1b[2J\x1b]0;t\x07\u202e\udcff&quot;"
)
MANY = 10_000
THEMES = ("light", "dark")


def episode(number: int, *, good: bool, word: str = "") -> Episode:
    """A task that is solved, or not and then with a reason; some are out of the ordinary."""
    detail: dict[str, Any] = {}
    if not good:
        detail = {"output": f"{number}\n", "gold_output": f"{number + 1}\n", "missing": ["/etc/x"]}
    turns = [
        Turn(f"for f in *; do echo '{number}'; done  # look", f"line {word}\n", seconds=0.5),
        Turn("cat b.txt", "\x1b[1;31mred\x1b[0m and \x1b[38;5;0mplain\x1b[0m\n", ok=good),
    ]
    task = f"task-{number:02}"
    query = f"Do **{number}** with `cat`:\n\n- one\n- two\n\n```bash\necho hi\n```"
    made = Episode(
        task, query, "bash", turns=turns, score=Score(float(good), {"output": 0.5}, detail)
    )
    made.status, made.seconds, made.started = "submitted", 1.0 + number, 1.7e9 + number
    made.metadata = {
        "tags": ["easy" if number % 2 else "hard", "files"],
        "model": {
            "input_tokens": 100,
            "output_tokens": 20,
            "cost": 0.001 * number,
            "messages": [
                {"role": "system", "content": "# Rules\nBe *brief*."},
                {"role": "assistant", "content": "I look first."},
            ],
            "calls": [{"turn": 0, "seconds": 1.5, "reply": 1, "thought": "I look first."}],
        },
    }
    return made


def changes(*files: FileChange) -> TurnChanges:
    return TurnChanges(files, cut=2)


def special() -> Iterator[Episode]:
    """Timeouts, an error, forks, changes on disk, a search."""
    for number in (3, 7):
        late = episode(number, good=False)
        late.turns[1] = Turn("sleep 99", "", ok=False, info={"timed_out": True})
        yield late
    failed = episode(8, good=False)
    failed.status, failed.score, failed.error = "error", None, "the sandbox was lost"
    failed.metadata["error_type"] = "SandboxError"
    yield failed
    fork = episode(9, good=True)
    fork.fork = Fork("task-09#0", 1, (0,))
    yield fork
    disk = episode(10, good=False)
    first = FileChange("/a.txt", "added", "file", size=8, text="one\ntwo\nthree\n")
    second = FileChange("/a.txt", "modified", "file", size=8, text="one\n2\nthree\n")
    disk.turns[0] = Turn("echo", "", changes=changes(first))
    disk.turns[1] = Turn("echo", "", changes=changes(second, FileChange("/b", "deleted", "dir")))
    nodes = [{"parent": None}, {"parent": 0, "action": "left"}, {"parent": 0, "action": "right"}]
    disk.metadata["search"] = {"agent": "tree", "tried": 2, "chosen": 1, "nodes": nodes}
    yield disk


def hostile() -> Episode:
    made = Episode(f"evil {EVIL}", EVIL, "bash", agent=EVIL, status="submitted")
    info = {"cwd": EVIL, EVIL: EVIL}
    change = changes(FileChange(EVIL, "added", "file", text=EVIL))
    made.turns = [Turn(EVIL, EVIL, ok=False, info=info, changes=change)]
    made.answer, made.error = EVIL, EVIL
    made.score = Score(0.0, {EVIL: 0.0}, {EVIL: EVIL, "gold_output": EVIL, "reason": EVIL})
    messages = [{"role": "user", "content": f"```{EVIL}\n{EVIL}\n```\n# {EVIL}\n- {EVIL}"}]
    call = {"turn": 0, "reply": 0, "thought": EVIL, "error": EVIL}
    talk = {"messages": messages, "calls": [call], "tools": [{"name": EVIL}], "name": EVIL}
    nodes = [{"parent": None}, {"parent": 0, "action": EVIL, "lost": EVIL}]
    made.metadata = {
        "tags": [EVIL],
        "model": talk,
        "search": {"agent": EVIL, "chosen": 1, "nodes": nodes},
        "earlier": [talk],
        "judge": [talk],
        "image": EVIL,
        "ended_by": EVIL,
        "error_type": EVIL,
        EVIL: EVIL,
    }
    made.fork = Fork(EVIL, 0, (1,))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents A and B on 20 tasks; B solves more, and of some tasks others."""
    folder = tmp_path_factory.mktemp("viewed")
    for name, every in (("A", 3), ("B", 2)):
        run = begun(folder / name, tasks=20)
        append(run, *(episode(n, good=n % every == 0, word=f"w{n}") for n in range(20)))
    append(folder / "A", *special())
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.html"
    assert (
        main(["report", str(folder / "A"), str(folder / "B"), "--html", str(path), "--json"]) == 0
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


class Reader:
    """A tab, which counts clicks and takes note of errors."""

    def __init__(self, context: Any, url: str) -> None:
        self.clicks = 0
        self.problems: list[str] = []
        self.tab = context.new_page()
        self.tab.set_default_timeout(PATIENCE * 1000)
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", self._note)
        self.tab.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.tab.on("request", self._request)
        self.base, _, address = url.partition("#")
        self.go(address and f"#{address}")

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "blob:", "data:")):
            self.problems.append(f"asked for {request.url}")

    def go(self, address: str) -> None:
        self.tab.goto(self.base + address)
        self.tab.wait_for_selector("main h1")

    def click(self, role: str, name: str | re.Pattern[str], *, exact: bool = True) -> None:
        self.clicks += 1
        options = {"exact": exact} if isinstance(name, str) else {}
        self.tab.get_by_role(role, name=name, **options).first.click()

    def sees(self, text: str | re.Pattern[str]) -> None:
        self.tab.get_by_text(text).first.wait_for()

    def heading(self, text: str) -> None:
        self.tab.locator("main h1", has_text=text).wait_for()

    def rows(self, count: int) -> list[str]:
        """The names in the list, when there are so many rows."""
        grid = f'table.grid[aria-rowcount="{count + 1}"]'
        names: list[str] = []
        while not names:  # it may be drawn once more, with others, between two questions
            self.tab.wait_for_selector(grid)
            links = f"document.querySelectorAll('{grid} td.task a')"
            names = self.tab.evaluate(f"[...{links}].map((link) => link.innerText)")
        return names


@pytest.fixture
def read(browser: Any, page: Path) -> Iterator[Callable[..., Reader]]:
    """Opens a page; at the end nothing must have gone wrong in it."""
    readers: list[Reader] = []
    contexts = []

    def opened(url: str | None = None, **options: Any) -> Reader:
        contexts.append(browser.new_context(**options))
        readers.append(Reader(contexts[-1], url or page.as_uri()))
        return readers[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [problem for one in readers for problem in one.problems] == []


# Four tasks of a new reader, in at most four clicks each


def test_why_did_task_12_fail(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.click("link", "Tasks")
    reader.click("link", "task-11")  # the twelfth
    reader.sees("output: 1 line differs")
    added = reader.tab.locator(".why .pair td.added")
    assert {line.inner_text() for line in added.all()} == {"+\n12"}
    assert reader.clicks <= 4


def test_which_tasks_does_b_solve_that_a_does_not(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.click("link", re.compile(r"^[+\u2212]\d+\.\d"))
    reader.sees("Tasks that flipped")
    reader.click("button", re.compile("tasks better by B"))
    flipped = reader.tab.get_by_role("group", name="tasks that flipped")
    tasks = sorted(cell.inner_text() for cell in flipped.locator("tbody th").all())
    # 3, 7 and 9 are no different, 8 ended in an error.
    assert tasks == ["task-02", "task-04", "task-10", "task-14", "task-16"]
    statistics = reader.tab.get_by_role("group", name="Task by task: bash · fake")
    assert [row.inner_text().split()[0] for row in statistics.locator("tbody tr").all()] == ["B"]
    assert reader.clicks <= 4


def test_every_timeout(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.click("link", re.compile("^timeout"))
    assert reader.rows(2) == ["task-03", "task-07"]
    assert reader.clicks <= 4


def test_an_episode_is_sent_to_a_colleague(read: Callable[..., Reader], tmp_path: Path) -> None:
    reader = read()
    reader.click("link", "Episodes")
    reader.click("link", "task-01")
    with reader.tab.expect_download() as download:
        reader.click("button", "save to send")
    assert reader.clicks <= 4
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.stat().st_size < 200_000
    colleague = read(path.as_uri(), offline=True)
    colleague.click("link", "Episodes")
    assert colleague.rows(1) == ["task-01"]
    colleague.click("link", "task-01")
    colleague.sees("for f in *; do echo")
    assert "task-02" not in path.read_text()


# What there is to see


def test_lists_are_sorted_filtered_and_in_the_address(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.click("link", "Episodes")
    reader.rows(41)
    reader.tab.get_by_label("outcome").select_option("failed")
    reader.tab.get_by_label("run").select_option("B")
    assert len(reader.rows(10)) == 10
    reader.click("button", "cost")
    assert reader.rows(10)[:2] == ["task-19", "task-17"]
    reader.tab.get_by_role("columnheader", name="cost ↓").wait_for()
    reader.tab.get_by_label("search all texts").fill("cost<0.01 w7")
    assert reader.rows(1) == ["task-07"]
    address = reader.tab.url
    assert {"state=failed", "run=B", "sort=-cost"} <= set(address.partition("?")[2].split("&"))
    other = read(address)
    assert other.rows(1) == ["task-07"]
    other.click("link", "task-07")
    # The words that led here are marked.
    assert other.tab.locator("mark").first.inner_text() == "w7"
    other.tab.go_back()
    assert other.rows(1) == ["task-07"]
    other.click("link", "Runs")
    assert other.rows(2) == ["A", "B"]
    other.click("button", "success")
    other.tab.get_by_role("columnheader", name="success ↓").wait_for()
    assert other.rows(2) == ["B", "A"]
    other.tab.get_by_label("search runs").fill("success>0.4")
    assert other.rows(1) == ["B"]
    other.click("link", "Tasks")
    other.rows(20)
    other.tab.locator("select[name=level]").select_option("hard")
    other.tab.locator("select[name=solved]").select_option("sometimes")
    assert other.rows(6)[0] == "task-02"
    other.tab.get_by_label("search tasks").fill("Do **1")
    assert other.rows(3)


def test_every_number_leads_to_its_episodes(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.tab.locator("main .wide td a").nth(40).wait_for(state="attached")
    reader.tab.get_by_text("Side by side").click()
    reader.tab.get_by_role("group", name="Coverage").first.get_by_role("link").nth(1).click()
    reader.heading("Episodes")
    assert reader.rows(1) == ["task-08"]


def test_an_episode(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.go("#episode?run=A&id=task-10%230")
    reader.heading("task-10")
    tab = reader.tab
    # Text in form: Markdown, code, the terminal's colours; and all of it as it was sent.
    assert tab.locator(".markdown strong").first.inner_text() == "10"
    assert tab.locator(".markdown li").count() == 2
    assert tab.locator(".markdown pre").inner_text() == "echo hi"
    reader.go("#episode?run=A&id=task-11%230")
    reader.heading("task-11")
    assert tab.locator(".observation .ansi-red").inner_text() == "red"
    assert tab.locator("pre.action .code-keyword").first.inner_text() == "for"
    assert tab.locator("pre.action .code-comment").first.inner_text() == "# look"
    tab.get_by_text("messages to and from the model").click()
    assert tab.locator(".turns .message em").inner_text() == "brief"
    assert "reply 1.50 s" in tab.locator(".turn .meta").first.inner_text()
    reader.click("button", "raw texts")
    reader.sees("\\x1b[1;31mred")
    # A button copies a text as it is.
    tab.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.get_by_role("button", name="copy observation 2").click()
    assert tab.evaluate("window.copied").startswith("\x1b[1;31mred")
    # A turn has an address, too.
    reader.click("link", "turn 2")
    tab.locator(".turn.meant").wait_for()
    assert tab.url.endswith("&turn=2")
    other = read(tab.url)
    assert other.tab.locator(".turn.meant").get_attribute("aria-label") == "turn 2"


def test_changes_on_disk_forks_and_searches(read: Callable[..., Reader]) -> None:
    reader = read()
    tab = reader.tab
    reader.go("#episode?run=A&id=task-10%230")
    tab.get_by_text("4 paths changed on disk").click()
    tab.get_by_text("~ /a.txt").click()
    assert tab.locator(".diff .removed").inner_text().strip() == "- two"
    assert tab.locator(".diff .added").last.inner_text().strip() == "+ 2"
    assert tab.locator(".tree li.led").inner_text() == "✓ left"
    reader.go("#episode?run=A&id=task-09%230")
    reader.click("link", "task-09#0.0")
    reader.heading("task-09#0.0")
    assert tab.locator(".tree li li strong").inner_text() == "task-09#0.0"


def test_a_task_in_two_runs(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.go("#task?id=task-10&env=bash+%C2%B7+fake")
    reader.heading("task-10")
    assert reader.tab.locator(".beside h2 a").all_inner_texts() == ["A", "B"]
    turns = reader.tab.locator(".beside .turn[role=group]")
    assert turns.count() == 4
    places = [turns.nth(n).bounding_box() for n in range(4)]
    assert places[0]["y"] == places[1]["y"] and places[2]["y"] == places[3]["y"] > places[0]["y"]
    reader.tab.get_by_role("checkbox", name=re.compile("^A")).uncheck()
    turns.nth(2).wait_for(state="detached")


def test_keys_alone(read: Callable[..., Reader]) -> None:
    reader = read()
    keys = reader.tab.keyboard
    keys.press("4")
    reader.heading("Episodes")
    reader.rows(41)
    keys.press("j")
    keys.press("j")
    keys.press("ArrowDown")
    keys.press("k")
    keys.press("Enter")
    reader.heading("task-01")
    keys.press("j")
    reader.heading("task-02")
    keys.press("k")
    reader.heading("task-01")
    keys.press("Escape")
    reader.heading("Episodes")
    keys.press("/")
    reader.tab.locator("#words:focus").wait_for()
    keys.type("w19")
    reader.rows(2)
    keys.press("ArrowDown")
    keys.press("End")
    reader.tab.locator('tr[data-at="1"] a:focus').wait_for()
    keys.press("?")
    reader.tab.get_by_role("dialog").wait_for()
    keys.press("Escape")
    reader.tab.get_by_role("dialog").wait_for(state="hidden")
    keys.press("1")
    reader.heading("A, B")
    # The first key press leads past the views, for who cannot see them.
    reader.go("#runs")
    reader.tab.evaluate("document.activeElement.blur()")
    keys.press("Tab")
    reader.tab.locator(".skip:focus").wait_for()
    keys.press("Enter")
    reader.tab.locator("#main:focus").wait_for()


VIEWS = {
    "": "A, B",
    "#runs": "Runs",
    "#tasks": "Tasks",
    "#episodes": "Episodes",
    "#compare": "Compare runs",
    "#episode?run=A&id=task-10%230": "task-10",
    "#task?id=task-10": "task-10",
}


@pytest.mark.parametrize("theme", THEMES)
def test_who_cannot_see_it_well(read: Callable[..., Reader], theme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    reader = read(color_scheme=theme)
    for address, heading in VIEWS.items():
        reader.go(address)
        reader.heading(heading)
        reader.tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        found = Axe().run(reader.tab).response["violations"]
        told = [(one["id"], one["nodes"][0]["html"][:200], len(one["nodes"])) for one in found]
        assert told == [], address


def test_a_phone(read: Callable[..., Reader]) -> None:
    reader = read(viewport={"width": 390, "height": 800}, has_touch=True)
    for address, heading in VIEWS.items():
        reader.go(address)
        reader.heading(heading)
        assert reader.tab.evaluate("document.documentElement.scrollWidth") <= 390, address


def test_paper(read: Callable[..., Reader]) -> None:
    reader = read()
    reader.go("#episode?run=A&id=task-10%230")
    reader.heading("task-10")
    reader.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    reader.tab.emulate_media(media="print")
    assert reader.tab.locator("details:not([open])").count() == 0
    assert not reader.tab.locator("#views").is_visible()
    reader.go("#episodes")
    reader.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert len(reader.rows(41)) == 41, "all rows are printed, not only those in sight"


# Hostile output, many episodes, runs that go on


def test_hostile_output_is_text(read: Callable[..., Reader], tmp_path: Path) -> None:
    run = begun(tmp_path / "evil")
    manifest = json.loads((run / records.MANIFEST).read_text())
    manifest["agent"].update(name=EVIL, language_model={"model": EVIL})
    manifest["dataset"]["name"] = EVIL
    (run / records.MANIFEST).write_text(json.dumps(manifest))
    first = hostile()
    first.fork = None
    failed = hostile()
    failed.epoch, failed.status, failed.score, failed.fork = 1, "error", None, None
    append(run, first, hostile(), failed)
    other = begun(tmp_path / "other")
    (other / records.MANIFEST).write_text(json.dumps({**manifest, "seed": 1}))
    append(other, first)
    path = tmp_path / "evil.html"
    assert main(["report", str(run), str(other), "--html", str(path), "--json"]) == 0
    reader = read(path.as_uri())
    tab = reader.tab
    for address in ("", "#runs", "#tasks", "#compare", "#episodes"):
        reader.go(address)
        tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        assert tab.locator("main img, main script, main iframe, main [onerror]").count() == 0
    links = tab.locator("td.task a").evaluate_all("(all) => all.map((one) => one.hash)")
    assert len(links) == 4
    for link in (*links, *(f"{link}&raw=1" for link in links)):
        reader.go(link)
        tab.locator(".turn pre").first.wait_for()
        tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        tab.get_by_text("window.evil=1").first.wait_for()
        assert tab.locator("main img, main script, main iframe, main [onerror]").count() == 0
        assert tab.locator("main a:not([href^='#'])").count() == 0
        # No character of it steers anything, or turns other text around.
        assert not re.search(r"[\x00-\x08\x1b\u202e]", tab.locator("main").inner_text())
    assert tab.evaluate("window.evil") is None


def test_ten_thousand_episodes(read: Callable[..., Reader], tmp_path: Path) -> None:
    run = begun(tmp_path / "many", tasks=MANY)
    lines = []
    for number in range(MANY):
        made = Episode(f"n{number}", f"query {number}", "bash", turns=[Turn("ls", f"out {number}")])
        made.status, made.score, made.seconds = "submitted", Score(float(number % 2)), 1.0
        lines.append(made)
    append(run, *lines)
    path = tmp_path / "many.html"
    assert main(["report", str(run), "--html", str(path), "--json"]) == 0
    reader = read(path.as_uri() + "#episodes")
    assert reader.rows(MANY)[0] == "n0"
    assert reader.tab.locator("tbody tr").count() < 80, "only those in sight are elements"
    reader.tab.get_by_label("outcome").select_option("solved")
    assert reader.rows(MANY // 2)[:2] == ["n1", "n3"]
    reader.tab.locator("td.task a").first.focus()
    reader.tab.keyboard.press("End")
    reader.tab.locator("a:focus", has_text="n9999").wait_for()
    reader.tab.get_by_label("search all texts").fill("out 4321")
    assert reader.rows(1) == ["n4321"]
    reader.click("link", "n4321")
    reader.sees("out 4321")


def test_a_run_that_goes_on(read: Callable[..., Reader], tmp_path: Path) -> None:
    run = begun(tmp_path / "runs" / "one", tasks=30)
    append(run, *(episode(n, good=True) for n in range(3)))
    viewer = RunViewerServer(ViewerRuns([tmp_path / "runs"]))
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        reader = read(viewer.url)
        reader.sees(re.compile(r"live · 3 of 30"))
        reader.click("link", "Episodes")
        assert len(reader.rows(3)) == 3
        append(run, *(episode(n, good=n < 5, word="fresh") for n in range(3, 6)))
        assert len(reader.rows(6)) == 6
        reader.tab.get_by_label("outcome").select_option("failed")
        reader.tab.get_by_label("search all texts").fill("fresh")
        assert reader.rows(1) == ["task-05"]
        # What comes later is searched, too, and a new run is found.
        append(begun(tmp_path / "runs" / "two"), episode(7, good=False, word="fresh"))
        assert sorted(reader.rows(2)) == ["task-05", "task-07"]
        reader.click("link", "task-05")
        reader.sees("output: 1 line differs")
        # Nothing that a reader looks at is drawn once more.
        reader.tab.evaluate("document.querySelector('h1').dataset.same = '1'")
        append(run, episode(8, good=True))
        reader.sees(re.compile("live · 8 of"))
        assert reader.tab.locator("h1[data-same]").count() == 1
        reader.click("link", "Results")
        reader.tab.get_by_role("group", name="success by agent and environment").wait_for()
    finally:
        viewer.close()
        thread.join(PATIENCE)
    reader.sees("the server is not there")
    reader.problems = [one for one in reader.problems if "ERR_CONNECTION_REFUSED" not in one]
    reader.tab.close()
