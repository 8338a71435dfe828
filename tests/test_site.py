"""The site has what its pages link to, and nothing of it is fetched from elsewhere; make check builds all of it."""

import json
from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

from tests.derived import ROOT
from tests.site import linked, notebook, on_files, on_post_build


def test_what_a_page_links_to_belongs_to_the_site(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    page = tmp_path / "page.md"
    page.write_text("[a](there.py#part), [b](missing.py), [c](https://there.py), ![d](../picture.png)")
    assert list(linked(page)) == [tmp_path / "there.py"]


def test_a_source_file_becomes_a_page_that_shows_it() -> None:
    config = MkDocsConfig()
    config.site_dir, config.docs_dir, config.use_directory_urls = "site", str(ROOT / "docs"), False
    shown = on_files(Files([]), config=config).src_uris["LICENSE"]
    assert shown.dest_uri == "LICENSE.html"
    assert shown.content_string == f"# LICENSE\n\n````text\n{(ROOT / 'LICENSE').read_text()}\n````\n"


@pytest.mark.parametrize("page", ['<img src="//a.b/c.png">', '<link rel="x" href="https://a.b/c.css">'])
def test_a_page_that_loads_something_from_elsewhere_is_refused(tmp_path: Path, page: str) -> None:
    config = MkDocsConfig()
    config.site_dir = str(tmp_path)
    (tmp_path / "fine.html").write_text('<a href="https://a.b">text</a> <script src="own.js"></script>')
    on_post_build(config=config)
    (tmp_path / "page.html").write_text(page)
    with pytest.raises(PluginError, match=r"page\.html loads .*a\.b/c\..* from the net"):
        on_post_build(config=config)


def test_a_notebook_becomes_a_page_with_its_cells_and_what_they_gave() -> None:
    code = {"cell_type": "code", "source": ["1 +\n", "1"]}
    said = {"output_type": "stream", "text": ["two\n"]}
    drawn = {"output_type": "execute_result", "data": {"image/png": "iVB\n", "text/plain": ["<Figure>"]}}
    cells = [{"cell_type": "markdown", "source": ["# Title"]}, {**code, "outputs": [said, drawn]}]
    page = notebook(json.dumps({"cells": cells}))
    assert page == "\n\n".join(
        [
            "# Title",
            "````python\n1 +\n1\n````\n",
            "````text\ntwo\n````\n",
            "![what the cell draws](data:image/png;base64,iVB)",
        ]
    )
