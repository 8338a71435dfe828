"""The report in a real browser: it loads in silence and alone, sorts, hides methods, has two themes, fits a phone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedssa.report.page.report import write
from tests.report.fake_runs import Accuracy, finished_run, settings
from tests.system.browser import Page, chromium

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

METHODS = {"standalone": 0.0, "fedssa": 0.1, "fedproto": 0.05, "</script><b>x": -0.1}
COLUMN = "[...document.querySelectorAll('#t1 tbody tr')].map(row => row.cells[{column}].textContent.trim())"
CURVES = "[...document.querySelectorAll('#e1 figure')[0].querySelectorAll('[data-series=\"{series}\"]')]"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for method, gain in METHODS.items():
        for seed in range(2):
            rounds: list[dict[int, Accuracy]] = [
                {k: 0.3 + 0.02 * k + gain * t / 3 + 0.01 * seed for k in range(3)} for t in range(4)
            ]
            finished_run(
                folder / f"runs/{len(method)}{method[:2].strip('<')}-s{seed}", rounds, settings(method, seed=seed)
            )
    write([folder / "runs"], folder / "out")
    return folder / "out" / "index.html"


@pytest.fixture
def page(tmp_path: Path, report: Path) -> Iterator[Page]:
    with chromium(tmp_path / "profile") as opened:
        opened.open(report)
        yield opened


def test_it_loads_without_a_word_and_asks_for_nothing(page: Page, report: Path) -> None:
    assert page.ask("document.querySelectorAll('figure svg').length") >= 4
    assert page.ask("document.querySelectorAll('b').length") == 0  # a method's name is text
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith("data:")] == [report.absolute().as_uri()]


def test_a_click_on_a_column_sorts_by_it_and_another_turns_it_round(page: Page) -> None:
    before = page.ask(COLUMN.format(column=0))
    page.ask("document.querySelectorAll('#t1 thead th')[1].querySelector('button').click()")
    falling = page.ask(COLUMN.format(column=1))
    assert falling == sorted(falling, key=lambda text: -float(text.split()[0]))
    assert page.ask(COLUMN.format(column=0)) != before
    page.ask("document.querySelectorAll('#t1 thead th')[1].querySelector('button').click()")
    assert page.ask(COLUMN.format(column=1)) == falling[::-1]
    assert page.ask("document.querySelectorAll('#t1 [aria-sort]').length") == 1


def test_a_click_on_a_method_hides_its_curve_and_another_shows_it(page: Page) -> None:
    chip = "document.querySelectorAll('#e1 .chip')[1]"
    series = page.ask(f"{chip}.dataset.toggle")
    shown = CURVES.format(series=series) + ".filter(part => part.getBoundingClientRect().width > 0).length"
    others = "[...document.querySelectorAll('#e1 figure')[0].querySelectorAll('[data-series]')]"
    others += f".filter(part => part.dataset.series !== '{series}' && part.getBoundingClientRect().width > 0).length"
    assert page.ask(shown) > 0
    remaining = page.ask(others)
    page.ask(f"{chip}.click()")
    assert page.ask(shown) == 0
    assert page.ask(f"{chip}.getAttribute('aria-pressed')") == "false"
    assert page.ask(others) == remaining > 0
    page.ask("document.querySelector('#e1 [data-toggle=all]').click()")
    assert page.ask(shown) > 0
    assert page.complaints() == []


def test_the_theme_is_the_systems_until_the_button_is_pressed(page: Page, report: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.ask(paper)
    page.ask("document.getElementById('theme').click()")
    dark = page.ask(paper)
    assert light == "rgb(255, 255, 255)" != dark
    page.ask("localStorage.clear()")
    page.open(report, dark=True)
    assert page.ask(paper) == dark


def test_on_a_phone_only_tables_scroll_sideways(page: Page, report: Path) -> None:
    page.open(report, width=390)
    assert page.ask("document.documentElement.scrollWidth") <= 390
    assert page.ask("document.querySelector('#e1 .scroll').scrollWidth") > 390


def test_a_command_can_be_copied(page: Page) -> None:
    command = page.ask("document.querySelector('.again code').textContent")
    assert command.startswith("fedssa ")
    page.ask("document.querySelector('.again').open = true; document.querySelector('.again .copy').click()")
    assert page.ask("getSelection().toString().trim()") == command


def test_an_experiment_of_the_paper_gives_a_page(tmp_path: Path) -> None:
    """Two commands, as a user types them."""
    runs, out = str(tmp_path / "x"), tmp_path / "y"
    for words in (
        ["experiment", "table-hetero", "--scale", "smoke", "--out", runs],
        ["report", runs, "--out", str(out)],
    ):
        subprocess.run([sys.executable, "-m", "fedssa", *words], check=True, capture_output=True)
    with chromium(tmp_path / "profile") as page:
        page.open(out / "index.html")
        assert page.ask("document.querySelectorAll('#t1 tbody tr').length") >= 9  # eight methods and the control
        commands = page.ask("[...document.querySelectorAll('.again code')].map(code => code.textContent)")
        assert all(command.startswith("fedssa experiment ") for command in commands)
        assert page.complaints() == []
