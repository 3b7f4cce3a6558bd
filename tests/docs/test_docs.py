"""The documentation is true: its commands are run, its code too, its links lead somewhere.

What a page may contain, and what is done with it, in the page's own temporary folder and in order:

- a ``console`` block: each line that begins with ``$ `` is run by bash (``> `` goes on with it).
  It must exit with 0, or with N under ``<!-- exit N -->``. Lines without a prompt are output:
  each must be among what was printed, ``…`` standing for anything.
- a ``python`` block is run, and must not fail. What it prints is compared with the output that the
  page states (`docs.pages`), and its actions must succeed, or as many as
  ``<!-- failing actions: N -->`` says must fail.
- any block under ``<!-- file: NAME -->`` is written to that file, and not run.
- a block under ``<!-- not run: REASON -->`` is not run; ``make`` must still have its target.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import intercode
from docs.conftest import Readers
from docs.pages import OBSERVED, ROOT, Block, blocks, check_output, check_python, commands
from warm import Warm

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "packages/*/*.md", "skills/**/*.md")
    for page in ROOT.glob(pattern)
)
ADDED = {
    "docs/development/scripted-models.md": "intercode-gym[openai]",
    "docs/gym/models.md": "intercode-gym[openai]",
    "docs/gym/own-benchmark.md": "pytest",
    "docs/integrations/external-agents.md": "intercode-gym[yaml]",
    "docs/integrations/gateway.md": "intercode-gym[integrations,openai]",
    "docs/integrations/tools-and-mcp.md": "intercode-gym[keys]",
    "examples/data_copilot/README.md": "intercode-gym[postgresql]",
    "examples/skills/README.md": "intercode-gym[yaml]",
}
"""Page → what it tells the reader to install, and its blocks need."""
HOME = "https://github.com/intercode-gym/intercode"
SECONDS = 3000.0
"""For a command. `make demo` takes six, and two minutes on a machine that is busy with others."""


def recipe(target: str) -> str:
    """What a target of the Makefile runs, with the virtual environment on the PATH."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert match is not None, f"the Makefile has no target {target!r}"
    return re.sub(r"^\t@?", "", match[1], flags=re.MULTILINE).replace("$(BIN)/", "")


