"""Sites with inputs of other kinds than images: token ids, masks, series."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedssa
from fedssa.core.samples import Input, form_of
from fedssa.core.task import Task
from fedssa.deploy.address import Address
from fedssa.deploy.server.directory import add_public, init
from fedssa.deploy.site.check import preview
from fedssa.deploy.site.export import export_model
from fedssa.errors import DataError, ModelError, SettingsError
from fedssa.sites.agreement import parse_federation, read_federation
from fedssa.sites.samples import samples
from tests.deploy.in_process import sites_of
from tests.deploy.test_agrees import without_flops
from tests.inputs import VOCABULARY
from tests.simulate.test_inputs import recipe

INPUTS = {"ids": Input((3,), "int64"), "mask": Input((3,), "bool")}
TEXTS = Task(num_classes=4, input_shape=(), inputs=INPUTS)
IDS, MASK, Y = np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((2, 3), bool), np.array([0, 1])


def test_sites_with_text_have_the_simulators_bits_and_export_its_models(tmp_path: Path) -> None:
    public = {"name": "slice", "share": 0.2, "per_round": 4}
    table = recipe("texts", ("Attending", "Recurrent"), {"name": "ds-fl"}, public=public)
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    sites = sites_of(table, tmp_path)
    assert list(sites.run(sites.grid())) == without_flops(simulated.records)
    export_model(tmp_path / "state-1", tmp_path / "model.safetensors")
    exported = fedssa.load_client(tmp_path / "model.safetensors", str(tmp_path / "site_1.py"))
    theirs = fedssa.load_client(simulated.path, 1).state_dict()
    assert all(torch.equal(exported.state_dict()[name], tensor) for name, tensor in theirs.items())
    assert preview(str(tmp_path / "site_1.py"), sites.federation).num_test > 0


def test_samples_may_be_dicts_or_a_dict_of_arrays() -> None:
    columns = ({"ids": IDS, "mask": MASK}, Y)
    pairs = [({"ids": IDS[i], "mask": torch.from_numpy(MASK[i])}, Y[i]) for i in range(2)]
    for data in (columns, pairs, iter(pairs)):
        found = samples("train", data, TEXTS)
        assert {name: tensor.tolist() for name, tensor in found.x.items()} == {
            "ids": IDS.tolist(), "mask": MASK.tolist()
        }  # fmt: skip
        assert form_of(found.x) == INPUTS
    assert form_of(samples("val", (), TEXTS).x) == INPUTS


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int64"])
def test_whole_numbers_stay_whole(dtype: str) -> None:
    found = samples("train", (IDS.astype(dtype), Y), Task(4, (3,), inputs=Input((3,), "int64")))
    assert (found.x.dtype, found.x.tolist()) == (torch.int64, IDS.tolist())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (({"ids": IDS}, Y), "its x has no 'mask'; the task's inputs are ids, mask"),
        (({"ids": IDS, "mask": MASK, "more": IDS}, Y), "its x has 'more', and the task's inputs are ids, mask"),
        ([({"ids": IDS[0], "mask": MASK[0]}, 0), ({"ids": IDS[1]}, 1)], "sample 1 has no 'mask'; the task's inputs"),
        ([(IDS[0], 0)], "sample 0 is no dict, and the task's inputs are ids, mask"),
        ((IDS, Y), "its x is no dict, and the task's inputs are ids, mask"),
        (({"ids": IDS[:, :2], "mask": MASK}, Y), "its ids are 2, the task's are 3"),
        (
            ({"ids": IDS.astype(float), "mask": MASK}, Y),
            "its ids are float64, the task's are int64; store them as that",
        ),
        (({"ids": IDS, "mask": MASK.astype(int)}, Y), "its mask are int64, the task's are bool; store them as that"),
        (({"ids": IDS, "mask": MASK[:1]}, Y), "1 samples of mask and 2 labels"),
        (
            [({"ids": IDS[0], "mask": MASK[0]}, 0), ({"ids": IDS[0, :2], "mask": MASK[0]}, 1)],
            r"its ids has samples of shapes \[\(2,\), \(3,\)\]; make all of one shape, for example padded",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(data: Any, reason: str) -> None:
    with pytest.raises(DataError, match=f"^train: {reason}") as caught:
        samples("train", data, TEXTS)
    assert "\n" not in str(caught.value)


def test_samples_of_other_shapes_and_dicts_for_a_single_input_are_refused() -> None:
    with pytest.raises(DataError, match=r"^val: has samples of shapes \[\(2,\), \(3,\)\]; make all of one shape"):
        samples("val", [(np.zeros(2), 0), (np.zeros(3), 1)], Task(4, (3,)))
    with pytest.raises(DataError, match=r"^val: its samples are dicts, the task's input is one tensor of 3$"):
        samples("val", ({"ids": IDS}, Y), Task(4, (3,)))


# -- federation.toml -----------------------------------------------------------------------------------------------
def section(**task: Any) -> dict[str, Any]:
    return {"clients": ["a", "b"], "task": {"classes": 4, **task}}


def test_the_task_says_the_type_or_the_inputs_by_name() -> None:
    assert parse_federation(section(input_shape=[3])).task.inputs == Input((3,))
    assert parse_federation(section(input_shape=[3], input_type="int64")).task.inputs == Input((3,), "int64")
    several = {"ids": {"shape": [3], "type": "int64"}, "mask": {"shape": [3], "type": "bool"}}
    assert parse_federation(section(inputs=several)).task.inputs == INPUTS


def test_older_files_mean_what_they_meant() -> None:
    old = parse_federation(section(input_shape=[3]))
    assert old.table["task"] == {"classes": 4, "input_shape": [3]}
    assert old.agreement == parse_federation(section(input_shape=[3], input_type="float32")).agreement
    assert old.agreement != parse_federation(section(input_shape=[3], input_type="int64")).agreement


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ({"input_shape": [3], "inputs": {"ids": {"shape": [3]}}}, "task: input_shape is of a single input"),
        ({"inputs": {"ids": {"shape": [3]}}, "input_type": "int64"}, "task: input_type is of a single input"),
        ({"inputs": {"my ids": {"shape": [3]}}}, "task: input 'my ids' goes to a model as a keyword argument"),
        ({"inputs": {}}, "task.inputs = {}: "),
        (
            {"input_shape": [3], "input_type": "int32"},
            "task.input_type = 'int32': should be 'float32', 'int64' or 'bool'",
        ),
    ],
)
def test_a_task_that_says_too_much_or_nothing_is_refused(task: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError, match=f"^{line}"):
        parse_federation(section(**task))


def test_a_method_that_cannot_do_with_ids_is_refused_before_a_run() -> None:
    table = section(input_shape=[3], input_type="int64") | {"method": {"name": "hfd"}}
    with pytest.raises(SettingsError, match=r"^HFD averages inputs, so its input must be one tensor of floats"):
        parse_federation(table)


def test_public_ids_are_kept_as_they_are(tmp_path: Path) -> None:
    init(tmp_path / "c", Address("127.0.0.1", 9092, 9092, insecure=True), ["a"], input_shape=(3,), input_type="int64")
    np.savez(tmp_path / "some.npz", x=IDS, y=Y)
    add_public(tmp_path / "c", tmp_path / "some.npz", "none", 0)
    public = read_federation(tmp_path / "c").public
    assert public is not None
    assert (public.samples.x.dtype, public.samples.x.tolist()) == (torch.int64, IDS.tolist())


def test_an_id_beyond_the_vocabulary_is_one_line_that_names_the_site(tmp_path: Path) -> None:
    (tmp_path / "north.py").write_text(
        "import numpy as np\nfrom fedssa import Site\nfrom tests.inputs import ids_net\n"
        f"data = (np.full((4, 3), {VOCABULARY}), np.array([0, 1, 0, 1]))\n"
        "site = Site(model=ids_net, train=data, test=data)\n"
    )
    federation = parse_federation(section(input_shape=[3], input_type="int64") | {"models": {"width": 8}})
    with pytest.raises(ModelError, match=r"north.py: .*does not run on an input of 3 of int64"):
        preview(str(tmp_path / "north.py"), federation)
