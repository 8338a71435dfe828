"""fedssa methods: the list, the numbers of a recipe, all about one method, and tables for a page."""

import re
from collections.abc import Iterator

import pytest

from fedssa.methods import METHODS, PRESETS
from fedssa.studies.rehearsal import Numbers
from tests.cli.test_cli import Command, command, here

__all__ = ["command", "here"]  # the fixtures
TABLE = re.compile(r"^ ([a-z0-9-]+) +(.*?)$", flags=re.MULTILINE)


def cells(shown: str, name: str) -> list[str]:
    line = next(line for line in shown.splitlines() if line.startswith(f" {name} "))
    return re.split(r"  +", line.strip())


def test_the_list_has_every_method_and_preset_in_a_hundred_columns(command: Command) -> None:
    shown = command("methods")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 100
    assert cells(shown.out, "method") == ["method", "shares", "models", "needs", "trained by"]
    assert cells(shown.out, "standalone") == ["standalone", "nothing", "any", "–", "clients"]
    assert cells(shown.out, "fedgh") == ["fedgh", "prototypes, headers", "any", "–", "clients, server"]
    assert [name for name, _ in TABLE.findall(shown.out) if name in METHODS] == list(METHODS)
    for preset in PRESETS:
        assert re.search(rf"^{preset} .* with ", shown.out, flags=re.MULTILINE)


@pytest.fixture
def five_methods() -> Iterator[None]:
    """Leaves five, since each is rehearsed: one that the recipe does not allow, one of undeclared sizes."""
    everything = dict(METHODS)
    for name in everything.keys() - {"standalone", "fedssa", "fedrep", "fedkd", "fedavg"}:
        del METHODS[name]
    yield
    METHODS.clear()
    METHODS.update(everything)  # in their order, which others rely on


@pytest.mark.usefixtures("five_methods")
def test_numbers_of_a_recipe(command: Command) -> None:
    shown = command("methods", "--for", "tiny.toml")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 100
    assert cells(shown.out, "method")[-2:] == ["up", "down"]
    assert cells(shown.out, "standalone")[-2:] == ["0", "0"]
    assert cells(shown.out, "fedssa")[-2:] == ["85", "85"]  # 5 classes of width 16, and a bias each
    assert cells(shown.out, "fedrep")[-2:] == ["267 k … 297 k"] * 2
    assert cells(shown.out, "fedkd")[-1].startswith("≈ ")
    assert cells(shown.out, "fedavg")[-2:] == ["–", "–"]
    assert "≈: it depends on what the clients have learnt\n" in shown.out
    assert "\nfedavg: averages whole models, so all clients need the same; give models.archs one" in shown.out
    assert "m1-a" not in shown.out
    page = command("methods", "--for", "tiny.toml", "--markdown").out
    assert "| needs | trained by | up | down |\n" in page
    assert re.search(r"^\| \[`fedssa`\].* \| class rows \| any \| – \| clients \| 85 \| 85 \|$", page, re.MULTILINE)
    narrow = command("methods", "--for", "tiny.toml", "--set", "models.width=1").out
    assert cells(narrow, "fedssa")[-2:] == ["10", "10"]


def test_large_numbers_are_short_and_equal_ones_said_once() -> None:
    from fedssa.cli.methods import _both_ways
    from fedssa.studies.catalogue import Entry

    fedrep, fedkd = (Entry(name, METHODS[name]) for name in ("fedrep", "fedkd"))
    assert _both_ways(fedrep, Numbers((2_616_548, 665_048), (99_999,) * 2, None)) == ["665 k … 2.62 M", "99,999"]
    assert _both_ways(fedkd, Numbers((1, 1), (2, 1), None)) == ["≈ 1", "≈ 1 … 2"]


def test_bytes_are_told_where_a_method_sends_no_number() -> None:
    from fedssa.cli.methods import _both_ways
    from fedssa.studies.catalogue import Entry

    alone, cfd = (Entry(name, METHODS[name]) for name in ("standalone", "cfd"))
    assert _both_ways(cfd, Numbers((0, 0), (0, 0), None, 179, (179, 179), (179, 1_000_000))) == [
        "179 bytes",
        "179 … 1 M bytes",
    ]
    assert _both_ways(alone, Numbers((0, 0), (0, 0), None, 0, (0, 0), (0, 0))) == ["0", "0"]
    assert _both_ways(cfd, Numbers((5,), (0,), None, 179, (24,), (0,))) == ["5", "0"]


def test_all_about_one_method(command: Command) -> None:
    shown = command("methods", "fedgh").out
    assert shown.startswith("FedGH: the server trains one global header")
    assert "    k → server:  C_k^s = mean of f(x)" in shown
    assert "\nshares      prototypes, headers\n" in shown
    assert "\noptions     in_order = true\n" in shown
    assert "[server]" in shown  # square brackets are no markup


def test_a_preset_is_shown_with_its_own_settings(command: Command) -> None:
    shown = command("methods", "m2-a").out
    assert shown.startswith("FedSSA: ")
    assert 'fusion = "replace", scope = "all", shared_rows = "seen"' in shown


def test_tables_for_a_page(command: Command) -> None:
    page = command("methods", "--markdown").out
    first, second, third = page.split("\n\n")
    assert first.startswith("| method | what it does | shares | models | needs | trained by |\n| --- |")
    assert second.startswith("| method | goes up | comes down | options |\n")
    assert third.startswith("| preset | is | with |\n")
    assert first.count("\n") == second.count("\n") == len(METHODS) + 1
    assert (
        "| `fedgh` | `classes` [S_k]<br>`means` [S_k, d] | `rows` [S, d + 1] | `in_order = true` |"
        in second.splitlines()
    )
    assert "| `standalone` | nothing | nothing | – |" in second.splitlines()


def test_a_picture_of_the_family(command: Command, here: object) -> None:
    shown = command("methods", "--figure", "family.png")
    assert shown.code == 0
    assert shown.out.endswith("picture: family.png\n")
