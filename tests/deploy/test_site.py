"""A site: anybody's model and data, checked; what it would send; its model as a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedssa
from fedssa.core.task import Task
from fedssa.deploy.messages import Request
from fedssa.deploy.site.check import preview
from fedssa.deploy.site.disk import Saved, StateDir
from fedssa.deploy.site.export import export_model
from fedssa.deploy.site.respond import _run_round
from fedssa.errors import (
    ClientError,
    DataError,
    FedSSAError,
    FedSSAWarning,
    ModelError,
    RunDirError,
    SettingsError,
)
from fedssa.sites.agreement import Federation, parse_federation
from fedssa.sites.samples import samples
from fedssa.sites.site import client_of
from tests.deploy.in_process import sites_of
from tests.tiny import FEW, tiny

IMAGES = Task(num_classes=4, input_shape=(3, 8, 6))
DATA = torch.ones(2, 5)
VECTORS = Task(num_classes=4, input_shape=(5,))

SITE = """
import torch
from torch import nn
from fedssa.sites.site import Site

X, Y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
PAIRS = list(zip(X, Y))


def site(task):
    return Site(model=nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, task.num_classes)), {parts})


def bare():
    return Site(model=nn.Linear(5, 4), train=PAIRS, test=PAIRS)


def tied():
    return 7


def broken():
    raise ZeroDivisionError("no")


