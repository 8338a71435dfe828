"""Settings: what is accepted, and the one line that everything else gets."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.errors import SettingsError
from fedssa.methods import FedSSA, Standalone
from fedssa.settings.about import without_defaults
from fedssa.settings.recipe import override, parse_settings, read_recipe
from tests.tiny import tiny

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid(recipe: Path) -> None:
    parse_settings(read_recipe(recipe))


def test_defaults_are_filled_in_and_parsed_back_to_the_same() -> None:
    settings = parse_settings({"partition": {"clients": 4, "classes_per_client": 2}})
    assert settings.table["local"] == {
        "epochs": 1,
        "batch_size": 64,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "clip": 0.0,
        "augment": False,
        "optimizer": "sgd",
        "schedule": "constant",
    }
    assert settings.table["server"] == {k: v for k, v in settings.table["local"].items() if k != "augment"}
    assert settings.table["method"]["name"] == "fedssa"
    assert settings.method == FedSSA(mu0=0.5, t_stable=2)
    assert parse_settings(settings.table) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"locl": {}}, "unknown setting locl (did you mean local?)"),
        ({"local": {"epoch": 2}}, "unknown setting local.epoch (did you mean epochs?)"),
        ({"local": {"batch_size": 0}}, "local.batch_size = 0: should be greater than or equal to 1"),
        ({"local": {"batch_size": 3.5}}, "local.batch_size = 3.5: should be a valid integer"),
        ({"local": {"batch_size": True}}, "local.batch_size = True: should be a valid integer"),
        ({"local": {"lr": "fast"}}, "local.lr = 'fast': should be a valid number"),
        ({"local": {"lr": float("nan")}}, "local.lr = nan: should be a finite number"),
        ({"local": {"momentum": 1.0}}, "local.momentum = 1.0: should be less than 1"),
        ({"rounds": {"fraction": 0.0}}, "rounds.fraction = 0.0: should be greater than 0"),
        ({"rounds": {"fraction": 1.5}}, "rounds.fraction = 1.5: should be less than or equal to 1"),
        ({"rounds": {"total": 0}}, "rounds.total = 0: should be greater than or equal to 1"),
        ({"rounds": 5}, "rounds = 5: should be a table"),
        ({"seed": -1}, "seed = -1: should be a whole number from 0"),
        ({"method": {"mu0": 0.0}}, "method.mu0 = 0.0: should be greater than 0"),
        ({"method": {"mu0": 1.5}}, "method.mu0 = 1.5: should be less than or equal to 1"),
        ({"method": {"t_stable": 0}}, "method.t_stable = 0: should be greater than or equal to 1"),
        ({"method": {"fusion": "mix"}}, "method.fusion = 'mix': should be 'sum', 'convex' or 'replace'"),
        ({"method": {"upload_form": "masked", "class_weights": "count"}}, "method: upload_form = 'masked' hides"),
        ({"method": {"name": "fedsa"}}, "method.name = 'fedsa': unknown (did you mean fedssa?)"),
        ({"method": {"name": "m2-b", "fusion": "sum"}}, "method.fusion = 'sum': m2-b means fusion = 'replace'"),
        ({"models": {"header_scale": 0}}, "models.header_scale = 0: should be greater than 0"),
        ({"models": {"archs": []}}, "models.archs = []"),
        ({"models": {"archs": ["cnn-9"]}}, "models.archs = 'cnn-9': unknown (did you mean cnn-"),
        ({"models": {"archs": ["no_such.module:net"]}}, "models.archs = 'no_such.module:net': cannot be imported"),
        ({"data": {"name": "digitss"}}, "data.name = 'digitss': unknown (did you mean digits?)"),
        ({"data": {"name": 3}}, "data.name = 3: should be a name"),
        ({"partition": {"name": "dirichlet"}}, "unknown setting partition.classes_per_client"),
        ({"run": {"target": 2.0}}, "run.target = 2.0: should be less than or equal to 1"),
        ({"local": {"batch_size": 10**30}}, "local.batch_size = 1000000"),
        ({"method": {"t_stable": 10**400}}, "method.t_stable = 1000000"),
        ({"method": {"name": ["a"]}}, "method.name = ['a']: should be a name"),
        ({"method": {"name": "fedssa.core.rounds:Rounds"}}, "method.name = 'fedssa.core.rounds:Rounds': should name a"),
        (
            {"partition": {"name": "fedssa.core.client:ClientInfo"}},
            "partition.name = 'fedssa.core.client:ClientInfo': sh",
        ),
        (
            {"data": {"name": "tests.tiny:tiny", "day": date(2024, 1, 1)}},
            "a setting has a value that cannot be written",
        ),
        (
            {"run": {"kernel": "gpu"}},
            "run.kernel = 'gpu': should be 'auto', 'c', 'c-avx512-linear', 'c-avx512', 'c-avx2', 'c-plain' or 'torch'",
        ),
        ({"run": {"device": "gpu"}}, "run.device = 'gpu': should be 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto'"),
        ({"run": {"device": 0}}, "run.device = 0: should be a valid string"),
    ],
)
def test_bad_settings_get_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(tiny(**change))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"partition\.classes_per_client is missing"):
        parse_settings({"partition": {"clients": 3}})


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("local.epochs=2", ("local", "epochs"), 2),
        ("local.lr = 0.5", ("local", "lr"), 0.5),
        ("run.keep_models=false", ("run", "keep_models"), False),
        ("method.name=standalone", ("method", "name"), "standalone"),
        ('models.archs=["cnn-1"]', ("models", "archs"), ["cnn-1"]),
        ("data.dir=/a=b", ("data", "dir"), "/a=b"),
    ],
)
def test_set_takes_toml_values_or_plain_strings(assignment: str, path: tuple[str, str], value: object) -> None:
    before = tiny()
    after = override(before, assignment)
    assert after[path[0]][path[1]] == value
    assert before == tiny()  # unchanged


@pytest.mark.parametrize("assignment", ["local.epochs", "=3", "local.=3", "seed.x=3"])
def test_set_refuses_what_is_no_assignment(assignment: str) -> None:
    with pytest.raises(SettingsError):
        override(tiny(), assignment)


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such recipe"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed = \n")
    with pytest.raises(SettingsError, match=r"bad\.toml: not valid TOML"):
        read_recipe(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path / "binary.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_recipe(tmp_path)


@dataclass(frozen=True, kw_only=True)
class LargeHeaders(Method[Nothing, Nothing, Nothing]):
    defaults: ClassVar = {"models": {"header_scale": 5.0}}


def test_presets_fix_what_they_mean_and_leave_the_rest() -> None:
    settings = parse_settings(tiny(method={"name": "m1-b", "mu0": 0.25}))
    assert settings.method == FedSSA(shared_rows="all", scope="all", fusion="sum", mu0=0.25)
    assert settings.table["method"]["name"] == "m1-b"


def test_a_preset_fixes_settings_of_other_sections_too() -> None:
    settings = parse_settings(tiny(method={"name": "standalone-scaled"}, models={"header_scale": 2.0}))
    assert settings.method == Standalone()
    assert settings.models.header_scale == settings.table["models"]["header_scale"] == 3.0
    assert "header_scale" not in without_defaults(settings)["models"]
    assert parse_settings(without_defaults(settings)).table == settings.table


def test_a_method_has_its_own_defaults_of_other_sections_and_the_recipe_wins() -> None:
    own = parse_settings(tiny(method={"name": "tests.settings.test_recipe:LargeHeaders"}))
    said = parse_settings(
        tiny(method={"name": "tests.settings.test_recipe:LargeHeaders"}, models={"header_scale": 1.0})
    )
    assert (own.models.header_scale, said.models.header_scale) == (5.0, 1.0)
    assert "header_scale" not in without_defaults(own)["models"]
    assert without_defaults(said)["models"]["header_scale"] == 1.0
    assert parse_settings(without_defaults(said)).table == said.table


@pytest.mark.parametrize(("name", "scale"), [("standalone", 1.0), ("standalone", 2.5), ("standalone-scaled", 3.0)])
def test_older_recipes_have_the_headers_start_as_an_option_of_standalone(name: str, scale: float) -> None:
    old = tiny(method={"name": name, "header_scale": scale})
    settings = parse_settings(old)
    assert settings.models.header_scale == scale
    assert settings.table["method"] == {"name": name}
    assert settings.are_those_of(old)


def test_models_are_checked_by_a_python_that_skips_assertions_too() -> None:
    tables = [tiny(models=models) for models in ({"archs": ["cnn-9"]}, {"shared": "cnn-9"})]
    code = (
        f"from fedssa.errors import SettingsError\nfrom fedssa.settings.recipe import parse_settings\n"
        f"for table in {tables!r}:\n    try:\n        parse_settings(table)\n"
        "    except SettingsError as error:\n        print(error)"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, models in zip(done.stdout.splitlines(), ("models.archs", "models.shared"), strict=True):
        assert line.startswith(models)
        assert "'cnn-9': unknown" in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"seed = " + b"9" * 5000, "not valid TOML: a number has more than 1000 digits"),
        (b"seed = 0x" + b"f" * 6000, "not valid TOML: a number has more than 1000 digits"),
        (b"seed = " + b"[" * 1000 + b"]" * 1000, "not valid TOML: nested more than 50 deep"),
        (b"seed = " + b"[" * 60 + b"]" * 60, "not valid TOML: nested more than 50 deep"),
        (b"seed = 1\0", "not valid TOML: "),
        (b"seed = '\xff'", "cannot be read ('utf-8' codec"),
        (b"#" * 10_000_001, "has more than 10,000,000 bytes, so it is no recipe"),
    ],
    ids=["digits", "hex", "deep", "less deep", "nul", "latin", "huge"],
)
def test_what_no_recipe_is_like_is_told_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_recipe(tmp_path / "recipe.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'recipe.toml'}: {reason}")
    assert "\n" not in str(caught.value)


def test_endless_values_are_told_in_a_line_that_ends() -> None:
    for table in ({"local": {"lr": "x" * 100_000}}, {"method": {"name": "x" * 100_000}}):
        with pytest.raises(SettingsError) as caught:
            parse_settings(table)
        assert len(str(caught.value)) < 2000
    with pytest.raises(SettingsError, match="settings: a number has more than 1000 digits"):
        parse_settings({"seed": 10**5000})
    with pytest.raises(SettingsError, match=r"should be a valid integer"):
        parse_settings(override({}, "local.epochs=" + "9" * 5000))
