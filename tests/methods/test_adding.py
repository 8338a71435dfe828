"""Adding a method is one file, and among ours one line more: everything else is read from that file."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedssa.report.figures.colours import colour_of_name
from fedssa.report.figures.style import styles
from fedssa.runs.directory import RunDir
from fedssa.settings.toml import document
from tests.methods.mine import Mine
from tests.python import python
from tests.tiny import tiny, tree

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("mine.py")
WHAT_IT_DOES = "The bias of the header is averaged and mixed into each client's own."
FROM_OUTSIDE = "their_package.theirs:Mine"


def process(*command: str, cwd: Path, sources: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    """As a user would start it, with the package in `sources`."""
    env = {**os.environ, "PYTHONPATH": str(sources), "COLUMNS": "200"}
    if command[0] == sys.executable:
        return python(*command[1:], cwd=cwd, env=env)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def fedssa(*args: str, cwd: Path, sources: Path = ROOT / "src") -> str:
    done = process(sys.executable, "-m", "fedssa", *args, cwd=cwd, sources=sources)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def recipe(folder: Path, method: Mapping[str, object]) -> Path:
    file = folder / "recipe.toml"
    file.write_text(document({**tiny(rounds={"total": 2}), "method": method}))
    return file


# -- from outside ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that has the method, without a colour, and its runs on one process and on two."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_package").mkdir()
    (folder / "their_package" / "__init__.py").touch()
    shown = f'    travels: ClassVar = ("headers",)\n    colour: ClassVar[str] = "{Mine.colour}"\n\n'
    source = FILE.read_text().replace(shown, "")
    assert source != FILE.read_text()
    (folder / "their_package" / "theirs.py").write_text(source)
    recipe(folder, {"name": FROM_OUTSIDE, "share": 0.5})
    for workers in ("1", "2"):
        fedssa("run", "recipe.toml", "--workers", workers, "--out", f"on-{workers}", cwd=folder)
    return folder


def test_a_method_from_outside_has_equal_records_on_one_process_and_on_two(theirs: Path) -> None:
    alone, pool = (theirs / f"on-{workers}" / "rounds.jsonl" for workers in (1, 2))
    assert alone.read_bytes() == pool.read_bytes()
    last = RunDir.open(theirs / "on-2").records()[-1]
    assert [(client.params_up, client.params_down) for client in last.clients] == [
        (10, 10)
    ] * 3  # a bias for each digit


def test_a_method_from_outside_is_shown_with_its_option(theirs: Path) -> None:
    assert FROM_OUTSIDE in fedssa("show", "on-1", "on-2", cwd=theirs)
    assert RunDir.open(theirs / "on-1").settings["method"] == {"name": FROM_OUTSIDE, "share": 0.5}


def test_a_method_from_outside_can_be_read_about(theirs: Path) -> None:
    shown = fedssa("methods", FROM_OUTSIDE, cwd=theirs)
    assert shown.startswith("A method as somebody would add it")
    assert "shares      not declared\n" in shown
    assert "options     share = 0.75\n" in shown


def test_a_method_without_a_colour_has_that_of_its_name_in_every_picture(theirs: Path) -> None:
    runs = [RunDir.open(theirs / name) for name in ("on-1", "on-2")]
    assert "colour" not in runs[0].about
    for shown in ([("x", runs[0])], [("y", runs[1]), ("x", runs[0])]):
        assert {style.ink for style in styles(shown).values()} == {colour_of_name(FROM_OUTSIDE)}


# -- among ours ------------------------------------------------------------------------------------------------
LINES = {  # what stands there → what is added below it
    "from fedssa.methods.lg_fedavg import LGFedAvg\n": "from fedssa.methods.mine import Mine\n",
    '    "ds-fl": DSFL,\n': '    "mine": Mine,\n',
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with one file more and one line, and its import."""
    sources = tmp_path_factory.mktemp("ours") / "src"
    shutil.copytree(ROOT / "src" / "fedssa", sources / "fedssa")
    shutil.copy(FILE, sources / "fedssa" / "methods" / "mine.py")
    names = sources / "fedssa" / "methods" / "__init__.py"
    text = names.read_text()
    for above, line in LINES.items():
        assert text.count(above) == 1
        text = text.replace(above, above + line)
    names.write_text(text)
    return sources


