"""Documents of the project as pages: README, CHANGELOG and others whole, DESIGN in chapters."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["DOCUMENTS", "MADE", "Document", "anchor", "chapters", "linked", "write_pages"]

ROOT = Path(__file__).parents[3]
MADE = "made"
"""Folder of ``docs`` that is written anew by every build, and not in the repository."""
CODE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
"""A link or, after an exclamation mark, a picture; its text may go over lines."""
MEANT = re.compile(r"^\[(\w+)\]: (\S+)$", re.MULTILINE)
"""Where a link by name leads."""


@dataclass(frozen=True)
class Document:
    """A document of the project that the site shows."""

    path: str
    """File, from the project's folder."""
    page: str
    """Name of its page; of its first one, where it has chapters."""
    has_chapters: bool = False
    """Each of its second-level headings begins a page."""


DOCUMENTS = (
    Document("README.md", f"{MADE}/readme"),
    Document("CHANGELOG.md", f"{MADE}/changelog"),
    Document("CONTRIBUTING.md", f"{MADE}/contributing"),
    Document("SECURITY.md", f"{MADE}/security"),
    Document("largek_dask/DESIGN.md", f"{MADE}/design/index", has_chapters=True),
)


def anchor(heading: str) -> str:
    """What a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def chapters(document: Document) -> dict[str, str]:
    """Text of each page of a document, by the page's name."""
    text = (ROOT / document.path).read_text()
    if not document.has_chapters:
        return {document.page: text}
    names = dict(MEANT.findall(text))
    first, *parts = re.split(r"^## ", MEANT.sub("", text), flags=re.MULTILINE)
    folder = posixpath.dirname(document.page)
    pages = {f"{folder}/{anchor(part.splitlines()[0])}": f"# {part}" for part in parts}
    # A list of contents is what the site's own navigation is.
    pages.pop(f"{folder}/contents", None)
    for page, part in pages.items():
        used = sorted({name for name in re.findall(r"\]\[(\w+)\]", part) if name in names})
        pages[page] = part + "".join(f"\n[{name}]: {names[name]}" for name in used) + "\n"
    listed = "\n".join(posixpath.basename(page) for page in pages)
    return {document.page: f"{first}\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n", **pages}


@cache
def places() -> dict[tuple[str, str], str]:
    """Page by file and anchor; the anchor "" is the file's first page."""
    found = {}
    for document in DOCUMENTS:
        for page, text in chapters(document).items():
            found.setdefault((document.path, ""), page)
            for heading in re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE):
                found[document.path, anchor(heading)] = page
    for notebook in notebooks():
        found[f"notebooks/{notebook.name}", ""] = f"{MADE}/tutorials/{notebook.stem}"
    return found


def notebooks() -> list[Path]:
    """The notebooks, in the order of their numbers."""
    return sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def linked(text: str, path: str, page: str) -> str:
    """Links of a text to files of the project as links to pages, pictures as files to copy.

    Parameters
    ----------
    text : str
        Markdown.
    path : str
        File that it comes from, from the project's folder.
    page : str
        Name of the page that it goes to.

    Returns
    -------
    str
        Links to files without a page lead to the public repository; where there is none yet,
        their words stay.
    """
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"][
        "hooks"
    ]["custom"]["repository"]

    def target_of(target: str, is_picture: bool) -> str | None:
        name, _, part = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
        folder = posixpath.dirname(page) or "."
        if is_picture:
            return posixpath.relpath(f"../{file}", folder)
        there = places().get((file, part)) or places().get((file, ""))
        if there is not None:
            heading = f"#{part}" if part and not is_first_heading(there, part) else ""
            return posixpath.relpath(f"{there}.md", folder) + heading
        if file.startswith("docs/"):
            return posixpath.relpath(file.removeprefix("docs/"), folder) + target[len(name) :]
        return f"{repository}/blob/main/{file}" if repository else None

    def link(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if "://" in target:
            return found[0]
        there = target_of(target, bool(picture))
        return words if there is None else f"{picture}[{words}]({there})"

    def meant(found: re.Match[str]) -> str:
        there = found[2] if "://" in found[2] else target_of(found[2], False)
        return f"[{found[1]}]: {there}"

    return outside_code(text, lambda part: MEANT.sub(meant, LINK.sub(link, part)))


def is_first_heading(page: str, part: str) -> bool:
    """Whether a link leads to the top of a page that is a chapter."""
    return posixpath.basename(page) == part


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what is not within code blocks."""
    return "".join(part if part.startswith("```") else change(part) for part in CODE.split(text))


def pages_of_documents() -> Iterator[tuple[str, str]]:
    """Name and text of each page that is a document or a chapter of one."""
    for document in DOCUMENTS:
        for page, text in chapters(document).items():
            unmarked = outside_code(text, lambda part: re.sub(r"<!-- [^>]* -->", "", part))
            yield page, linked(unmarked, document.path, page)


def write_pages(docs: Path) -> None:
    """Write all pages that are made of documents and notebooks.

    Parameters
    ----------
    docs : Path
        The site's sources. Executed notebooks are taken from their folder ``_executed``, the
        others are shown without outputs.
    """
    places.cache_clear()
    shutil.rmtree(docs / MADE, ignore_errors=True)
    for page, text in pages_of_documents():
        file = docs / f"{page}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for notebook in notebooks():
        executed = docs / "_executed" / notebook.name
        shown = json.loads((executed if executed.exists() else notebook).read_text())
        page = f"{MADE}/tutorials/{notebook.stem}"
        for cell in shown["cells"]:
            if cell["cell_type"] == "markdown":
                text = linked("".join(cell["source"]), f"notebooks/{notebook.name}", page)
                cell["source"] = text.splitlines(keepends=True)
        file = docs / f"{page}.ipynb"
        os.makedirs(file.parent, exist_ok=True)
        file.write_text(json.dumps(shown))
