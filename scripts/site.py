"""Hooks of mkdocs: the site has the content of docs/, of which nothing is kept twice.

- The navigation is the list of pages in docs/README.md, under its headings; the pages of the
  commands are those of docs/cli/index.md.
- The landing page has the sections of docs/README.md and the reasons of README.md, in the layout
  of scripts/theme/landing.html.
- A link out of docs/, for instance to an example, leads into the repository.
- Each module in the table of docs/api.md has a page of its public names (scripts/site_api.py).
- The copy button of a console block copies its commands, without prompts and outputs.
- Markdown that mkdocs reads otherwise than GitHub does is a warning, so `--strict` refuses it.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import site_api

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parents[1]
INDEX, API, COMMANDS = "README.md", "api.md", "cli/index.md"
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
CONSOLE = re.compile(r'<div class="language-console highlight">(.*?)</div>', re.DOTALL)
BOOSTS = {
    "install.md": 8,
    "cite.md": 8,
    "troubleshooting.md": 4,
    "sandbox/use.md": 12,
    "cli/": 0.5,
    "api/": 0.01,
    "development/": 0.1,
    "README.md": 0.1,
}
"""Weights of pages, or of folders, in the search; the weight of other pages is 1."""
NOT_SEARCHED = "api/intercode_paper"
"""The classes of 2023 repeat names of the current ones."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index: a section for each heading that has a list of pages."""
    nav: list[Any] = [{"Home": INDEX}]
    text = (Path(config.docs_dir) / INDEX).read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        list_text, *groups = body.split("\n### ")
        pages: list[Any] = list_pages(list_text)
        for group in groups:
            name, _, lines = group.partition("\n")
            pages.append({name: list_pages(lines)})
        if pages:
            nav.append({title: pages})
    config.nav = nav
    return config


def list_pages(text: str) -> list[Any]:
    """Return the pages that a list names, in order; each of the API's modules follows its page."""
    pages: list[Any] = []
    for page in re.findall(r"^- .*?\]\(([^)#\s]+\.md)\)", text, re.MULTILINE):
        pages.append(page)
        if page == API:
            names = site_api.modules()
            pages.append({"Modules": [{name: site_api.path(name)} for name in names]})
        if page == COMMANDS:
            pages.append({"Commands": list_commands()})
    return pages


def list_commands() -> list[str]:
    """Return the pages that the index of the commands names, in its order."""
    text = (ROOT / "docs" / COMMANDS).read_text(encoding="utf-8")
    return [f"cli/{name}" for name in re.findall(r"\]\((\w+\.md)\)", text)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API, which exist in the site only."""
    from mkdocs.structure.files import File

    for module in site_api.modules():
        page = site_api.page(module)
        files.append(File.generated(config, site_api.path(module), content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Resolve links out of docs/, and set the page's weight in the search and its template."""
    name = page.file.src_uri
    folder = posixpath.dirname(name)
    weights = [weight for prefix, weight in BOOSTS.items() if name.startswith(prefix)]
    page.meta["search"] = {
        "boost": weights[0] if weights else 1,
        "exclude": name.startswith(NOT_SEARCHED),
    }
    if name == INDEX:
        page.meta["template"] = "landing.html"
        page.meta["hide"] = ["navigation", "toc"]
        markdown += "\n## Why InterCode\n" + reasons()
    if name == API:
        for module in site_api.modules():
            target = posixpath.relpath(site_api.path(module), folder)
            markdown = markdown.replace(f"| `{module}` |", f"| [`{module}`]({target}) |")
    return resolve_links(markdown, folder, config.repo_url or "")


def resolve_links(markdown: str, folder: str, repository: str) -> str:
    """Replace the links out of docs/ by links into the repository."""

    def resolve(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{link[1]}{repository}/{kind}/main/{target}{link[3] or ''})"

    return LINK.sub(resolve, markdown)


def reasons() -> str:
    """Return the list of reasons in README.md, with links as in docs/README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("\n## Why InterCode\n")[1].split("\n## ")[0]
    return section.replace("](docs/", "](")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the commands of console blocks, and warn of Markdown that is read otherwise."""
    text = re.sub(r"<(code|pre).*?</\1>", "", html, flags=re.DOTALL)
    if problem := re.search(r"<p>(?:(?!</p>).)*?\n([-*] |\d\. |```|\|)[^\n]*", text, re.DOTALL):
        log.warning("%s: no list, table or block of code: %s", page.file.src_uri, problem[0][-80:])
    html = CONSOLE.sub(mark_commands, html)
    # A match in a program says little, and its page has the name in a sentence or a table, too.
    html = html.replace(
        'language-python highlight"', 'language-python highlight" data-search-exclude'
    )
    name = page.file.src_uri
    if name.startswith("api/"):
        html = site_api.rename_signatures(html, name.removeprefix("api/").removesuffix(".md"))
    return html.replace("::</p>", ":</p>")  # of docstrings, in front of an example


def mark_commands(block: re.Match[str]) -> str:
    """Add the text for the copy button to a console block."""
    lines = html.unescape(re.sub(r"<[^>]+>", "", block[1])).splitlines()
    commands = "\n".join(line[2:] for line in lines if line.startswith(("$ ", "> ")))
    attribute = f' data-copy="{html.escape(commands)}"' if commands else ""
    return block[0].replace(">", f"{attribute}>", 1)


def on_page_context(
    context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation
) -> dict[str, Any]:
    """Give the template of the landing page the parts of docs/README.md."""
    if page.file.src_uri != INDEX:
        return context
    opening, *sections = re.split(r'<h2 id="', page.content or "")
    opening, picture = take(r"<p>\s*<img .*?</p>", re.sub(r"<h1.*?</h1>", "", opening))
    context |= {"opening": opening, "picture": picture, "sections": {}}
    for section in sections:
        heading, _, content = section.partition("</h2>")
        identifier, _, title = heading.partition('">')
        title, _ = take(r"<a .*", title)
        if identifier == "a-first-result":
            content, context["code"] = take(r'<div class="language-python.*?</div>', content)
            content, _ = take(r"<p>Or .*?</p>", content)
            content, context["terminal"] = take(r"<p>\s*<img .*?</p>", content)
        if identifier == "why-intercode":
            content, context["chart"] = take(r"<p>\s*<img .*?</p>", content)
        context["sections"][identifier] = {"title": title, "content": content}
    return context


def take(pattern: str, text: str) -> tuple[str, str]:
    """Return a text without its first match, and the match."""
    if match := re.search(pattern, text, re.DOTALL):
        return text[: match.start()] + text[match.end() :], match[0]
    return text, ""
