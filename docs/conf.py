"""The documentation as a site, by Sphinx: the pages of docs/index.md, and what is generated.

    uv run --group dev sphinx-build -W -c docs . site

The sources are the repository itself, so that links lead where they lead on GitHub, also to files
that are no pages.
"""

import json
import os
import re
import shutil
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring

sys.path.insert(0, str(Path(__file__).parent))

import generate_reference

import mjfleet.config

REPOSITORY = Path(__file__).parents[1]
INDEX = REPOSITORY / "docs/index.md"
PAGES = [
    *REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("docs/results/*.md"),
    *REPOSITORY.glob("tasks/*/*.md"),
]  # fmt: skip
LINK = re.compile(r"\]\(([^)#:]+)")
CODE = (".py", ".xml", ".yaml", ".json", ".ipynb")
"""Suffixes of files that are shown as pages where a page links to them. Others are downloads."""

project = "mjfleet"
html_title = "mjfleet"
html_theme = "furo"
html_copy_source = False
html_use_index = html_domain_indices = False
html_show_copyright = html_show_sphinx = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"} | dict.fromkeys(CODE, "code")
highlight_language = "text"
pygments_dark_style = "github-dark"  # Furo's own underlines imports.
smartquotes = False  # Two dashes begin a flag.
default_role = "code"  # Of single backticks in docstrings.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!mjfleet\.).*"),  # What other packages define.
    ("py:class", r"mjfleet(\.\w+){3,}"),  # Types of ours that are not public.
]
myst_heading_anchors = 4
autodoc_default_options = {
    "members": True, "member-order": "bysource", "exclude-members": "flags",
}  # fmt: skip
python_maximum_signature_line_length = 80
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True


def linked_files() -> list[str]:
    """Return the files that pages link to and that are shown as pages, relative to the root."""
    found = {
        (page.parent / link).resolve() for page in PAGES for link in LINK.findall(page.read_text())
    }
    return sorted(str(p.relative_to(REPOSITORY)) for p in found if p.suffix in CODE)


include_patterns = [
    *(str(page.relative_to(REPOSITORY)) for page in PAGES), "docs/reference/*.md", *linked_files()
]  # fmt: skip
exclude_patterns = [".*", "logs", "site"]


class CodeParser(MystParser):
    """Shows a file of code, or a notebook, as a page."""

    supported = ("code",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the page that has the file in it."""
        path = Path(document["source"])
        text = "---\norphan: true\n---\n\n"
        if path.suffix == ".ipynb":
            for cell in json.loads(inputstring)["cells"]:
                source, is_code = "".join(cell["source"]), cell["cell_type"] == "code"
                text += block("python", source) if is_code else f"{source}\n\n"
        else:
            text += f"# `{path.relative_to(REPOSITORY)}`\n\n{block(path.suffix[1:], inputstring)}"
        super().parse(text, document)


def block(language: str, text: str) -> str:
    """Return a block of code in Markdown."""
    return f"`````{language}\n{text}\n`````\n\n"


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the reading order of docs/index.md to the front page, as the side bar's contents."""
    if docname != root_doc:
        return
    for section in INDEX.read_text().split("\n| **")[1:]:
        caption, _, text = section.partition("**")
        pages = [os.path.normpath(f"docs/{link}") for link in LINK.findall(text)]
        if caption == "Start":
            pages.insert(0, "docs/index")
        elif caption == "Reference":
            pages += ["docs/reference/commands", "docs/reference/python"]
        lines = ("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", "")
        source[0] += "\n".join(lines)


def without_folders(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave the text of a link to a folder, which has no page."""
    here = app.env.doc2path(docname).parent

    def text_of(link: re.Match[str]) -> str:
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^]]*)\]\(([^)#:]+)\)", text_of, source[0])


def read_docstring(
    app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Make fields of `Args:`, `Returns:` and `Raises:`."""
    lines[:] = GoogleDocstring(list(lines), what="object").lines()


def without_rules(app: Sphinx) -> None:
    """Leave the rules of configuration values out of the types that are shown."""
    public = [getattr(mjfleet.config, name) for name in mjfleet.config.__all__]
    bases = {base for kind in public if isinstance(kind, type) for base in kind.__mro__}
    for base in filter(is_dataclass, bases):
        hints = get_type_hints(base)
        base.__annotations__ = {name: hints[name] for name in base.__annotations__}


def without_fields(
    app: Sphinx, what: str, name: str, found: Any, options: Any, signature: str, returned: str
) -> tuple[str, None] | None:
    """Leave out the arguments of a dataclass: below it are its fields."""
    return ("", None) if isinstance(found, type) and is_dataclass(found) else None


def set_dashes(app: Sphinx, tree: nodes.document, docname: str) -> None:
    """Set the dashes between an argument and its meaning, where Sphinx has two hyphens."""
    for text in list(tree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def add_front_page(app: Sphinx, error: Exception | None) -> None:
    """Make the README what a folder's address shows."""
    if error is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above."""
    generate_reference.main()
    app.add_source_parser(CodeParser)
    app.connect("source-read", without_folders)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("doctree-resolved", set_dashes)
    app.connect("builder-inited", without_rules)
    app.connect("build-finished", add_front_page)
    return {"parallel_read_safe": True}
