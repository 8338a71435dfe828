"""Public data in a simulation: nobody's own samples, the same for all, and no difference to who does not use them."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedssa
from fedssa.errors import DataError, SettingsError
from fedssa.report.read.public import num_public
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import start
from tests.tiny import tiny

NEEDS = "tests.settings.needs"
SLICE: dict[str, Any] = {"name": "slice", "share": 0.2, "per_round": 30}


def numbered(num_samples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Every sample says which one it is."""
    x = np.zeros((num_samples, 6), dtype=np.float32)
    x[:, 0] = np.arange(num_samples) / 512
    return x, np.random.default_rng(0).integers(0, 10, num_samples)


def others(num_samples: int = 120, num_classes: int = 10, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(num_samples, size)).astype(np.float32), np.arange(num_samples) % num_classes


HERE = "tests.simulate.test_public"
DATA = {"name": f"{HERE}:numbered"}
OTHERS: dict[str, Any] = {"name": f"{HERE}:others", "per_round": 20}


def numbers(samples: Any) -> set[int]:
    found: list[int] = (512 * samples.x[:, 0]).long().tolist()
    assert len(found) == len(set(found))
    return set(found)


# -- a slice ---------------------------------------------------------------------------------------------------
@settings(max_examples=25)
@given(
    st.integers(0, 2**31),
    st.floats(0.01, 0.5),
    st.sampled_from(
        [{"name": "classes", "classes_per_client": 5}, {"name": "iid"}, {"name": "dirichlet", "gamma": 1.0}]
    ),
)
def test_no_public_sample_is_any_clients_own(seed: int, share: float, partition: dict[str, Any]) -> None:
    table = tiny(seed=seed, data=DATA, public={"share": share, "per_round": 0}) | {
        "partition": {"clients": 4, **partition}
    }
    clients = SimulatedClients.prepared(parse_settings(table))
    assert clients.public is not None
    public = numbers(clients.public.samples)
    assert public
    owned: list[int] = []
    for k in range(4):
        owned += [number for part in clients.data(k) for number in numbers(part)]
    assert len(owned) == len(set(owned))  # nor does anyone hold another's
    assert not public & set(owned)


def test_a_slice_takes_its_share_of_every_class_for_every_method_alike() -> None:
    y = numbered()[1]
    taken = []
    for method in ("fedssa", "fedavg", f"{NEEDS}:Talking"):
        table = tiny(data=DATA, public=SLICE, method={"name": method}, models={"archs": ["mlp-2"]})
        clients = SimulatedClients.prepared(parse_settings(table))
        assert clients.public is not None
        taken.append(sorted(numbers(clients.public.samples)))
        assert clients.public.labels == "own"
    assert taken[0] == taken[1] == taken[2]
    shares = np.bincount(y[taken[0]], minlength=10) / np.bincount(y, minlength=10)
    assert (np.abs(shares - 0.2) < 0.03).all()


# -- runs ------------------------------------------------------------------------------------------------------
def test_serial_pool_and_resumed_runs_with_public_data_are_equal(tmp_path: Path) -> None:
    for public in (SLICE, OTHERS):
        table = tiny(data=DATA, public=public, method={"name": f"{NEEDS}:Talking"})
        folder = tmp_path / str(public["name"]).partition(":")[0]
        serial = fedssa.run(table, out=folder / "serial")
        sent = serial.records[1].clients[0].params_up, serial.records[2].clients[0].params_down
        assert sent == (10 * public["per_round"],) * 2
        assert fedssa.run(table, out=folder / "pool", workers=2).records == serial.records
        with closing(start(parse_settings(table), folder / "stopped")) as begun:
            next(record for record in begun.rounds() if record.t == 1)
        assert fedssa.resume(folder / "stopped").records == serial.records


def test_who_does_not_use_public_data_of_another_source_has_the_same_bits_with_and_without(tmp_path: Path) -> None:
    for method in ("fedssa", "fedkd"):
        plain = fedssa.run(tiny(data=DATA, method={"name": method}), out=tmp_path / f"{method}-plain")
        public = fedssa.run(tiny(data=DATA, public=OTHERS, method={"name": method}), out=tmp_path / f"{method}-public")
        assert public.records == plain.records


def test_their_digest_is_kept_and_others_are_refused_later(tmp_path: Path) -> None:
    x, y = others()
    np.savez(tmp_path / "public.npz", x=x, y=y)
    public = {"name": "npz", "file": str(tmp_path / "public.npz"), "per_round": 20}
    table = tiny(data=DATA, public=public, method={"name": f"{NEEDS}:Talking"})
    with closing(start(parse_settings(table), tmp_path / "run")) as begun:
        next(begun.rounds())
    assert RunDir.open(tmp_path / "run").about["public_samples"] == 20
    digest = RunDir.open(tmp_path / "run").public_digest
    clients = SimulatedClients.prepared(parse_settings(table))
    assert clients.public is not None
    assert digest == clients.public.digest
    np.savez(tmp_path / "public.npz", x=x + 1, y=y)
    for load in (fedssa.resume, lambda path: fedssa.load_client_data(path, 0)):
        with pytest.raises(DataError, match="begun with other public data; restore those it began with"):
            load(tmp_path / "run")
    np.savez(tmp_path / "public.npz", x=x, y=y)
    assert fedssa.resume(tmp_path / "run").records[-1].t == 2


