"""Clients' own models on new samples, and as files for other programs."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typing_extensions import override

import fedssa
from fedssa.errors import DataError, FedSSAError, ModelError, RunDirError, SettingsError
from tests.python import python
from tests.tiny import tiny


def fixed_batch(task: fedssa.Task) -> nn.Module:
    """A model whose code turns the size of a batch into a number."""

    class Counts(nn.Flatten):
        @override
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input.reshape(int(input.shape[0]), -1)

    return nn.Sequential(Counts(), nn.Linear(1024, task.num_classes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    archs = ["cnn-5", "mlp-3", f"{__name__}:fixed_batch"]
    table = tiny(models={"archs": archs, "width": 16}, rounds={"total": 1, "fraction": 1.0})
    return fedssa.run(table, out=tmp_path_factory.mktemp("run") / "tiny")


@pytest.fixture(scope="module")
def samples(finished: fedssa.RunResult) -> Any:
    return fedssa.load_client_data(finished.path, 0).test


def test_predictions_have_the_accuracy_that_was_recorded(finished: fedssa.RunResult, samples: Any) -> None:
    x, y = samples.x.numpy(), samples.y.numpy()
    probabilities = fedssa.predict(finished, 0, x, batch_size=7)
    assert probabilities.shape == (len(x), 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=1) == y).mean() == pytest.approx(finished.client_accuracies[0], abs=1e-6)
    named = fedssa.predict(finished.path, 0, x, labels=True)
    assert named.tolist() == [str(label) for label in probabilities.argmax(axis=1)]
    np.testing.assert_allclose(fedssa.predict(finished, 0, x), probabilities, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "line"),
    [
        (np.zeros((2, 8, 8, 1), np.uint8), "x: its samples are 1×8×8, those of the run 1×32×32"),
        (np.zeros((0, 32, 32, 1), np.uint8), "x: has no samples"),
        (np.zeros((2, 32, 32, 1), np.int64), "x: x is int64 with 4 axes; give images as uint8"),
    ],
)
def test_samples_of_another_kind_are_refused(finished: fedssa.RunResult, x: np.ndarray, line: str) -> None:
    with pytest.raises(DataError, match=line):
        fedssa.predict(finished, 0, x)


def test_a_state_dict_loads_into_the_model(finished: fedssa.RunResult, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    done = python("-m", "fedssa", "export", str(finished.path), "1", str(file))
    assert done.stdout == f"written: {file}: the model of client 1\n"
    net = finished.load(1)
    expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    nn.init.zeros_(net.header.weight)
    net.load_state_dict(load_file(file))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in net.state_dict().items())


def test_onnx_gives_what_the_model_gives(finished: fedssa.RunResult, samples: Any, tmp_path: Path) -> None:
    file = fedssa.export(finished, 0, tmp_path / "model.onnx", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(file)
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == [str(c) for c in range(10)]
    for num in (1, 5):
        x = fedssa.as_input(samples.x[:num])
        with torch.no_grad():
            expected = finished.load(0)(x).numpy()
        (logits,) = session.run(["logits"], {"input": x.numpy()})
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported_is_refused(
    finished: fedssa.RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="cannot become ONNX"):
        fedssa.export(finished, 2, tmp_path / "model.onnx", "onnx")
    with pytest.raises(SettingsError, match="format = 'pickle': should be one of state_dict, onnx"):
        fedssa.export(finished, 0, tmp_path / "model", "pickle")  # type: ignore[arg-type]
    with pytest.raises(RunDirError, match="has no client 9"):
        fedssa.export(finished, 9, tmp_path / "model")
    with pytest.raises(RunDirError, match=r"cannot be written \(No such file"):
        fedssa.export(finished, 0, tmp_path / "no" / "model")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(FedSSAError, match=r"pip install 'fedssa\[onnx\]'"):
        fedssa.export(finished, 0, tmp_path / "model.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


class Both(nn.Module):
    """A model that takes token ids and a mask by name."""

    def __init__(self, task: fedssa.Task) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(9, 6), nn.Linear(6, task.num_classes)

    @override
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.last((self.embed(ids) * mask[..., None]).sum(dim=1))


def test_named_inputs_are_given_predicted_and_exported(tmp_path: Path) -> None:
    y = np.arange(60) % 3
    x = {"ids": np.random.default_rng(0).integers(0, 9, (60, 5)), "mask": np.ones((60, 5), bool)}
    table = tiny(models={"archs": [Both]}, rounds={"total": 1})
    result = fedssa.run({**table, "partition": {"name": "iid", "clients": 2}}, data=(x, y), out=tmp_path / "run")
    few = {name: array[:4] for name, array in x.items()}
    probabilities = fedssa.predict(result, 0, few)
    session = onnxruntime.InferenceSession(fedssa.export(result, 0, tmp_path / "both.onnx", "onnx"))
    (logits,) = session.run(["logits"], few)
    np.testing.assert_allclose(torch.from_numpy(logits).softmax(dim=1), probabilities, rtol=1e-4)
    with pytest.raises(DataError, match="x: kind is of arrays by name, and x is one array"):
        fedssa.predict(result, 0, x["ids"])
