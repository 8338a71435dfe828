"""[public] and [server], and what a method needs of a recipe: what does not fit is refused in one line."""

from typing import Any

import pytest

from fedssa.core.optim import SGD, Adam
from fedssa.core.schedules import Constant, Cosine
from fedssa.core.training import Training
from fedssa.data import Npz
from fedssa.errors import SettingsError
from fedssa.settings.recipe import PublicSlice, PublicSource, parse_settings
from tests.tiny import tiny

HERE = "tests.settings.needs"
SLICE = {"name": "slice", "share": 0.1, "per_round": 50}


# -- [server] --------------------------------------------------------------------------------------------------
def test_the_server_trains_as_its_section_says() -> None:
    said = {"epochs": 3, "batch_size": 8, "lr": 0.5, "optimizer": {"name": "adam", "beta1": 0.5}, "schedule": "cosine"}
    settings = parse_settings(tiny(server=said))
    expected = Training(epochs=3, batch_size=8, lr=0.5, optimiser=Adam(beta1=0.5), schedule=Cosine())
    assert settings.server == expected
    assert parse_settings(settings.table) == settings
    assert settings.local.optimiser == SGD()  # that of the clients is their own


def test_without_a_section_the_server_has_the_defaults() -> None:
    assert parse_settings(tiny()).server == Training(optimiser=SGD(momentum=0.9), schedule=Constant())


# -- [public] --------------------------------------------------------------------------------------------------
def test_no_section_means_no_public_data_and_no_word_of_them() -> None:
    settings = parse_settings(tiny())
    assert settings.public is None
    assert "public" not in settings.table


@pytest.mark.parametrize("said", [SLICE, {"share": 0.1, "per_round": 50}])
def test_a_slice_of_the_data(said: dict[str, Any]) -> None:
    settings = parse_settings(tiny(public=said))
    assert settings.public == PublicSlice(share=0.1, per_round=50)
    assert settings.table["public"] == SLICE
    assert parse_settings(settings.table) == settings


def test_another_source() -> None:
    settings = parse_settings(tiny(public={"name": "npz", "file": "/some/where.npz", "size": 100, "per_round": 20}))
    assert settings.public == PublicSource(source=Npz(file="/some/where.npz"), size=100, per_round=20)
    assert settings.table["public"] == {"name": "npz", "file": "/some/where.npz", "size": 100, "per_round": 20}
    assert parse_settings(settings.table) == settings


def test_the_file_of_a_source_is_found_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data")
    table = parse_settings(tiny(public={"name": "npz", "file": "~/a.npz"})).table
    assert table["public"]["file"] == "/data/a.npz"


def test_a_function_of_ones_own_may_be_the_source() -> None:
    settings = parse_settings(tiny(public={"name": "tests.tiny:few_samples", "per_round": 0}))
    assert isinstance(settings.public, PublicSource)
    assert parse_settings(settings.table) == settings


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"name": "slize"}, "public.name = 'slize': unknown"),
        ({"name": 7}, "public.name = 7: should be a name"),
        ({"share": 0.0}, "public.share = 0.0: should be greater than 0"),
        ({"share": 1.0}, "public.share = 1.0: should be less than 1"),
        ({"per_round": -1}, "public.per_round = -1: should be greater than or equal to 0"),
        ({"per_rounds": 1}, "unknown setting public.per_rounds (did you mean per_round?)"),
        ({"name": "slice", "size": 10}, "unknown setting public.size"),
        ({"name": "digits", "share": 0.1}, "unknown setting public.share"),
        ({"name": "digits", "size": 0}, "public.size = 0: should be greater than or equal to 1"),
    ],
)
def test_what_is_wrong_with_public_data_is_one_line(said: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(tiny(public=said))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


# -- needs -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "missing", "there"),
    [
        ("Talking", 'needs public data; add to the recipe: [public] name = "slice"', {"public": SLICE}),
        ("Labelled", 'needs public data; add to the recipe: [public] name = "slice"', {"public": SLICE}),
        ("ServerModel", "trains a model at the server; name it as models.server", {"models": {"server": "mlp-1"}}),
        ("OneRound", "has 1 rounds; set rounds.total = 1", {"rounds": {"total": 1}}),
        ("Grouped", "", {}),
    ],
)
def test_a_need_that_is_not_met_is_refused_and_one_that_is_met_is_not(
    method: str, missing: str, there: dict[str, Any]
) -> None:
    name = f"{HERE}:{method}"
    if missing:
        with pytest.raises(SettingsError) as caught:
            parse_settings(tiny(method={"name": name}))
        assert str(caught.value).startswith(f"method.name = {name!r}: {missing}")
        assert "\n" not in str(caught.value)
    assert parse_settings(tiny(method={"name": name}, **there)).table["method"]["name"] == name


def test_models_of_the_server_are_looked_up_like_all_others() -> None:
    with pytest.raises(SettingsError, match=r"models\.server = 'mlp-9': unknown"):
        parse_settings(tiny(models={"server": "mlp-9"}))