ready = bare()
"""


def federation(**sections: Any) -> Federation:
    table = {"clients": ["a", "b"], "task": {"classes": 4, "input_shape": [5]}, "models": {"width": 7}, **sections}
    return parse_federation(table)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_site.py"
    path.write_text(SITE.format(parts="train=(X, Y), val=PAIRS[:3], test=PAIRS"))
    return path


# -- data ------------------------------------------------------------------------------------------------------
def test_images_come_in_any_order_of_axes() -> None:
    x, y = torch.randint(0, 256, (5, 8, 6, 3), dtype=torch.uint8), torch.arange(5) % 4
    stored = samples("train", (x, y), IMAGES)
    assert torch.equal(stored.x, x)
    first = x.permute(0, 3, 1, 2)
    pairs = [(first[i], int(y[i])) for i in range(5)]
    for other in ((first, y), (x.numpy(), y.numpy()), TensorDataset(first, y), pairs, iter(pairs)):
        again = samples("train", other, IMAGES)
        assert torch.equal(again.x, x)
        assert torch.equal(again.y, y)
        assert again.x.is_contiguous()


def test_grey_images_may_have_no_channel() -> None:
    task = Task(num_classes=4, input_shape=(1, 8, 6))
    assert samples("train", (np.zeros((2, 8, 6), dtype=np.uint8), np.array([0, 1])), task).x.shape == (2, 8, 6, 1)


def test_floats_become_float32_and_labels_whole() -> None:
    stored = samples("train", (np.ones((2, 5)), np.array([0.0, 3.0])), VECTORS)
    assert (stored.x.dtype, stored.y.dtype, stored.y.tolist()) == (torch.float32, torch.int64, [0, 3])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "complex64"])
def test_numbers_that_would_have_to_be_converted_are_refused(dtype: str) -> None:
    x = np.ones((2, 5), dtype)
    for data in ((x, np.array([0, 1])), list(zip(x, [0, 1], strict=True))):
        with pytest.raises(DataError, match=f"^val: its samples are {dtype}, the task's are float32; store"):
            samples("val", data, VECTORS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((np.zeros((2, 6)), np.array([0, 1])), "its samples are 6, the task's are 5"),
        ((np.zeros((2, 5)), np.array([0, 4])), "has labels from 0 to 4"),
        ((np.zeros((2, 5)), np.array([-1, 0])), "has labels from -1 to 0"),
        ((np.zeros((2, 5)), np.array([0.5, 1])), "not whole"),
        ((np.full((2, 5), np.nan), np.array([0, 1])), "hold NaN or infinity"),
        ((np.full((2, 5), 1e300), np.array([0, 1])), "hold NaN or infinity"),
        ([(np.zeros(5), 0.5), (np.zeros(5), 1)], "not whole"),
        ([(np.zeros(5), [1, 0, 0, 0])], "1 samples and 4 labels"),
        ((np.zeros((2, 5)), np.array([0])), "2 samples and 1 labels"),
        (7, "cannot be read"),
        ([(np.zeros(5), "cat")], "cannot be read"),
    ],
)
def test_data_that_do_not_fit_are_refused_by_name(data: Any, reason: str) -> None:
    with pytest.raises(DataError, match=f"val: .*{reason}"):
        samples("val", data, VECTORS)


# -- model -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", ":bare", ":ready"])
def test_a_site_is_a_function_or_a_site(file: Path, name: str) -> None:
    client = client_of(f"{file}{name}", federation(), 1)
    assert client.seen.tolist() == [0, 1, 2]
    assert client.net.header.weight.shape == (4, 7)


def test_a_start_is_a_function_of_seed_client_and_site(file: Path) -> None:
    weights = [client_of(str(file), federation(), client).net.header.weight for client in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_site_uses_the_kernel_that_its_file_names(file: Path) -> None:
    assert client_of(str(file), federation(), 0).kernel == "auto"
    assert client_of(str(file), federation(run={"kernel": "torch"}), 0).kernel == "torch"


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        (":nobody", SettingsError, "there is no site 'nobody'"),
        (":tied", SettingsError, "is a int; it should be a Site"),
        (":broken", ClientError, "ZeroDivisionError: no"),
    ],
)
def test_what_is_no_site_is_refused(file: Path, name: str, kind: type[FedSSAError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        client_of(f"{file}{name}", federation(), 0)


@pytest.mark.parametrize(("given", "name"), [('["flipp"]', "flipp"), ('"crop"', "c")])
def test_an_unknown_augmentation_is_refused(file: Path, given: str, name: str) -> None:
    file.write_text(SITE.format(parts=f"train=(X, Y), test=PAIRS, augmentations={given}"))
    with pytest.raises(
        SettingsError, match=f"my_site.py: augmentations: '{name}' is unknown; give a list of some of crop, flip"
    ):
        client_of(str(file), federation(), 0)


def test_classes_that_a_site_is_tested_on_and_does_not_train_on_are_told_and_no_error(file: Path) -> None:
    file.write_text(SITE.format(parts="train=(X[:1], Y[:1]), test=PAIRS, name='north'"))
    said = "my_site.py: 8 of its 12 test samples are of classes 1, 2, which it does not train on"
    assert preview(str(file), federation()).advice[-1].endswith(said)


def test_a_site_is_not_run_as_another_client(file: Path) -> None:
    file.write_text(SITE.format(parts="train=(X, Y), test=PAIRS, name='b'"))
    assert client_of(str(file), federation(), 1).id == 1
    with pytest.raises(SettingsError, match=r"my_site.py: says that it is 'b', and is to be client 'a'"):
        client_of(str(file), federation(), 0)


def test_a_missing_file_an_empty_part_and_a_model_that_does_not_fit_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such file"):
        client_of(str(tmp_path / "none.py"), federation(), 0)
    file.write_text(SITE.format(parts="train=(X, Y), test=()"))
    with pytest.raises(DataError, match="test: is empty"):
        client_of(str(file), federation(), 0)
    with pytest.raises(ModelError, match="has 4 outputs, the task has 9 classes"):
        client_of(f"{file}:bare", federation(task={"classes": 9, "input_shape": [5]}), 0)


# -- what it would send ----------------------------------------------------------------------------------------
def test_a_preview_shows_exactly_what_would_be_sent(file: Path) -> None:
    shown = preview(str(file), federation())
    assert shown.classes == ["0", "1", "2"]
    assert (shown.num_train, shown.num_val, shown.num_test) == (12, 3, 12)
    assert shown.tensors == [("rows", "float32", "3×8", 96), ("classes", "int64", "3", 24)]
    assert [name for name, _ in shown.hello][:3] == ["id", "seen_classes", "num_train"]
    assert dict(shown.hello)["seen_classes"] == "[0, 1, 2]"
    assert dict(shown.answer)["answer.steps"] == "1"
    assert shown.num_payload_bytes == 120
    assert 120 < shown.num_bytes < 3120


def test_a_preview_names_what_the_federation_would_drop(file: Path) -> None:
    with pytest.raises(ClientError, match=r"would drop its answer: the norm .* deploy\.norm_bound"):
        preview(str(file), federation(deploy={"norm_bound": 1e-3}))


# -- its model -------------------------------------------------------------------------------------------------
def test_an_exported_model_is_the_simulators(tmp_path: Path) -> None:
    simulated = fedssa.run(tiny(data=FEW), out=tmp_path / "simulated")
    sites = sites_of(tiny(data=FEW), tmp_path)
    list(sites.run(sites.grid()))
    target = tmp_path / "model.safetensors"
    saved = export_model(tmp_path / "state-1", target)
    model, theirs = fedssa.load_client(target, str(tmp_path / "site_1.py")), fedssa.load_client(simulated.path, 1)
    assert not model.training
    assert saved.t in (1, 2)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    with pytest.raises(RunDirError, match="holds no model"):
        export_model(tmp_path / "state-9", target)
    with pytest.raises(RunDirError, match="is not an exported model"):
        fedssa.load_client(tmp_path / "site_1.py", str(tmp_path / "site_1.py"))
    with pytest.raises(ModelError, match=r"the structure of .*site_0.py has changed"):
        fedssa.load_client(target, str(tmp_path / "site_0.py"))
    assert isinstance(model, nn.Module)
    assert StateDir(tmp_path / "state-1").latest() is not None
    content = bytearray(target.read_bytes())
    content[-5] ^= 1
    target.write_bytes(content)
    with pytest.raises(RunDirError, match=r"model\.safetensors: .* \(its digest does not fit its content\)"):
        fedssa.load_client(target, str(tmp_path / "site_1.py"))


OWN = """
import torch
from torch import nn
from fedssa import Site

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.header = nn.Linear(5, 7), nn.Linear(7, 4)

    def forward(self, x):
        return self.header(torch.relu(self.hidden(x)))

