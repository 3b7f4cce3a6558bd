"""Hooks of mkdocs: the site as Markdown, for language models and their tools.

Each page `name.html` has its Markdown beside it, in `name.md`. `llms.txt` lists all pages with
their descriptions, in the form of llmstxt.org; `llms-full.txt` holds their texts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import site_api

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

INDEX = "README.md"
MARK = re.compile(r"^ *<!-- .*? -->\n", re.MULTILINE)
OPTIONAL = "Development"
"""The section that llms.txt calls Optional: a reader with little room can skip it."""
SECTIONS: dict[str, list[Page]] = {}
"""Section of the navigation → its pages, in order."""
DESCRIPTIONS: dict[str, str] = {}
"""Page → description in the lists of docs/README.md."""
INDEX_LINK = re.compile(r"(\]\((?![a-z]+:)[^)\s]*)README\.md(?=[)#])")
"""A link to the index, which the site has under another name. An address is none."""
TEXTS: dict[str, str] = {}
"""Page → Markdown."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Read the sections of the navigation, and the descriptions of pages in the index."""
    SECTIONS.clear()
    for page in nav.pages:
        titles = [section.title or "" for section in page.ancestors]
        SECTIONS.setdefault(titles[-1] if titles else "", []).append(page)
    text = (Path(config.docs_dir) / INDEX).read_text(encoding="utf-8")
    lines = re.findall(r"^- \[.*?\]\(([^)]+\.md)\)[:,] (.+)$", text, re.MULTILINE)
    DESCRIPTIONS.update(lines)
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the Markdown of a page, without the marks of its tests, and set its description."""
    name = page.file.src_uri
    text = markdown
    if name.startswith("api/"):
        text = site_api.markdown(name.removeprefix("api/").removesuffix(".md"))
    TEXTS[name] = INDEX_LINK.sub(r"\1index.md", MARK.sub("", text)).strip() + "\n"
    page.meta["description"] = describe(name)
    page.meta["markdown"] = path(page)
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown of all pages, and the two lists."""
    site = Path(config.site_dir)
    listing = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    full = []
    for section, pages in SECTIONS.items():
        if section:
            listing.append(f"\n## {'Optional' if section == OPTIONAL else section}\n\n")
        else:
            listing.append("\n")
        for page in pages:
            text = TEXTS[page.file.src_uri]
            (site / path(page)).write_text(text, encoding="utf-8")
            listing.append(f"- [{page.title}]({path(page)}): {page.meta['description']}\n")
            full.append(f"<!-- {path(page)} -->\n\n{text}")
    (site / "llms.txt").write_text("".join(listing), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")


def path(page: Page) -> str:
    """Return the path of a page's Markdown in the site."""
    return re.sub(r"\.html$", ".md", page.file.dest_uri)


def describe(name: str) -> str:
    """Return a page's description in the index, or else its first sentence, without links."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", TEXTS[name], flags=re.DOTALL))
    texts = [text for text in paragraphs if text.strip() and text.lstrip()[0] not in "#|<!-"]
    first = re.split(r"(?<=[.:]) ", " ".join(texts[0].split()) if texts else name)[0]
    text = DESCRIPTIONS.get(name, re.sub(":$", ".", first))
    return re.sub(r"\[(.*?)\]\([^)]*\)", r"\1", text).replace("`", "").replace('"', "'")
