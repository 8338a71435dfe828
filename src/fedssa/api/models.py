"""A client's own model is used on new samples, or written as a file that other programs read."""

import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedssa.api.result import RunResult
from fedssa.core.samples import Form, Input, Inputs, as_input, count, form_of, from_json, in_words, rows
from fedssa.core.split import SplitModel
from fedssa.core.task import facts_of
from fedssa.core.tensors import own, save_sealed
from fedssa.data.inputs import standard
from fedssa.errors import DataError, FedSSAError, ModelError, RunDirError, SettingsError
from fedssa.kernels import using
from fedssa.models.fingerprint import fingerprint
from fedssa.runs.directory import RunDir
from fedssa.runs.files import write_atomically
from fedssa.settings.task import task_of
from fedssa.simulate.population import settings_of
from fedssa.simulate.saved_models import load_client

Format = Literal["state_dict", "onnx"]
BATCH = 256  # samples
EXPORTED_WITH = 2  # samples; the exporter would take one for a constant


def predict(
    run: "RunResult | Path | str", client: int | str, x: Any, *, labels: bool = False, batch_size: int = BATCH
) -> np.ndarray:
    """Returns what a client's own model makes of samples: probabilities [n, S], or with `labels` the classes' names.

    `x` holds samples as the data set does, bytes as bytes and floats as floats.
    """
    run_dir = _opened(run)
    samples = _samples(x, run_dir)
    net = load_client(run_dir.path, client)
    batches = (rows(samples, slice(start, start + batch_size)) for start in range(0, count(samples), batch_size))
    with torch.inference_mode():
        found = [net(as_input(batch, channels_last=net.channels_last)).softmax(dim=1) for batch in batches]
    probabilities: np.ndarray = torch.cat(found).numpy()
    return np.array(run_dir.class_names)[probabilities.argmax(axis=1)] if labels else probabilities


def export(
    run: "RunResult | Path | str",
    client: int | str,
    target: Path | str,
    format: Format = "state_dict",  # noqa: A002
) -> Path:
    """Writes a client's own model: `state_dict` as safetensors, or `onnx`, which needs no Python to run.

    An ONNX model takes `input`, a batch of any size as `as_input` makes it, and gives `logits`.
    """
    if format not in get_args(Format):
        raise SettingsError(f"format = {format!r}: should be one of {', '.join(get_args(Format))}")
    run_dir, target = _opened(run), Path(target)
    net = load_client(run_dir.path, client)
    content = (
        _onnx(net, _form(run_dir), _about(run_dir, client, net))
        if format == "onnx"
        else _state_dict(net, _about(run_dir, client, net))
    )
    try:
        write_atomically(target, content)
    except OSError as error:
        raise RunDirError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def _opened(run: "RunResult | Path | str") -> RunDir:
    return RunDir.open(run.path if isinstance(run, RunResult) else Path(run))


def _samples(x: Any, run_dir: RunDir) -> Inputs:
    """Makes tensors of samples, and refuses those that have another form than the run's."""
    stored = standard(x, run_dir.settings.get("data", {}).get("kind") or _kinds(_form(run_dir)), "x")
    samples: Inputs
    if isinstance(stored, dict):
        samples = {name: torch.from_numpy(array) for name, array in stored.items()}
    else:
        samples = torch.from_numpy(stored)
    if form_of(samples) != _form(run_dir):
        raise DataError(f"x: its samples are {in_words(form_of(samples))}, those of the run {in_words(_form(run_dir))}")
    if not count(samples):
        raise DataError("x: has no samples")
    return samples


def _kinds(form: Form) -> Any:
    """Returns what the axes are where the recipe does not say it: a model gets three of an image."""
    if isinstance(form, dict):
        return {name: _kinds(one) for name, one in form.items()}
    return "image" if len(form.shape) == 3 else "tensor"


def _form(run_dir: RunDir) -> Form:
    return from_json(run_dir.inputs, run_dir.input_shape)


def _about(run_dir: RunDir, client: int | str, net: SplitModel) -> dict[str, str]:
    """Returns what a file says of its model, in the words of `fedssa site export`."""
    task = task_of(settings_of(run_dir), len(run_dir.class_names), _form(run_dir))
    outcome = run_dir.outcome()
    return {
        "task": json.dumps(asdict(facts_of(task))),
        "run": str(run_dir.path),
        "round": str(outcome.t if outcome else None),
        "client": str(client),
        "model": fingerprint(net),
        "class_names": json.dumps(run_dir.class_names),
    }


def _state_dict(net: SplitModel, about: dict[str, str]) -> bytes:
    return save_sealed({name: own(tensor) for name, tensor in net.state_dict().items()}, about)


def _onnx(net: SplitModel, form: Form, about: dict[str, str]) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise FedSSAError("format = 'onnx' needs onnx and onnxscript: pip install 'fedssa[onnx]'") from error
    batch = {name: _zeros(one) for name, one in form.items()} if isinstance(form, dict) else _zeros(form)
    any_size = {0: torch.export.Dim("batch")}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells which other libraries are not installed
    with using("torch"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates what its own exporter uses
        try:
            exported = torch.onnx.export(
                net,
                kwargs={"x": batch},
                input_names=list(form) if isinstance(form, dict) else ["input"],
                output_names=["logits"],
                dynamic_shapes={"x": dict.fromkeys(form, any_size) if isinstance(form, dict) else any_size},
                verbose=False,
                dynamo=True,
            )
        except Exception as error:  # a user's model may do what ONNX has no word for
            why = str(error.__cause__ or error).splitlines()[0]
            raise ModelError(f"{about['run']}: this model cannot become ONNX ({why})") from error
    assert exported is not None
    model = exported.model_proto
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ModelError(f"{about['run']}: this model's code fixes the size of a batch, so it cannot become ONNX")
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


def _zeros(form: Input) -> Tensor:
    return torch.zeros(EXPORTED_WITH, *form.shape, dtype=getattr(torch, form.type))