DATA = torch.randn(12, 5), torch.arange(12) % 3
site = Site(model=Net(), train=DATA, test=DATA)
"""


def test_weights_are_not_given_to_a_model_that_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, target, disk = tmp_path / "own_site.py", tmp_path / "model.safetensors", StateDir(tmp_path / "state")
    file.write_text(OWN)
    client = client_of(str(file), federation(), 0)
    with disk.locked():
        disk.save(Saved.after("run", 0, federation(), client.run_round(None, 0), client))
    export_model(disk.folder, target)
    assert fedssa.load_client(target, str(file))(DATA).shape == (2, 4)
    file.write_text(OWN.replace("relu", "tanh"))
    with pytest.warns(
        FedSSAWarning, match=rf"^{target}: the code of {file} has changed since its weights were trained"
    ):
        fedssa.load_client(target, str(file))
    _run_round(Request("run", "", t=1, heard=0), federation(), str(file), 0, disk)
    assert f"{disk.folder}: the code of {file} has changed" in caplog.text
    file.write_text(OWN.replace("nn.Linear(5, 7)", "nn.Linear(5, 7, bias=False)"))
    with pytest.raises(ModelError, match=rf"^{target}: the structure of {file} has changed since its weights were"):
        fedssa.load_client(target, str(file))
    with pytest.raises(ModelError, match=rf"^{disk.folder}: the structure of {file} has changed"):
        _run_round(Request("run", "", t=2, heard=1), federation(), str(file), 0, disk)


def test_states_and_files_of_before_have_no_fingerprint_and_are_loaded(tmp_path: Path) -> None:
    file, target, disk = tmp_path / "own_site.py", tmp_path / "model.safetensors", StateDir(tmp_path / "state")
    file.write_text(OWN)
    client = client_of(str(file), federation(), 0)
    now = Saved.after("run", 0, federation(), client.run_round(None, 0), client)
    with disk.locked():
        disk.save(replace(now, model=None))
    assert export_model(disk.folder, target).model is None
    fedssa.load_client(target, str(file))
