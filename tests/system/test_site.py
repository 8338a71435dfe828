"""The site in a real browser, from the disk: pages load in silence and alone, and fit a phone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.derived import ROOT
from tests.system.browser import chromium

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
LOOKED_AT = ("index", "docs/tutorials/text", "docs/reference/settings", "docs/reference/api", "examples/notebook")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)], cwd=ROOT, check=True)
    return folder


def test_pages_load_in_silence_and_alone_and_fit_a_phone(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as page:
        for name in LOOKED_AT:
            page.open(site / f"{name}.html", width=400)
            assert page.ask("document.querySelector('h1').textContent.length") > 3
            assert page.ask("document.documentElement.scrollWidth") <= 400, name
        assert [said for said in page.complaints() if "search_index.js" not in str(said)] == []  # needs a server
        assert [url for url in page.requests() if not url.startswith(("file:", "data:"))] == []
