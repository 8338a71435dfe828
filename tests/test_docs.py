"""README and docs are true: links lead somewhere, commands exist, code runs."""

import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import fedssa
from fedssa.core.optim import OPTIMISERS
from fedssa.core.rounds import Rounds
from fedssa.core.schedules import SCHEDULES
from fedssa.data import DATASETS
from fedssa.methods import METHODS, PRESETS
from fedssa.partition import PARTITIONS
from fedssa.settings.models import Models
from fedssa.settings.recipe import PublicSlice, RunOptions, parse_settings
from fedssa.settings.training import LocalSection, ServerSection
from fedssa.sites.agreement import parse_federation
from tests.derived import BLOCK, PAGES, PICTURES, ROOT, derived, drawn
from tests.python import python


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_clean_leaves_a_users_runs_alone(tmp_path: Path) -> None:
    for name in ("runs/mine", "runs/demo/mine", "runs/demo/fedssa", "site"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["make", "-s", "-f", ROOT / "Makefile", "clean"], cwd=tmp_path, check=True)  # noqa: S607 (any make)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["runs", "runs/demo", "runs/demo/mine", "runs/mine"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_cut_in_two(page: Path) -> None:
    """A row after a blank line begins a new table, which needs its line of dashes."""
    for row, second in re.findall(r"\n\n(\|.*)\n(.*)", page.read_text()):
        assert re.fullmatch(r"[|: -]+", second), f"{page.name}: {row}"


def test_every_command_in_the_docs_exists_with_its_options() -> None:
    lines = [
        line for page in PAGES for kind in ("sh", "bash") for block in blocks(page, kind) for line in block.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fedssa ")]
    assert commands
    groups = {"federation": 2, "site": 2}  # words of a command
    names = list({tuple(command[1 : 1 + groups.get(command[1], 1)]) for command in commands})
    code = f"from fedssa.cli import main\nfor name in {names}:\n    try:\n        main([*name, '--help'])\n"
    code += "    except SystemExit as end:\n        print('\\0' * (not end.code))"
    done = python("-c", code, env={**os.environ, "COLUMNS": "200"})
    for name, shown in zip(names, done.stdout.split("\0")[:-1], strict=True):
        for command in commands:
            if tuple(command[1 : 1 + len(name)]) == name:
                for word in command[1 + len(name) :]:
                    assert not word.startswith("--") or word.split("=")[0] in shown, f"{shlex.join(command)}: {word}"


def test_every_make_target_in_the_docs_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for page in PAGES:
        for name in re.findall(r"`?make ([a-z-]+)`", page.read_text()):
            assert name in targets, f"{page.name}: make {name}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_in_the_docs_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page, one after another, in a folder that has the docs, and the recipes with fewer rounds."""
    code = "\n".join(blocks(page, "python"))
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "recipes").mkdir()
    for recipe in (ROOT / "recipes").iterdir():
        (tmp_path / "recipes" / recipe.name).write_text(re.sub("(?m)^total = .*", "total = 6", recipe.read_text()))
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_in_the_docs_is_valid(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe or a federation.toml; those of a tutorial name what is in the folder of its example."""
    if page.parent.name == "tutorials":
        monkeypatch.syspath_prepend(ROOT / "examples" / page.stem)
    for block in blocks(page, "toml"):
        table = tomllib.loads(block)
        _ = parse_federation(table) if "clients" in table else parse_settings(table)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name)
def test_what_the_program_can_print_is_what_it_prints(page: Path) -> None:
    text = page.read_text()
    assert derived(text) == text, f"{page.name}: make docs writes it again"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_what_the_program_can_draw_is_what_it_draws(picture: Path) -> None:
    assert drawn(PICTURES[picture], picture.name) == picture.read_text(), f"{picture.name}: make docs draws it again"


def test_the_readme_counts_the_methods() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"[{len(METHODS) - 1} methods beside it]" in text
    (row,) = re.findall(rf"^\| choose one of {len(METHODS)} methods.*$", text, flags=re.MULTILINE)
    assert row.endswith(" | [methods](docs/methods.md), [their tree](docs/methods.svg) |")


def test_every_method_option_and_preset_is_in_the_list() -> None:
    page = (ROOT / "docs/methods.md").read_text()
    rows = dict(
        re.findall(
            r"^\| \[?`([a-z0-9-]+)`(?:\]\(\S+\))? \| (.* \|)$", page.split("<!-- end -->")[0], flags=re.MULTILINE
        )
    )
    assert list(rows) == [*METHODS, *PRESETS]
    for name, method in METHODS.items():
        assert is_dataclass(method)
        assert [option.name for option in fields(method) if f"`{option.name} = " not in rows[name]] == []


def test_a_card_has_a_word_for_every_option_of_its_method() -> None:
    """A method may do without a card: its row says what it does."""
    page = (ROOT / "docs/methods.md").read_text()
    cards = dict(re.findall(r"^## ([a-z-]+)\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE))
    assert list(cards) == [name for name in METHODS if name in cards]
    assert "fedssa" in cards
    for name in cards:
        card = (ROOT / "docs/recipes.md").read_text() if name == "fedssa" else cards[name]
        method = METHODS[name]
        assert is_dataclass(method)
        for option in fields(method):
            assert f"`{option.name}" in card, f"{name}: {option.name}"
        for preset in method.presets:
            assert f"`{preset}`" in cards[name], f"{name}: {preset}"


def test_every_method_has_its_costs_with_bytes_where_it_sends_no_number() -> None:
    page = (ROOT / "docs/methods.md").read_text()
    costs = page.split("| method | numbers | extra training cost |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `([a-z-]+)`.*? \| (.*?) \|", costs, flags=re.MULTILINE))
    assert sorted(rows) == sorted(METHODS)
    for name, said in rows.items():
        silent = not METHODS[name].travels
        assert silent or not said.startswith("0") or re.search(r"P = 1,000 (bytes|down)", said), f"{name}: {said}"


def test_a_card_tells_the_passes_that_its_server_makes_by_default() -> None:
    cards = dict(
        re.findall(
            r"^## ([a-z-]+)\n(.*?)(?=^## |\Z)", (ROOT / "docs/methods.md").read_text(), flags=re.DOTALL | re.MULTILINE
        )
    )
    passes = {name: method.defaults.get("server", {}).get("epochs") for name, method in METHODS.items()}
    told = {name: num for name, num in passes.items() if num and METHODS[name].needs_public != "no"}
    assert set(told) == {"feddf", "fed-et", "fedkemf", "cfd"}
    for name, num in told.items():
        assert re.search(rf"passes\s\({num}[,)]|\b{num}\spasses", cards[name]), f"{name}: {num}"


def test_every_setting_has_its_row() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    for section in (Models, PublicSlice, LocalSection, ServerSection, Rounds, RunOptions):
        for setting in fields(section):
            assert f"`{setting.name}`" in page, f"{section.__name__}: {setting.name}"
    for name in (*DATASETS, *PARTITIONS, *OPTIMISERS, *SCHEDULES):
        assert f"`{name}`" in page, name


def test_every_name_of_the_package_is_on_the_page_about_python() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    assert sorted(re.findall(r"^::: fedssa\.(\w+)$", page, flags=re.MULTILINE)) == sorted(fedssa.__all__)