def run(warm: Warm, command: str, folder: Path, code: int, where: str) -> str:
    """What a command prints; it must exit with this code."""
    done = warm.run(
        ["bash", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        errors="backslashreplace",
    )
    assert done.returncode == code, f"{where}: {command}: exit {done.returncode}:\n{done.stdout}"
    return done.stdout


def run_console(warm: Warm, block: Block, folder: Path) -> None:
    code = int(block.marks.get("exit", "0"))
    for command, shown in commands(block):
        made = re.fullmatch(r"make ([\w-]+)", command)
        output = run(warm, recipe(made[1]) if made else command, folder, code, block.where)
        check_output(shown, output, block.where)


def run_python(warm: Warm, block: Block, folder: Path) -> None:
    script = folder / f"block_{block.line}.py"
    script.write_text(block.text, encoding="utf-8")
    command = f"python {OBSERVED} {script.name}"
    check_python(block, run(warm, command, folder, 0, block.where))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_to_do_works(page: Path, tmp_path: Path, readers: Readers) -> None:
    added = ADDED.get(str(page.relative_to(ROOT)))
    assert not added or re.search(rf"pip install '?{re.escape(added)}", page.read_text())
    warm = readers(added) if added else readers()
    if page.parent.name == "nginx" and os.geteuid() != 0:
        pytest.skip("not for an ordinary user: nginx has users of its own")
    if page.is_relative_to(ROOT / "examples"):
        made = shutil.ignore_patterns("__pycache__")  # maybe just now, by another test
        shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True, ignore=made)
    for block in blocks(page):
        if name := block.marks.get("file"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(block.text, encoding="utf-8")
        elif reason := block.marks.get("not run"):
            assert len(reason) >= 10, f"{block.where}: say why it is not run"
            for target in re.findall(
                r"^(?:\$ |> )?make ([a-z][a-z0-9-]*)", block.text, re.MULTILINE
            ):
                recipe(target)
        elif block.language == "console":
            run_console(warm, block, tmp_path)
        elif block.language == "python":
            run_python(warm, block, tmp_path)


@pytest.mark.parametrize(
    ("statement", "stated", "reason"),
    [
        ("SELECT 42 AS answer", "42", ""),
        ("SELECT 42 AS answer", "43", "nothing printed is like ' 43'"),
        ("SELECT 42 AS answer, NULL AS nothing", "Error …", "0 actions may fail"),
    ],
)
def test_a_python_block_is_compared_with_what_it_does(
    warm: Warm, tmp_path: Path, statement: str, stated: str, reason: str
) -> None:
    """The third statement stood in README: NOTHING is a keyword of SQLite."""
    lines = [
        "import intercode",
        'env = intercode.make("sql")',
        "env.reset(seed=0)",
        f'observation, *_ = env.step("{statement}")',
        "print(observation)",
        f"# {stated}",
        "",
        "# A comment without a print above it.",
        "env.close()",
    ]
    block = Block(ROOT / "README.md", 1, "python", lines)
    with pytest.raises(AssertionError, match=reason) if reason else contextlib.nullcontext():
        run_python(warm, block, tmp_path)


def headings(page: Path) -> set[str]:
    """The anchors that a page has, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        local = re.sub(rf"^{HOME}/(blob|tree)/main/", f"{ROOT}/", target)
        if re.match(r"[a-z]+:", local):
            continue
        name, _, anchor = local.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor:
            assert anchor in headings(path), f"{page.relative_to(ROOT)} links to {target}"


def test_the_pages_that_sources_name_are_there() -> None:
    page_pattern = re.compile(r"(?<![\w/.])(docs/(?:[\w-]+/)*[\w-]+\.md)(?:#([\w-]+))?")
    sources = [
        path
        for pattern in (
            "packages/*/src/**/*.py",
            "benchmarks/**/*.py",
            "tests/**/*.py",
            "scripts/*",
        )
        for path in ROOT.glob(pattern)
        if path.is_file()
    ]
    references = [
        (path, *match) for path in sources for match in page_pattern.findall(path.read_text())
    ]
    assert len(references) > 20
    for path, page, anchor in references:
        where = f"{path.relative_to(ROOT)}: {page}#{anchor}"
        assert (ROOT / page).exists(), where
        assert not anchor or anchor in headings(ROOT / page), where


def test_the_pages_written_by_hand_are_few_and_short() -> None:
    """Generated pages and those for developers are left out."""
    folder = ROOT / "docs"
    pages = [
        page
        for page in folder.rglob("*.md")
        if page.relative_to(folder).parts[0] not in ("cli", "development")
        and page.name != "gateway-fields.md"
    ]
    generated = re.compile(r"<!-- begin: .*?<!-- end: |<!--.*?-->", re.DOTALL)
    words = sum(len(generated.sub("", page.read_text()).split()) for page in pages)
    assert len(pages) <= 45 and words <= 50_000, (len(pages), words)


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (page.parent / name).resolve()
        for page in (index, ROOT / "docs" / "cli" / "index.md")
        for name in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
    }
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert pages <= linked, sorted(str(page) for page in pages - linked)


def test_the_tests_that_the_table_of_defences_names() -> None:
    text = (ROOT / "docs/development/sandbox.md").read_text(encoding="utf-8")
    rows = text.split("## Comparison with other sandboxes")[1].split("\n## ")[0].split("\n|")[3:]
    cells = [row.rstrip(" |\n").rpartition("|")[2] for row in rows]
    assert len(cells) > 15 and sum("`" not in cell for cell in cells) == 1  # one has none
    for cell in cells:
        source = ""
        for file, test in re.findall(r"`(?:(test_\w+\.py)(?:::)?)?(\w*)`", cell):
            source = (
                (ROOT / "packages/sandbox/tests/sandbox" / file).read_text() if file else source
            )
            assert f"def {test}" in source, cell


def test_the_pages_of_the_commands_are_up_to_date(tmp_path: Path) -> None:
    # In a process without the names that other tests register.
    subprocess.run([sys.executable, str(ROOT / "scripts/cli-pages"), str(tmp_path)], check=True)
    pages = ROOT / "docs" / "cli"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) > 20 and names == sorted(path.name for path in pages.iterdir())
    for name in names:
        assert (pages / name).read_text() == (tmp_path / name).read_text(), "run scripts/cli-pages"


def test_the_page_of_the_python_api_has_every_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"`(\w+)[`(]", page))
    assert {name for name in intercode.__all__ if not name.endswith("Error")} <= named
    errors = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert all(f"`{name}`" in errors for name in intercode.__all__ if name.endswith("Error"))


def test_the_site_has_a_page_of_each_module_and_each_public_name_in_it() -> None:
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_api.py"))
    found = {module: hooks["public_names"](module) for module in hooks["modules"]()}
    for module, names in found.items():
        there = importlib.import_module(module)
        assert names and all(hasattr(there, name) for name in names), module
        declared = {*getattr(there, "__all__", names)} - {"__version__"}
        assert declared == {*names}, module
    assert len(found) > 8 and found["intercode"]


def test_the_glossarys_words_are_used() -> None:
    page = ROOT / "docs" / "gym" / "glossary.md"
    words = re.findall(r"^\| \*\*([\w ]+)\*\* \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(words) > 50 and len({*words}) == len(words)
    others = "".join(other.read_text(encoding="utf-8").lower() for other in PAGES if other != page)
    assert not [word for word in words if not re.search(rf"\b{word}", others)]


def test_the_gallery_has_every_example() -> None:
    gallery = (ROOT / "docs" / "gym" / "datasets.md").read_text(encoding="utf-8")
    examples = ROOT / "examples"
    found = [path for path in examples.iterdir() if path.name[0] not in "._"]
    found += examples.glob("integrations/*.py")
    missing = [
        path.name for path in found if f"/examples/{path.relative_to(examples)}" not in gallery
    ]
    assert not missing, f"docs/gym/datasets.md#examples has no line for {missing}"


def test_the_recording_is_of_the_commands_beside_it() -> None:
    recorder = runpy.run_path(str(ROOT / "scripts" / "record-terminal"))
    drawn = ET.parse(ROOT / "docs" / "images" / "terminal.svg").getroot()
    texts = (text for text in drawn.iter() if text.tag.endswith("}text"))
    lines: dict[str, str] = {}
    for text in texts:
        line = text.get("clip-path", "")
        lines[line] = lines.get(line, "") + (text.text or "")
    shown = [" ".join(line.split()) for line in lines.values()]
    assert recorder["commands"]()
    assert [line[2:] for line in shown if line.startswith("$ intercode")] == recorder["commands"]()


def test_make_demo_does_what_the_first_run_shows() -> None:
    text = (ROOT / "docs" / "gym" / "first-run.md").read_text(encoding="utf-8")
    assert "$ intercode demo " in text and "`make demo`" in text
    assert recipe("demo") == "intercode demo\n"


def test_readme_has_at_most_900_words() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.sub(r"<!-- figures:[^>]*-->", "", text).split()) <= 900


def test_the_picture_is_well_formed() -> None:
    assert ET.parse(ROOT / "docs" / "picture.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("example", ["gym_loop.py", "vector_training.py"])
def test_an_example_runs(example: str, tmp_path: Path, warm: Warm) -> None:
    output = run(warm, f"python {ROOT / 'examples' / example}", tmp_path, 0, example)
    assert "reward" in output


def test_the_example_of_an_agent_runs(tmp_path: Path, warm: Warm) -> None:
    agent = ROOT / "examples" / "custom_agent.py"
    tasks = ROOT / "examples" / "own_tasks" / "tasks.json"
    output = run(
        warm,
        f"intercode run bash --agent {agent}:make --data {tasks} --json --quiet",
        tmp_path,
        0,
        "custom_agent.py",
    )
    assert '"success_rate": 1.0' in output
