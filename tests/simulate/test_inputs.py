"""Inputs of any rank and type, single or by name, from the source to the prediction."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedssa
from fedssa.api.run import resume
from fedssa.core.samples import Input
from fedssa.errors import DataError, FedSSAError, ModelError, SettingsError
from fedssa.methods import METHODS
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import start
from tests import inputs as inputs_module
from tests.inputs import CHANNELS, LENGTH, STEPS, TEXT_NETS, texts
from tests.tiny import method_of, needs_of

OWN = "tests.inputs"


def recipe(data: str, archs: tuple[str, ...], method: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "data": {"name": f"{OWN}:{data}"},
        "partition": {"name": "iid", "clients": max(2, len(archs))},
        "models": {"archs": [f"{OWN}:{arch}" for arch in archs], "width": 8},
        "local": {"batch_size": 8, "lr": 0.01, "optimizer": "adam"},
        "rounds": {"total": 2},
        "method": method or {"name": "fedssa"},
        **others,
    }


def test_five_own_text_nets_train_on_ids_and_a_mask_and_give_the_same_bits_everywhere(tmp_path: Path) -> None:
    table = recipe("texts", TEXT_NETS, rounds={"total": 3})
    serial = fedssa.run(table, out=tmp_path / "serial")
    pool = fedssa.run(table, out=tmp_path / "pool", workers=2)
    begun = start(parse_settings(table), tmp_path / "resumed")
    list(islice(begun.rounds(), 1))
    begun.close()
    resumed = resume(tmp_path / "resumed")
    files = [(tmp_path / name / "rounds.jsonl").read_bytes() for name in ("serial", "pool", "resumed")]
    assert files[0] == files[1] == files[2]
    assert len({result.accuracy for result in (serial, pool, resumed)}) == 1
    for k in range(len(TEXT_NETS)):
        net, test = fedssa.load_client(tmp_path / "serial", k), fedssa.load_client_data(tmp_path / "serial", k).test
        assert (test.x["ids"].dtype, test.x["mask"].dtype) == (torch.int64, torch.bool)
        with torch.no_grad():
            right = (net(fedssa.as_input(test.x)).argmax(dim=1) == test.y).double().mean().item()
        assert right == serial.client_accuracies[k]


@pytest.mark.filterwarnings("ignore::fedssa.errors.FedSSAWarning")  # advice, on models of one layout say
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_runs_on_ids_and_a_mask_or_refuses_them_in_one_line(name: str, tmp_path: Path) -> None:
    archs = ("Deep",) if METHODS[name].needs_same_models else ("Deep", "Deep", "Convolving")
    needs = {key: part for key, part in needs_of(name).items() if key == "public"}
    table = recipe("texts", archs, method_of(name), local={"batch_size": 20, "lr": 0.01}, **needs)
    if "public" in table:
        table["public"] = {"name": "slice", "share": 0.2, "per_round": 0 if METHODS[name].fixed_public else 4}
    if METHODS[name].needs_server_model:
        table["models"]["server"] = f"{OWN}:Deep"
    if not METHODS[name].needs_float_inputs:
        assert len(fedssa.run(table, out=tmp_path / "run").records) == 3
        return
    with pytest.raises(SettingsError, match=r"so its input must be one tensor of floats; the data have ids 6 of int64"):
        fedssa.run(table, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "archs", "inputs"),
    [
        ("ids_alone", ("ids_net", "ids_net"), Input((LENGTH,), "int64")),
        ("series", ("Remembering", "Filtering"), Input((STEPS, CHANNELS))),
        ("photos", ("Joined", "Joined"), {"image": Input((3, 6, 6)), "table": Input((2,))}),
    ],
)
def test_other_kinds_of_inputs(data: str, archs: tuple[str, ...], inputs: Any, tmp_path: Path) -> None:
    table = recipe(data, archs, {"name": "fedclassavg"}, partition={"name": "iid", "clients": 4})
    result = fedssa.run(table, out=tmp_path / "run")
    assert SimulatedClients.prepared(parse_settings(table)).task.inputs == inputs
    assert all(client.flops for client in result.records[-1].clients)
    net, test = fedssa.load_client(tmp_path / "run", 1), fedssa.load_client_data(tmp_path / "run", 1).test
    with torch.no_grad():
        assert net(fedssa.as_input(test.x)).shape == (len(test), 4)
    stored: Any = getattr(inputs_module, data)()
    x = stored["x"] if isinstance(stored, dict) else stored[0]
    assert fedssa.predict(result, 1, x).shape == (80, 4)


def test_only_images_are_augmented(tmp_path: Path) -> None:
    local = {"batch_size": 8, "augment": True}
    for data, arch in (("photos", "Joined"), ("series", "Filtering")):
        fedssa.run(recipe(data, (arch,), local=local), out=tmp_path / data)
    tensors = tmp_path / "tensors.npz"
    np.savez(tensors, x=np.ones((20, 2, 6, 6)), y=np.arange(20) % 2)
    for kind, augmentations in (("image", ("crop", "erase")), ("tensor", ())):
        source = {"name": "npz", "file": str(tensors), "kind": kind}
        clients = SimulatedClients.prepared(parse_settings(recipe("", ("x",)) | {"data": source, "models": MLP}))
        assert clients.client(0).augmentations == augmentations
        assert clients.task.input_shape == ((6, 2, 6) if kind == "image" else (2, 6, 6))


MLP = {"archs": ["mlp-2"], "width": 8}


def test_named_arrays_of_an_npz_file_are_kept_as_one_file_each(tmp_path: Path) -> None:
    found = texts()
    np.savez(tmp_path / "texts.npz", **found["x"], y=found["y"], other=np.zeros(3))
    source = {"name": "npz", "file": str(tmp_path / "texts.npz"), "inputs": ["ids", "mask"]}
    clients = SimulatedClients.prepared(parse_settings(recipe("", ("Deep",)) | {"data": source}))
    names = {file.name for file in clients.dataset.folder.iterdir()}
    assert {"x.ids.npy", "x.mask.npy", "y.npy", "meta.json"} <= names
    assert (
        clients.dataset.digest == SimulatedClients.prepared(parse_settings(recipe("texts", ("Deep",)))).dataset.digest
    )
    (clients.dataset.folder / "x.mask.npy").write_bytes(b"")
    again = SimulatedClients.prepared(clients.settings)  # it was made anew
    assert sorted(map(bytes, again.dataset.x["mask"])) == sorted(map(bytes, found["x"]["mask"]))


@pytest.mark.parametrize(
    ("table", "kind", "line"),
    [
        (
            recipe("texts", ("Deep", "Bag")) | {"data": {"name": f"{OWN}:texts", "largest": 40}},
            ModelError,
            r"tests.inputs:(Deep|Bag): does not run on a sample of client [01] whose ids has numbers from . to 40 \(",
        ),
        (
            recipe("ids_alone", ("ids_net",)) | {"data": {"name": f"{OWN}:ids_alone", "largest": -1}},
            ModelError,
            r"tests.inputs:ids_net: does not run on a sample of client [01] whose x has numbers from -1 to ",
        ),
        (
            recipe("ids_alone", ("ids_net",)) | {"models": MLP},
            ModelError,
            "mlp-2 needs one input of floats, the data have 6 of int64; bring a model of your own",
        ),
        (
            recipe("texts", ("Remembering",)),
            ModelError,
            "tests.inputs:Remembering: cannot be built",
        ),
        (
            recipe("series", ("ids_net",)),
            ModelError,
            "tests.inputs:ids_net: Sequential: does not run on an input of 8×3 ",
        ),
        (
            recipe("photos", ("Deep",)),
            ModelError,
            r"tests.inputs:Deep: does not run on an input of image 3×6×6, table 2 \(.*unexpected keyword",
        ),
        (
            recipe("texts", ("Deep",), {"name": "ds-fl"}, public={"name": f"{OWN}:ids_alone", "per_round": 0}),
            DataError,
            r"\[public\]: its inputs are int64 \(6,\), those of \[data\] are ids int64 \(6,\), mask bool \(6,\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    table: dict[str, Any], kind: type[FedSSAError], line: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=f"^{line}") as caught:
        fedssa.run(table, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
