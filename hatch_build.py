"""The page of the built package: README.md with addresses that hold anywhere, and its links.

README.md names pages and pictures of the repository by paths, which lead nowhere from a package
index. Where they are is said once, in pyproject.toml, as ``repository``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
"""A link or, after an exclamation mark, a picture; its text may go over lines."""


def standalone(text: str, repository: str, tag: str) -> str:
    """A page whose links and pictures are absolute; with no repository, without them.

    Parameters
    ----------
    text : str
        Markdown. Code and links that are absolute, or lead into the page itself, stay as they are.
    repository : str
        The address that a host shows at ``/blob/TAG/PATH`` and hands out at ``/raw/TAG/PATH``;
        "" for none: then a link becomes its text, and a picture its description in italics.
    tag : str
        A tag or branch of it.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        if not repository:
            return f"*{words}*" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({repository}/{kind}/{tag}/{target})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)


def links(repository: str, tag: str) -> dict[str, str]:
    """The project's addresses by what a package index calls them; none without a repository."""
    if not repository:
        return {}
    page = f"{repository}/blob/{tag}"
    return {
        "Source": repository,
        "Documentation": f"{page}/README.md",
        "Changelog": f"{page}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Measurements": f"{page}/docs/results/index.md",
    }


class PageHook(MetadataHookInterface):
    """Fills in ``readme`` and ``urls`` when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put both into the metadata."""
        repository = str(self.config["repository"]).rstrip("/")
        tag = f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": standalone(text, repository, tag),
        }
        metadata["urls"] = links(repository, tag)