def test_a_method_of_ours_is_listed_with_what_its_file_says(ours: Path, tmp_path: Path) -> None:
    listed = fedssa("methods", cwd=tmp_path, sources=ours)
    assert ["mine", "headers", "any", "–", "clients"] in [line.split() for line in listed.splitlines()]
    page = fedssa("methods", "--markdown", cwd=tmp_path, sources=ours)
    assert f"| [`mine`](../src/fedssa/methods/mine.py) | {WHAT_IT_DOES} | headers | any | – | clients |\n" in page
    assert "| `mine` | `bias` [S] | `bias` [S] | `share = 0.75` |\n" in page


def test_a_method_of_ours_is_in_the_picture_of_the_family(ours: Path, tmp_path: Path) -> None:
    fedssa("methods", "--figure", "family.svg", cwd=tmp_path, sources=ours)
    drawn = (tmp_path / "family.svg").read_text()
    assert ">mine</text>" in drawn
    assert f"--{Mine.colour.replace('#', 'c-')}:{Mine.colour}" in drawn


def test_a_method_of_ours_runs_and_its_run_has_its_colour(ours: Path, tmp_path: Path) -> None:
    recipe(tmp_path, {"name": "mine", "share": 0.5})
    fedssa("run", "recipe.toml", "--workers", "1", "--out", "run", cwd=tmp_path, sources=ours)
    run_dir = RunDir.open(tmp_path / "run")
    assert run_dir.settings["method"] == {"name": "mine", "share": 0.5}
    assert run_dir.about["colour"] == Mine.colour
    assert styles([("mine", run_dir)])["mine"].ink == Mine.colour


def test_options_of_a_method_of_ours_are_checked_as_its_file_says(ours: Path, tmp_path: Path) -> None:
    recipe(tmp_path, {"name": "mine", "share": 1.5})
    done = process(sys.executable, "-m", "fedssa", "run", "recipe.toml", "--out", "run", cwd=tmp_path, sources=ours)
    assert done.returncode == 2
    assert "method.share = 1.5: should be less than or equal to 1" in done.stderr


def test_no_experiment_of_the_paper_takes_a_method_of_ours_unasked(ours: Path, tmp_path: Path) -> None:
    code = "from fedssa import methods; from fedssa.studies import paper; print(*{*methods.METHODS} - {*paper.METHODS})"
    done = process(sys.executable, "-c", code, cwd=tmp_path, sources=ours)
    assert "mine" in done.stdout.split(), done.stderr


def test_a_method_of_ours_is_held_to_the_contract(ours: Path) -> None:
    files = [f"tests/methods/{name}.py" for name in ("test_contract", "test_contract_messages")]
    options = ["-v", "-k", "mine or colour", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = process(sys.executable, "-m", "pytest", *options, *files, cwd=ROOT, sources=ours)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[mine] PASSED") > 15
    assert "has_a_colour_of_its_own PASSED" in done.stdout


def lint(sources: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return process(str(program), "--no-cache", "--config", str(ROOT / "pyproject.toml"), cwd=ROOT, sources=sources)


def test_a_method_of_ours_is_under_the_import_contracts(ours: Path, tmp_path: Path) -> None:
    """They hold for it; and they notice if it imports another method."""
    done = lint(ours)
    assert "0 broken" in done.stdout, done.stdout + done.stderr
    shutil.copytree(ours, tmp_path / "src")
    with (tmp_path / "src/fedssa/methods/mine.py").open("a") as file:
        file.write("\nfrom fedssa.methods.fd import FD  # noqa\n")
    broken = lint(tmp_path / "src")
    assert "fedssa.methods.mine -> fedssa.methods.fd" in broken.stdout, broken.stdout + broken.stderr


def test_nothing_else_had_to_change(ours: Path) -> None:
    before = {name: text for name, text in tree(ROOT / "src" / "fedssa").items() if "__pycache__" not in name}
    after = {name: text for name, text in tree(ours / "fedssa").items() if "__pycache__" not in name}
    assert {name for name in after if after[name] != before.get(name)} == {"methods/mine.py", "methods/__init__.py"}
    more = set(after["methods/__init__.py"].decode().splitlines(keepends=True))
    assert more - set(before["methods/__init__.py"].decode().splitlines(keepends=True)) == set(LINES.values())
