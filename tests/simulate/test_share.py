"""A share of the data: the same of every class and published part, drawn by the seed before anything is dealt."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import fedssa
from fedssa.errors import DataError, SettingsError
from fedssa.runs.directory import RunDir
from fedssa.settings.about import without_defaults
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.owners import Owners, used_in
from tests.simulate.test_owners import BY_HOSPITAL, HERE, PARTS, dataset_of, hospitals
from tests.tiny import tiny

SHARES = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9, 1.0])


def shared(share: float, **sections: Any) -> dict[str, Any]:
    table = tiny(**sections)
    return {**table, "data": {**table["data"], "share": share}}


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["train", "train", "val", "test"])), min_size=1, max_size=90),
    SHARES,
    st.booleans(),
)
def test_a_share_is_of_every_class_and_part(samples: list[tuple[int, str]], share: float, is_split: bool) -> None:
    labels, parts = [label for label, _ in samples], [part if is_split else "train" for _, part in samples]
    dataset, chosen = dataset_of(labels, parts if is_split else None), parse_settings(shared(share))
    drawn = used_in(chosen, dataset)
    assert drawn.tolist() == used_in(chosen, dataset).tolist() == sorted(set(drawn.tolist()))
    whole = Counter(zip(labels, parts, strict=True))
    kept = Counter((labels[row], parts[row]) for row in dataset.rows[drawn])
    assert kept == {key: max(1, int(share * num + 0.5)) for key, num in whole.items()}
    if share == 1:
        assert drawn.tolist() == list(range(len(labels)))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*PARTS, "train"])), min_size=60, max_size=120),
    st.sampled_from([0.4, 0.7]),
    st.booleans(),
)
def test_clients_and_public_slices_have_nothing_else(
    samples: list[tuple[int, str]], share: float, public: bool
) -> None:
    labels, parts = [label for label, _ in samples], [part for _, part in samples]
    dataset = dataset_of(labels, parts if len(set(parts)) > 1 else None)
    table = {**shared(share), "partition": {"name": "iid", "clients": 3}}
    chosen = parse_settings({**table, **({"public": {"name": "slice", "share": 0.2}} if public else {})})
    try:
        owners = Owners(chosen, dataset)
        held = [owners.held(client) for client in range(3)]
    except DataError:  # too few samples for somebody
        reject()
    everything = np.concatenate([owners.public, *held])
    assert len(np.unique(everything)) == len(everything)
    assert set(everything.tolist()) <= set(used_in(chosen, dataset).tolist())
    assert bool(len(owners.public)) == public


def test_a_share_follows_from_the_seed_and_not_from_the_order_of_a_file() -> None:
    dataset = dataset_of([0, 1] * 50)
    first, again, other = (
        used_in(parse_settings(shared(0.3) | {"seed": seed}), dataset).tolist() for seed in (0, 0, 1)
    )
    assert first == again != other


def test_all_data_are_the_default_and_nothing_tells_of_it() -> None:
    plain, said = parse_settings(tiny()), parse_settings(shared(1))
    assert "share" not in plain.table["data"]
    assert said.table == plain.table
    assert said.are_those_of(plain.table)
    assert not parse_settings(shared(0.5)).are_those_of(plain.table)
    assert without_defaults(parse_settings(shared(0.5)))["data"]["share"] == 0.5


def test_runs_with_a_share_resume_and_know_their_samples(tmp_path: Path) -> None:
    """Published parts and clients by name, serial, in a pool and resumed."""
    table = {**BY_HOSPITAL, "data": {"name": f"{HERE}:hospitals", "share": 0.5}}
    serial = fedssa.run(table, out=tmp_path / "serial")
    assert fedssa.run(table, out=tmp_path / "pool", workers=2).records == serial.records
    fedssa.run(table, out=tmp_path / "stopped", on_round=lambda record: record.t < 0)
    assert fedssa.resume(tmp_path / "stopped").records == serial.records
    run_dir = RunDir.open(tmp_path / "serial")
    assert run_dir.settings["data"]["share"] == 0.5
    assert run_dir.data_digest == RunDir.open(fedssa.run(BY_HOSPITAL, out=tmp_path / "all").path).data_digest
    sizes = [sum(map(len, fedssa.load_client_data(tmp_path / "serial", name))) for name in ("north", "süd", "west")]
    whole = hospitals()
    expected = Counter(zip(whole["y"].tolist(), whole["split"].tolist(), strict=True))
    assert sum(sizes) == sum(max(1, int(0.5 * num + 0.5)) for num in expected.values())


def test_arrays_and_functions_have_it_too(tmp_path: Path) -> None:
    """A function of no import path is called without it, and one that has such a parameter gets it itself."""
    rng, y = np.random.default_rng(0), np.arange(240) % 3
    x = rng.normal(y[:, None], 1.0, (240, 6)).astype(np.float32)
    rest = {key: value for key, value in BY_HOSPITAL.items() if key not in ("data", "partition")}
    rest["partition"] = {"name": "iid", "clients": 3}

    def num_held(data: Any, name: str) -> int:
        run = fedssa.run({**rest, "data": data}, out=tmp_path / name)
        return sum(sum(map(len, fedssa.load_client_data(run.path, client))) for client in range(3))

    def own(share: float) -> tuple[np.ndarray, np.ndarray]:
        num = int(share * 240)
        return x[:num], y[:num]

    assert num_held({"x": x, "y": y, "share": 0.5}, "arrays") == 120
    assert num_held({"name": lambda: (x, y), "share": 0.25}, "function") == 60
    assert num_held({"name": own, "share": 0.75}, "own") == 180


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0, r"^data.share = 0: should be greater than 0$"),
        (1.5, r"^data.share = 1.5: should be less than or equal to 1$"),
        ("x", r"^data.share = 'x': should be a valid number$"),
        (True, r"^data.share = True: should be a valid number$"),
    ],
)
def test_what_is_no_share_is_one_line(share: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(shared(share))


def test_too_small_a_share_is_one_line() -> None:
    whose = {"name": "digits", "share": 0.001}
    few = parse_settings({"data": whose, "partition": {"name": "iid", "clients": 20}})
    with pytest.raises(
        DataError, match=r"clients = 20 but .* 10 samples: .*; data.share = 0.001 leaves 10 of 1,797 sa"
    ):
        SimulatedClients.prepared(few)
    by_class = parse_settings({"data": whose, "partition": {"clients": 10, "classes_per_client": 3}})
    with pytest.raises(DataError, match=r"^client \d .*; data.share = 0.001 leaves 10 of 1,797 samples$"):
        list(SimulatedClients.prepared(by_class).splits)
    table = {**BY_HOSPITAL, "data": {"name": f"{HERE}:hospitals", "share": 0.01}}
    with pytest.raises(DataError, match=r"^data.share = 0.01: leaves no samples of client west; use a larger share$"):
        SimulatedClients.prepared(parse_settings(table | {"seed": 1}))
    with pytest.raises(
        DataError, match=r"^client west has no samples in the published test part: .* 6 of 190 samples$"
    ):
        list(SimulatedClients.prepared(parse_settings(table | {"seed": 2})).splits)
    with pytest.raises(SettingsError, match=r"unknown setting data.shrae \(did you mean share\?\)"):
        parse_settings({"data": {"name": "digits", "shrae": 0.5}})
