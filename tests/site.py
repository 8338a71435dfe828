"""The site that mkdocs builds of the pages: each where it is, and with them all files that they link to.

Links that are right in a checkout are therefore right on the site. A page that would load something from the net, a
link that leads nowhere and a page that the navigation lacks are mistakes: the build ends with them.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from typing_extensions import override

from tests.derived import LANGUAGES, PAGES, ROOT

NOTEBOOK = ".ipynb"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
LOADED = re.compile(r'<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]*)"')


class Code(File):
    """A file of the sources is a page of the site that shows it."""

    @override
    def is_documentation_page(self) -> bool:
        return True


def linked(page: Path) -> Iterator[Path]:
    """Yields the files that a page links to or shows."""
    for target in LINK.findall(page.read_text()):
        if "://" not in target and (page.parent / target).is_file():
            yield (page.parent / target).resolve()


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = {*PAGES, ROOT / "docs/site.css", *(path for page in PAGES for path in linked(page))}
    return Files([*of_theme, *(_file(path, config) for path in sorted(paths))])


def _file(path: Path, config: MkDocsConfig) -> File:
    name = str(path.relative_to(ROOT))
    where = (name, str(ROOT), config.site_dir, config.use_directory_urls)
    if path.suffix not in (*LANGUAGES, NOTEBOOK):
        return File(*where)
    code, text = Code(*where), path.read_text()
    code.content_string = notebook(text) if path.suffix == NOTEBOOK else f"# {name}\n\n{_fenced(text, path.suffix)}"
    return code


def _fenced(text: str, suffix: str) -> str:
    return f"````{LANGUAGES[suffix]}\n{text}\n````\n"


def notebook(text: str) -> str:
    """Returns a notebook as a page: its cells, and what it printed and drew when it was kept."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else _fenced(source, ".py"))
        parts += [_output(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text")})
    if "image/png" in data:
        return f"![what the cell draws](data:image/png;base64,{''.join(data['image/png'].split())})"
    return _fenced("".join(data["text/plain"]).rstrip(), ".txt")


def on_post_build(*, config: MkDocsConfig) -> None:
    for page in Path(config.site_dir).rglob("*.html"):
        if found := LOADED.search(page.read_text()):
            raise PluginError(f"{page.relative_to(config.site_dir)} loads {found[1]} from the net")