def test_a_run_without_public_data_has_no_digest_of_them(tmp_path: Path) -> None:
    result = fedssa.run(tiny(data=DATA, rounds={"total": 1}), out=tmp_path / "run")
    assert RunDir.open(result.path).public_digest == ""
    assert "public_samples" not in RunDir.open(result.path).about


def test_a_run_tells_how_many_public_samples_are_all_of_them(tmp_path: Path) -> None:
    table = tiny(data=DATA, public=OTHERS | {"per_round": 0}, rounds={"total": 1})
    unused = fedssa.run(table, out=tmp_path / "unused")
    assert num_public(RunDir.open(unused.path)) is None  # by FedSSA
    used = fedssa.run(table | {"method": {"name": f"{NEEDS}:Talking"}}, out=tmp_path / "used")
    assert num_public(RunDir.open(used.path)) == 120


@pytest.mark.parametrize(
    ("method", "public", "error", "line"),
    [
        ("Talking", SLICE | {"per_round": 1000}, SettingsError, r"public.per_round = 1000: there are only \d+ public"),
        ("Talking", OTHERS | {"per_round": 121}, SettingsError, "public.per_round = 121: there are only 120 public"),
        ("Talking", OTHERS | {"size": 50, "per_round": 51}, SettingsError, "there are only 50 public samples"),
        ("Talking", OTHERS | {"size": 121}, DataError, "public.size = 121: there are only 120 samples"),
        ("Talking", OTHERS | {"size_": 1}, DataError, "others"),
        ("Talking", DATA | {"per_round": 9}, DataError, r"\[public\]: are the data of \[data\], which clients hold"),
        ("Labelled", OTHERS | {"num_classes": 7}, SettingsError, "needs public data with the task's own labels"),
        ("Talking", {"name": "digits", "per_round": 9}, DataError, r"\[public\]: its inputs are uint8 .*, those of"),
    ],
)
def test_public_data_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path: Path, method: str, public: dict[str, Any], error: type[Exception], line: str
) -> None:
    with pytest.raises(error, match=line) as caught:
        fedssa.run(tiny(data=DATA, public=public, method={"name": f"{NEEDS}:{method}"}), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_labels_of_other_classes_do_for_a_method_that_needs_none(tmp_path: Path) -> None:
    public = OTHERS | {"num_classes": 7}
    table = tiny(data=DATA, public=public, method={"name": f"{NEEDS}:Talking"}, rounds={"total": 1})
    assert fedssa.run(table, out=tmp_path / "run").records[-1].t == 0
    assert SimulatedClients.prepared(parse_settings(table)).public.labels == "foreign"  # type: ignore[union-attr]
    own = tiny(data=DATA, public=OTHERS, method={"name": f"{NEEDS}:Labelled"}, rounds={"total": 1})
    assert fedssa.run(own, out=tmp_path / "own").records[-1].t == 0


# -- how clients and the server train --------------------------------------------------------------------------
ADAM = {
    "optimizer": {"name": "adam", "beta1": 0.8},
    "schedule": {"name": "cosine", "warmup": 2},
    "lr": 0.003,
    "batch_size": 16,
}


def test_a_recipe_chooses_optimiser_and_schedule_and_a_resumed_run_has_them_too(tmp_path: Path) -> None:
    table = tiny(data=DATA, local=ADAM)
    whole = fedssa.run(table, out=tmp_path / "whole")
    assert RunDir.open(whole.path).settings["local"]["optimizer"] == {"name": "adam", "beta1": 0.8}
    with closing(start(parse_settings(table), tmp_path / "stopped")) as begun:
        next(record for record in begun.rounds() if record.t == 0)
    assert fedssa.resume(tmp_path / "stopped", workers=2).records == whole.records
    for other in ({"optimizer": "adam"}, {"schedule": "cosine"}, {"schedule": "constant"}):
        changed = fedssa.run(tiny(data=DATA, local=ADAM | other), out=tmp_path / str(other))
        assert changed.records != whole.records


def test_the_server_trains_as_the_recipe_says(tmp_path: Path) -> None:
    name = f"{NEEDS}:TrainingServer"
    digests = {}
    ways: dict[str, dict[str, Any]] = {"plain": {}, "again": {}, "long": {"epochs": 9}, "adam": {"optimizer": "adam"}}
    for key, said in ways.items():
        table = tiny(data=DATA, method={"name": name}, server={"lr": 0.05, **said})
        records = fedssa.run(table, out=tmp_path / key, workers=2 if key == "again" else 1).records
        assert records[0].server_flops is None
        assert all(record.server_flops for record in records[1:])
        digests[key] = [record.server_digest for record in records]
    assert digests["again"] == digests["plain"]
    assert len({digests[key][1] for key in ("plain", "long", "adam")}) == 3
