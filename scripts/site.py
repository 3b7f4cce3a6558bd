"""Hooks of mkdocs: the site says the same as the files of docs/, of which nothing is kept twice.

- The navigation is the list of pages in docs/README.md, under its headings; the pages of the
  commands are those of docs/cli/index.md.
- A link out of docs/, as to an example, leads into the repository.
- Each module in the table of docs/api.md has a page of its public names, with types.
- Markdown that mkdocs reads otherwise than GitHub does is a warning, so `--strict` refuses it.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parents[1]
INDEX, API, COMMANDS = "README.md", "api.md", "cli/index.md"
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the index: a section for each heading that has a list of pages."""
    nav: list[Any] = [INDEX]
    text = (Path(config.docs_dir) / INDEX).read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        own, *groups = rest.split("\n### ")
        pages: list[Any] = listed(own)
        for group in groups:
            name, _, lines = group.partition("\n")
            pages.append({name: listed(lines)})
        if pages:
            nav.append({title: pages})
    config.nav = nav
    return config


def listed(text: str) -> list[Any]:
    """Return the pages that a list names, in order; each of the API's modules follows its page."""
    pages: list[Any] = []
    for page in re.findall(r"^- .*?\]\(([^)#\s]+\.md)\)", text, re.MULTILINE):
        pages.append(page)
        if page == API:
            pages.append({"Public names": [{name: path(name)} for name in modules()]})
        if page == COMMANDS:
            pages.append({"Commands": commands()})
    return pages


def commands() -> list[str]:
    """Return the pages that the index of the commands names, in its order."""
    text = (ROOT / "docs" / COMMANDS).read_text(encoding="utf-8")
    return [f"cli/{name}" for name in re.findall(r"\]\((\w+\.md)\)", text)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API, which exist in the site only."""
    from mkdocs.structure.files import File

    for module in modules():
        text = f"# {module}\n\n" + "".join(
            f"::: {source}\n    options: {{ heading: {name}, toc_label: {name} }}\n\n"
            for name, source in public_names(module).items()
        )
        files.append(File.generated(config, path(module), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ into the repository, and the API's table to its pages."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", here, found[2]))
        if target.startswith("docs/"):
            return found[0]
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{found[1]}{config.repo_url}/{kind}/main/{target}{found[3] or ''})"

    if page.file.src_uri == API:
        for module in modules():
            to = posixpath.relpath(path(module), here)
            markdown = markdown.replace(f"| `{module}` |", f"| [`{module}`]({to}) |")
    return LINK.sub(lead, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn of lists and blocks of code that GitHub shows, and that have become text here."""
    text = re.sub(r"<(code|pre).*?</\1>", "", html, flags=re.DOTALL)
    if found := re.search(r"<p>(?:(?!</p>).)*?\n([-*] |\d\. |```|\|)[^\n]*", text, re.DOTALL):
        log.warning("%s: no list, table or block of code: %s", page.file.src_uri, found[0][-80:])
    return html


def modules() -> list[str]:
    """Return `intercode` and the modules that the page of the API has in its table."""
    text = (ROOT / "docs" / API).read_text(encoding="utf-8")
    return ["intercode", *re.findall(r"^\| `(intercode[_.][\w.]+)` \|", text, re.MULTILINE)]


def path(module: str) -> str:
    """Return the page of a module."""
    return f"api/{module}.md"


def public_names(module: str) -> dict[str, str]:
    """Return the names of a module's `__all__`, or else its own classes and functions.

    Returns:
        Name → where it is defined: a table `PUBLIC_NAMES` says that of names that are imported at
        their first use.
    """
    name = module.replace(".", "/")
    files = (f"packages/*/src/{name}.py", f"packages/*/src/{name}/__init__.py")
    file = next(file for pattern in files for file in ROOT.glob(pattern))
    body = ast.parse(file.read_text(encoding="utf-8")).body
    tables = {ast.unparse(n.targets[0]): n.value for n in body if isinstance(n, ast.Assign)}
    if "PUBLIC_NAMES" in tables:
        sources = ast.literal_eval(tables["PUBLIC_NAMES"])
        return {name: source.replace(":", ".") for name, source in sources.items()}
    if "__all__" in tables:
        names = [name for name in ast.literal_eval(tables["__all__"]) if name[:2] != "__"]
    else:
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    return {name: f"{module}.{name}" for name in names}
