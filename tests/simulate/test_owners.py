"""Who owns what: published parts stay apart, own partitions get the rows they name, and clients have names."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import fedssa
from fedssa.data import Arrays, Dataset
from fedssa.data.arrays import canonical
from fedssa.errors import DataError, FedSSAWarning, RunDirError
from fedssa.partition import SampleTable
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import Settings, parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.owners import Owners
from tests.tiny import tiny, tree, without_digest

HERE = "tests.simulate.test_owners"
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class EveryThird:
    """Deals the rows 0, 3, 6, … of the file to client 0, and so on."""

    clients: int = 3

    def deal(self, samples: SampleTable, rng: np.random.Generator) -> list[np.ndarray]:
        return [samples.rows[samples.rows % 3 == k] for k in range(3)]


def dataset_of(labels: list[int], parts: list[str] | None = None, seed: int = 0) -> Dataset:
    """A data set of numbered samples in canonical order, which a file held in the order of the numbers."""
    x = np.random.default_rng(seed).permutation(len(labels)).astype(np.float32)[:, None]
    named = None if parts is None else np.array(parts)
    made = canonical(Arrays(x, np.array(labels), ("a", "b", "c"), parts=named))
    assert made.rows is not None
    return Dataset(made.x, made.y, made.class_names, "", Path(), made.columns, made.parts, made.rows)


def settings_of(**sections: Any) -> Settings:
    return parse_settings(tiny(data={"name": f"{HERE}:hospitals"}, **sections))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=40, max_size=60), st.integers(0, 9))
def test_an_own_partition_gets_exactly_the_rows_it_names(labels: list[int], seed: int) -> None:
    dataset = dataset_of(labels, seed=seed)
    table = tiny(partition={"name": f"{HERE}:EveryThird", "clients": 3})
    del table["partition"]["classes_per_client"]
    owners = Owners(parse_settings(table), dataset)
    for client in range(3):
        held = owners.held(client)
        assert sorted(dataset.rows[held].tolist()) == list(range(client, len(labels), 3))
        assert [labels[row] for row in dataset.rows[held]] == dataset.y[held].tolist()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*PARTS, "train", "train"])), min_size=40, max_size=90),
    st.sampled_from([{"name": "iid"}, {"name": "dirichlet", "gamma": 1.0, "min_samples": 2}]),
    st.booleans(),
)
def test_nothing_published_for_test_is_trained_on(
    samples: list[tuple[int, str]], partition: dict[str, Any], public: bool
) -> None:
    labels, parts = [label for label, _ in samples], [part for _, part in samples]
    dataset = dataset_of(labels, parts if len(set(parts)) > 1 else None)
    table = {**tiny(), "partition": {"clients": 3, **partition}}
    chosen = parse_settings({**table, **({"public": {"name": "slice", "share": 0.2}} if public else {})})
    try:
        owners = Owners(chosen, dataset)
        splits = [owners.split(client) for client in range(3)]
    except DataError:  # too few samples for somebody
        reject()
    everything = np.concatenate([owners.public, *(getattr(split, part) for split in splits for part in PARTS)])
    assert len(np.unique(everything)) == len(everything)
    if dataset.parts is None:
        return
    assert set(dataset.parts[owners.public]) <= {"train"}
    for split in splits:
        assert set(dataset.parts[split.train]) == {"train"}
        for part in ("val", "test"):
            own = part if part in dataset.parts else "train"
            assert set(dataset.parts[getattr(split, part)]) <= {own}


def test_a_published_part_goes_to_holders_in_proportion() -> None:
    parts = ["train"] * 90 + ["test"] * 30
    dataset = dataset_of([0] * 60 + [1] * 30 + [0] * 20 + [1] * 10, parts)
    owners = Owners(parse_settings({**tiny(), "partition": {"name": "iid", "clients": 3}}), dataset)
    for client in range(3):
        split = owners.split(client)
        trained = np.bincount(np.concatenate([dataset.y[split.train], dataset.y[split.val]]), minlength=2)
        assert np.abs(np.bincount(dataset.y[split.test], minlength=2) - trained / 3).max() <= 1
    assert len(owners.public) == 0


def hospitals(empty: str = "", unlike: bool = False) -> dict[str, Any]:
    """Three hospitals of unequal size, with parts of their own."""
    rng = np.random.default_rng(0)
    sizes = {"west": 40, "north": 60, "süd": 90}
    where = np.repeat(list(sizes), list(sizes.values()))
    y = np.arange(len(where)) % 3
    split = np.where(np.arange(len(where)) % 5 == 0, "test", "train")
    if empty:
        split[where == empty] = "train"
    if unlike:
        split[(where == "west") & (y == 2)] = "test"
    x = rng.normal(y[:, None], 1.0, (len(where), 6)).astype(np.float32)
    return {"x": x, "y": y, "hospital": where, "split": split, "age": rng.integers(0, 90, len(where))}


BY_HOSPITAL = {
    "seed": 7,
    "data": {"name": f"{HERE}:hospitals"},
    "partition": {"name": "column", "column": "hospital"},
    "models": {"archs": ["mlp-1", "mlp-2"], "width": 16},
    "local": {"batch_size": 16},
    "rounds": {"total": 2},
}


def test_a_client_for_each_value_of_a_column(tmp_path: Path) -> None:
    """Serial, in a pool, and stopped and resumed, under the names of the column."""
    serial = fedssa.run(BY_HOSPITAL, out=tmp_path / "serial")
    assert fedssa.run(BY_HOSPITAL, out=tmp_path / "pool", workers=2).records == serial.records
    stopped = fedssa.run(BY_HOSPITAL, out=tmp_path / "stopped", on_round=lambda record: record.t < 0)
    assert len(stopped.records) < len(serial.records)
    assert fedssa.resume(tmp_path / "stopped").records == serial.records
    run_dir = RunDir.open(tmp_path / "serial")
    assert run_dir.client_names == ("north", "süd", "west")
    assert run_dir.settings["partition"]["clients"] == 3
    assert parse_settings(BY_HOSPITAL).are_those_of(run_dir.settings)
    data = fedssa.load_client_data(tmp_path / "serial", "west")
    assert [len(part) for part in data] == [29, 3, 8]
    by_name, by_number = (fedssa.load_client(tmp_path / "serial", client) for client in ("west", 2))
    assert all((a == b).all() for a, b in zip(by_name.parameters(), by_number.parameters(), strict=True))
    with pytest.raises(RunDirError, match=r"has no client 'east'; they are 0 to 2 \(north, süd, west\)$"):
        fedssa.load_client(tmp_path / "serial", "east")


def test_who_held_what_is_remembered(tmp_path: Path) -> None:
    """Another order, column or part of the same samples would deal them otherwise in the middle of a run."""
    fedssa.run(BY_HOSPITAL, out=tmp_path / "run")
    settings_file = tmp_path / "run" / "settings.json"
    settings_file.write_text(json.dumps(without_digest(settings_file) | {"dealt_digest": "0"}))
    with pytest.raises(DataError, match="begun when clients held other samples"):
        fedssa.load_client_data(tmp_path / "run", 0)


def test_a_client_without_test_samples_is_named(tmp_path: Path) -> None:
    table = {**BY_HOSPITAL, "data": {"name": f"{HERE}:hospitals", "empty": "north"}}
    with pytest.raises(DataError, match=r"^client north has no samples in the published test part: .*splits = .pool"):
        fedssa.run(table, out=tmp_path / "run")
    assert tree(tmp_path) == {}
    pooled = parse_settings({**table, "data": {**table["data"], "splits": "pool"}})  # type: ignore[dict-item]
    assert [len(split.test) for split in SimulatedClients.prepared(pooled).splits] == [6, 9, 3]


def test_classes_that_are_only_tested_are_told(tmp_path: Path) -> None:
    table = {**BY_HOSPITAL, "data": {"name": f"{HERE}:hospitals", "unlike": True}}
    with pytest.warns(FedSSAWarning, match="client west: .* test samples are of class 2, which it does not train on"):
        fedssa.run(table, out=tmp_path / "run")
