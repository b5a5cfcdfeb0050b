"""How the documentation becomes a site: ``./run docs``. Every page is Markdown that also reads well unrendered."""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent

project = "Rewind"
author = "the authors of Rewind"
version = release = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
nitpicky = True

myst_fence_as_directive = ["mermaid"]  # a forge draws such a block by itself
myst_heading_anchors = 4  # the anchors that a forge makes, too

html_theme = "furo"
html_title = "Rewind"
html_copy_source = False


def _read(_: Sphinx, docname: str, source: list[str]) -> None:
    """What keeps the Markdown free of directives: contents, and links to Markdown outside this folder."""
    folder = (DOCS / docname).parent
    if (
        docname.rpartition("/")[2] == "index"
    ):  # its table of contents is the pages it links to, in their order
        pages = dict.fromkeys(re.findall(r"^- .*?\]\(([\w/-]+)\.md\)", source[0], re.MULTILINE))
        source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"

    def link(found: re.Match[str]) -> str:
        is_outside = not (folder / found[1]).resolve().is_relative_to(DOCS)
        return f"](<path:{found[1]}>)" if is_outside else found[0]  # the file itself, to be downloaded

    source[0] = re.sub(r"\]\(([\w./-]+\.md)(#[\w-]+)?\)", link, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
