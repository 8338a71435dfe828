"""Any module is split at the last linear layer that runs, and becomes f = header ∘ extractor."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from typing_extensions import override

from fedssa.core.samples import Input, Inputs, Samples, as_input, each, form_of, in_words, is_image
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.errors import ModelError

PROBE_SIZE = 8


class SplitModel(nn.Module):
    """Joins a private extractor of any structure with a header of the one shape that all clients share."""

    def __init__(self, extractor: nn.Module, header: nn.Linear, *, channels_last: bool = True) -> None:
        super().__init__()
        self.extractor = extractor
        self.header = header
        self.channels_last = channels_last  # False: the extractor wants x contiguous (it uses .view, say)

    @override
    def forward(self, x: Inputs) -> Tensor:
        logits: Tensor = self.header(self.extractor(x))
        return logits


class ByName(nn.Module):
    """Gives a model its named inputs as keyword arguments; all others may call it with one argument x."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @override
    def forward(self, x: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.module(**x)
        return out


def split(module: nn.Module, task: Task, *, probe: Inputs | None = None) -> SplitModel:
    """Splits a copy of `module`, and proves on a probe batch that the two parts together still are the module.

    A header without bias gets one of zeros. A representation that is not `task.width` wide gets a projection
    (linear + ReLU) and a new header behind it: only then does the function change.
    """
    if probe is None:
        probe = probe_of(task)
    if isinstance(task.inputs, dict):
        module = ByName(module)
    try:
        module = _materialised(module, probe)
        whole = copy.deepcopy(module)
    except Exception as error:  # a user's module may raise anything
        raise ModelError(f"{_title(module)}: cannot be copied ({first_line(error)})") from error
    name, linear = _last_linear_that_runs(whole, probe)
    if linear.out_features != task.num_classes:
        raise ModelError(
            f"{_title(module)}: its last linear layer '{name}' has {linear.out_features} outputs, "
            f"the task has {task.num_classes} classes; give it {task.num_classes} outputs"
        )
    extractor = _without(whole, name)
    parts = SplitModel(extractor, _plain(linear), channels_last=False)
    _check_same_function(parts, module, name, probe)
    if linear.in_features != task.width:
        projection = nn.Linear(linear.in_features, task.width)
        parts.extractor = nn.Sequential(extractor, projection, nn.ReLU())
        parts.header = nn.Linear(task.width, task.num_classes)
    parts.channels_last = _runs_channels_last(parts, probe)
    return parts


def checked(model: SplitModel, task: Task) -> SplitModel:
    """Returns a model that came split already, once a copy has run on the task's input in both modes."""
    if isinstance(task.inputs, dict) and not any(isinstance(m, ByName) for m in model.extractor.modules()):
        model.extractor = ByName(model.extractor)  # `split` would have done that
    probe = probe_of(task)
    for training in (False, True):
        _forward(copy.deepcopy(model), probe, training=training)
    model.channels_last = _runs_channels_last(model, probe)
    return model


def probe_of(task: Task) -> Inputs:
    """Returns real samples if the task has some, and else a batch of the right shapes and types."""
    if task.probe is not None:
        return task.probe
    if isinstance(task.inputs, Input):
        return _made_up(task.inputs)
    return {name: _made_up(one) for name, one in task.inputs.items()}


def probe_from(samples: Samples) -> Inputs:
    """Returns the first samples as a model takes them, some of them twice if there are few."""
    found: Inputs = as_input(samples.take(torch.arange(PROBE_SIZE) % len(samples)).x)
    return found


def _made_up(one: Input) -> Tensor:
    """Draws floats in [-1, 1]; a whole number is 0, which every vocabulary has, and a mask hides nothing."""
    size = (PROBE_SIZE, *one.shape)
    if one.type == "float32":
        return torch.randn(size, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    return torch.ones(size, dtype=torch.bool) if one.type == "bool" else torch.zeros(size, dtype=torch.int64)


def _materialised(module: nn.Module, probe: Inputs) -> nn.Module:
    """Gives lazy layers their weights in a first forward pass, from the caller's random stream.

    It runs in eval mode, so that no statistics of the probe stay in them.
    """
    if not any(isinstance(m, LazyModuleMixin) for m in module.modules()):
        return module
    module = copy.deepcopy(module)
    was_training = module.training
    with torch.no_grad():
        module.eval()(probe)
    return module.train(was_training)


def _last_linear_that_runs(module: nn.Module, probe: Inputs) -> tuple[str, nn.Linear]:
    ran: list[str] = []
    linears = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}

    def note(name: str) -> Any:
        return lambda *_: ran.append(name)

    handles = [linear.register_forward_hook(note(name)) for name, linear in linears.items()]
    try:
        _forward(module, probe, training=False)
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise ModelError(f"{_title(module)}: no nn.Linear runs in it, so it has no header to share")
    last = ran[-1]
    if ran.count(last) > 1:
        raise ModelError(f"{_title(module)}: its last linear layer '{last}' runs {ran.count(last)} times, not once")
    weight = linears[last].weight
    if sum(p is weight for m in module.modules() for p in m._parameters.values()) > 1:
        raise ModelError(f"{_title(module)}: the weight of '{last}' is used by another layer too; untie it")
    return last, linears[last]


def _plain(linear: nn.Linear) -> nn.Linear:
    """Makes an ordinary, trainable layer with bias that computes the same function."""
    parameters = dict(linear.named_parameters())
    header = nn.Linear(linear.in_features, linear.out_features)
    with torch.no_grad():
        header.weight.copy_(linear.weight)
        header.bias.copy_(parameters["bias"] if "bias" in parameters else torch.zeros(linear.out_features))
    return header


def _without(module: nn.Module, name: str) -> nn.Module:
    """Puts an identity in the place of the module's header."""
    if not name:
        return nn.Identity()
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return module


def _check_same_function(parts: SplitModel, module: nn.Module, name: str, probe: Inputs) -> None:
    """Compares in training mode too, because a dropout behind the header would show only there."""
    for training in (False, True):
        before, after = (_forward(copy.deepcopy(m), probe, training=training) for m in (module, parts))
        if before.shape != after.shape or not torch.allclose(before, after, rtol=1e-5, atol=1e-6):
            raise ModelError(
                f"{_title(module)}: its last linear layer '{name}' is not its last operation "
                "(a softmax or a dropout behind it?); let the model return that layer's output"
            )


def _runs_channels_last(parts: SplitModel, probe: Inputs) -> bool:
    if not any(is_image(x) for x in (probe.values() if isinstance(probe, dict) else (probe,))):
        return False
    model = copy.deepcopy(parts).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        _forward(model, each(_in_nhwc_memory, probe), training=True)
    except ModelError:
        return False
    return True


def _in_nhwc_memory(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if is_image(x) else x


def _forward(module: nn.Module, probe: Inputs, *, training: bool) -> Tensor:
    was_training = module.training
    module.train(training)
    try:
        with torch.no_grad(), seeded(0, "start"):
            out = module(probe)
    except Exception as error:  # a user's module may raise anything
        form = in_words(form_of(probe, stored=False))
        raise ModelError(f"{_title(module)}: does not run on an input of {form} ({first_line(error)})") from error
    finally:
        module.train(was_training)
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise ModelError(f"{_title(module)}: returns {_kind(out)}; it should return logits [batch, classes]")
    return out


def _title(module: nn.Module) -> str:
    return type(module.module if isinstance(module, ByName) else module).__name__


def _kind(value: object) -> str:
    return f"a tensor of {value.ndim} dimensions" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def header_rows(header: nn.Linear) -> Tensor:
    """Returns a copy of the header as class rows (weight[s], bias[s]): [S, d + 1]."""
    return torch.cat([header.weight, header.bias[:, None]], dim=1)


@torch.no_grad()
def set_header_rows(header: nn.Linear, classes: Tensor, rows: Tensor) -> None:
    header.weight[classes] = rows[:, :-1]
    header.bias[classes] = rows[:, -1]
