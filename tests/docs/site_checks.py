"""The built site: `make test-site` builds it, and runs these checks.

Their name is not `test_…`, since other suites have no mkdocs.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from docs.pages import ROOT, blocks, commands

SITE = ROOT / "site"
HOME = "https://github.com/intercode-gym/intercode"
CHROMIUM = shutil.which("chromium")
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")
REQUESTS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\""
    r"|<link\b(?=[^>]*rel=\"(?:stylesheet|icon|preconnect|preload)\")[^>]*\bhref=\"([^\"]+)\""
    r"|url\(([^)]+)\)|@import \"([^\"]+)\""
)
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
TOP = {"install": "install.html", "timeout": "sandbox/use.html", "cite": "cite.html"}
"""Word → page that the search has to list first."""


def relative(path: Path) -> str:
    return str(path.relative_to(SITE))


def sources() -> list[Path]:
    """The pages of docs/, by their files."""
    return sorted((ROOT / "docs").rglob("*.md"))


def site_file(source: Path, ending: str) -> Path:
    """The file of a page in the site."""
    name = str(source.relative_to(ROOT / "docs").with_suffix(ending))
    return SITE / ("index" + ending if name == "README" + ending else name)


def test_each_page_has_its_markdown() -> None:
    assert len(PAGES) > 100
    assert not [relative(page) for page in PAGES if not page.with_suffix(".md").exists()]
    for source in sources():
        text = site_file(source, ".md").read_text(encoding="utf-8")
        title = source.read_text(encoding="utf-8").splitlines()[0]
        assert text.startswith(title) and "<!-- not run" not in text, source
    for module in ("intercode", "intercode_sandbox"):
        text = (SITE / "api" / f"{module}.md").read_text(encoding="utf-8")
        assert ":::" not in text and "```python\nimport " in text
    intercode = (SITE / "api" / "intercode.md").read_text(encoding="utf-8")
    assert "def make(env: str | Path" in intercode and "- `reset(" in intercode


def test_a_page_names_its_markdown() -> None:
    page = (SITE / "gym" / "train.html").read_text(encoding="utf-8")
    assert '<link rel="alternate" type="text/markdown" href="train.md">' in page


def test_links_between_markdown_pages_lead_somewhere() -> None:
    for page in PAGES:
        text = page.with_suffix(".md").read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            local = re.sub(rf"^{HOME}/(blob|tree)/main/", f"{ROOT}/", target)
            if not re.match(r"[a-z]+:|#", local):
                path = page.parent / local.partition("#")[0]
                assert path.exists(), f"{relative(page)}: {target}"


def test_llms_txt_lists_every_page_with_a_description() -> None:
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    summary = re.search(r"^site_description: (.*)$", config, re.MULTILINE)
    assert summary is not None
    assert text.startswith(f"# InterCode\n\n> {summary[1]}\n\n- [")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[:4] == ["Start", "Gym", "Sandbox", "Integrations"]
    assert sections[-1] == "Optional"
    entries = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (.*\w.*)$", text, re.MULTILINE)
    assert len(entries) == text.count("\n- ")
    assert sorted(name for name, _ in entries) == sorted(
        relative(page.with_suffix(".md")) for page in PAGES
    )
    assert all(len(description) > 8 for _, description in entries)


def test_llms_full_txt_has_the_text_of_every_page() -> None:
    text = (SITE / "llms-full.txt").read_text(encoding="utf-8")
    for page in PAGES:
        name = page.with_suffix(".md")
        assert f"<!-- {relative(name)} -->\n\n{name.read_text(encoding='utf-8')}" in text


def test_no_page_requests_anything_from_another_host() -> None:
    files = [*PAGES, SITE / "404.html", *SITE.rglob("*.css")]
    requests = set()
    for file in files:
        for groups in REQUESTS.findall(file.read_text(encoding="utf-8")):
            target = html.unescape("".join(groups)).strip("\"'")
            if target.startswith("#") or target.startswith("data:"):
                continue
            requests.add(target)
            parts = urlsplit(target)
            assert not parts.netloc, f"{relative(file)}: {target}"
            path = file.parent / unquote(parts.path)
            if parts.path.startswith("/"):  # of the page of errors
                path = SITE / parts.path.lstrip("/")
            assert path.exists(), f"{relative(file)}: {target}"
    assert len(requests) > 10


def test_the_theme_does_not_look_up_the_repository() -> None:
    assert not [page for page in PAGES if 'data-md-component="source"' in page.read_text()]


def test_a_console_block_is_copied_as_its_commands() -> None:
    count = 0
    for source in sources():
        expected = [
            "\n".join(command for command, _ in commands(block))
            for block in blocks(source)
            if block.language == "console"
        ]
        page = site_file(source, ".html").read_text(encoding="utf-8")
        pattern = r'<div class="language-console highlight"(?: data-copy="([^"]*)")?>'
        copies = [html.unescape(text) for text in re.findall(pattern, page)]
        indented = re.findall(r"^ +```console", source.read_text(encoding="utf-8"), re.MULTILINE)
        assert [text for text in copies if text in expected] == expected, source
        assert len(copies) == len(expected) + len(indented), source
        count += len(copies)
    assert count > 50


def test_the_landing_page_has_code_picture_and_three_cards() -> None:
    page = (SITE / "index.html").read_text(encoding="utf-8")
    window = re.search(r'<div class="window">(.*?)</header>', page, re.DOTALL)
    assert window is not None
    assert "intercode-bash-v0" in window[1] and window[1].count("language-python") == 1
    doors = re.findall(r'<div class="door door--(\w+)">(.*?)\n  </div>', page, re.DOTALL)
    assert [name for name, _ in doors] == ["evaluate", "train", "build"]
    for _, text in doors:
        assert len(re.findall(r'<a href="(?:gym|integrations|results)', text)) >= 4
    assert re.search(r'<div class="diagram"[^>]*><p><img [^>]*src="picture.svg"', page)
    assert page.count("<h1") == 1 and "Why InterCode" in page


def test_an_api_page_begins_with_import_summary_and_names() -> None:
    page = (SITE / "api" / "intercode.html").read_text(encoding="utf-8")
    article = page.split("<article")[1]
    places = [
        article.index(part)
        for part in ("<h1", "Interactive coding with", "language-python", "<table", "<h2", "<h3")
    ]
    assert places == sorted(places)
    rows = re.findall(r"<td><a [^>]*><code>(\w+)</code></a></td>", article)
    assert rows[:3] == ["make", "make_vec", "InterCodeEnv"]
    assert "::</p>" not in article and "Forkable[" not in article
    pattern = r'doc-signature highlight"><pre><span></span><code><span class="nf">(\w+)<'
    signatures = re.findall(pattern, article)
    assert signatures[:2] == ["make", "make_vec"] and "load_dataset" in signatures
    titles = re.findall(r'<h2 id="[^"]*">([^<]*)<', article)
    assert titles == ["Environments", "Tasks", "Episodes", "Sandboxes and tools", "Errors"]


def test_the_search_has_no_page_of_the_classes_of_2023() -> None:
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    names = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {relative(page) for page in PAGES}
    assert pages - names == {"api/intercode_paper.compat.html"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        # The suite names the package. Before a landing, its absence must not look like success.
        (pytest.fail if "CI" in os.environ else pytest.skip)("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of the site, opened as a file, which requests nothing else."""
    width, height = SIZES[getattr(request, "param", "desktop")]
    context = browser.new_context(viewport={"width": width, "height": height})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    yield page
    assert not [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    context.close()


@pytest.mark.parametrize("word", TOP)
def test_the_search_lists_first(word: str, page: Any) -> None:
    page.goto((SITE / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially(word)
    first = page.locator(".md-search-result__item a").first
    first.wait_for()
    assert f"/{TOP[word]}?" in first.get_attribute("href")


def test_the_copy_button_copies_commands_only(page: Any) -> None:
    page.goto((SITE / "gym" / "first-run.html").as_uri())
    button = page.locator(".language-console .md-code__button").first
    button.click()
    page.locator(".md-dialog--active").wait_for()
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<textarea id=paste>')")
    page.locator("#paste").press("Control+V")
    assert page.locator("#paste").input_value() == "intercode doctor"


@pytest.mark.parametrize("page", SIZES, indirect=True)
@pytest.mark.parametrize(
    "name", ["index", "gym/first-run", "gym/agents", "sandbox/security", "api/intercode", "cli/run"]
)
def test_no_page_is_wider_than_the_window(name: str, page: Any) -> None:
    page.goto((SITE / f"{name}.html").as_uri())
    page.locator("article h1").wait_for()
    width, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window


def test_a_page_with_a_wide_table_has_room_for_it(page: Any) -> None:
    widths = []
    for name in ("gym/agents", "gym/first-run"):
        page.goto((SITE / f"{name}.html").as_uri())
        page.locator("article h1").wait_for()
        widths.append(page.locator("article").bounding_box()["width"])
    assert widths[0] > widths[1] * 1.2


@pytest.mark.parametrize(("scheme", "colours"), [("default", "light"), ("slate", "dark")])
def test_the_picture_follows_the_choice_of_light_or_dark(
    scheme: str, colours: str, page: Any
) -> None:
    assert "prefers-color-scheme: dark" in (SITE / "picture.svg").read_text(encoding="utf-8")
    page.goto((SITE / "index.html").as_uri())
    page.evaluate("name => document.body.setAttribute('data-md-color-scheme', name)", scheme)
    image = page.locator(".diagram img")
    assert image.evaluate("image => getComputedStyle(image).colorScheme") == colours
