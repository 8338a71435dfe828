"""Any module is split at the last linear layer that runs, and becomes f = header ∘ extractor."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from typing_extensions import override

from fedssa.core.outputs import Taking, entries_in
from fedssa.core.samples import Input, Inputs, Samples, as_input, count, each, form_of, in_words, is_image, rows
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.tensors import overlapping
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


@dataclass(frozen=True)
class Cut:
    """A cut says where the modules of one architecture are split, after a proof on one of them."""

    header: str  # the name of the layer
    takes: bool  # whether the logits must be taken out of what the module returns
    channels_last: bool
    output: str | None = None  # the entry that holds the logits, if its name was given


def split(module: nn.Module, task: Task, *, probe: Inputs | None = None, output: str | None = None) -> SplitModel:
    """Splits a copy of `module`, and proves on a probe batch that the two parts together still are the module.

    A header without bias gets one of zeros. A representation that is not `task.width` wide gets a projection
    (linear + ReLU) and a new header behind it: only then does the function change. A module may return its logits in
    an object, dict or tuple: `output` names the entry, which else is the one named `logits` or the first tensor.
    """
    if probe is None:
        probe = probe_of(task)
    return divided(module, task, proved(module, task, probe=probe, output=output), probe=probe)


def proved(module: nn.Module, task: Task, *, probe: Inputs | None = None, output: str | None = None) -> Cut:
    """Finds where to split, on copies of the module and without a number of the caller's random stream."""
    probe = probe_of(task) if probe is None else probe
    refuse_views(module)
    with seeded(0, "start"):
        module, takes = _with_logits(_copied(module, task, probe), probe, output)
        name, linear = _last_linear_that_runs(copy.deepcopy(module), probe)
        if linear.out_features != task.num_classes:
            raise ModelError(
                f"{_title(module)}: its last linear layer '{name}' has {linear.out_features} outputs, "
                f"the task has {task.num_classes} classes; give it {task.num_classes} outputs"
            )
        _check_classes(module, task, probe)
        parts = _divided_at(copy.deepcopy(module), name)
        _check_same_function(parts, module, name, probe)
        _check_other_batches(module, task, probe)
        _fit_width(parts, task)
        return Cut(name, takes, _runs_channels_last(parts, probe), output)


def divided(module: nn.Module, task: Task, cut: Cut, *, probe: Inputs | None = None) -> SplitModel:
    """Splits a copy of a module where one like it was proved to be split rightly; nothing but lazy layers runs."""
    whole = _copied(module, task, probe_of(task) if probe is None else probe)
    parts = _divided_at(Taking(whole, cut.output) if cut.takes else whole, cut.header)
    _fit_width(parts, task)
    parts.channels_last = cut.channels_last
    return parts


def checked(model: SplitModel, task: Task) -> SplitModel:
    """Returns a model that came split already, once copies of it have run on the task's input in both modes."""
    model, probe = by_name(model, task), probe_of(task)
    for training in (False, True):
        _forward(copy.deepcopy(model), probe, training=training)
    _check_other_batches(model, task, probe)
    model.channels_last = _runs_channels_last(model, probe)
    return model


def by_name(model: SplitModel, task: Task) -> SplitModel:
    """Lets the extractor of a model that came split take named inputs as keyword arguments, if the task has such."""
    if isinstance(task.inputs, dict) and not any(isinstance(m, ByName) for m in model.extractor.modules()):
        model.extractor = ByName(model.extractor)  # `split` would have done that
    return model


def refuse_views(module: nn.Module) -> None:
    """Refuses tensors that share memory but are no one Parameter: each copy of the module would untie them."""
    once = {id(tensor): (name, tensor) for name, tensor in _tensors_in(module)}  # one tensor may have two names
    if found := overlapping(once.values()):
        raise ModelError(
            f"{_title(module)}: '{found[0]}' and '{found[1]}' share memory, and a copy would untie them; "
            "let both be one nn.Parameter, or clone() one of them"
        )


def _tensors_in(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters, buffers and the tensors that a module keeps as plain attributes, which a view often is."""
    for name, part in module.named_modules():
        for key, value in {**vars(part), **part._parameters, **part._buffers}.items():
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, Tensor) and not is_lazy(tensor):
                    yield f"{name}.{key}".removeprefix("."), tensor


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


def _copied(module: nn.Module, task: Task, probe: Inputs) -> nn.Module:
    """Copies a module, and gives lazy layers their weights in a first pass, from the caller's random stream."""
    try:
        module = copy.deepcopy(ByName(module) if isinstance(task.inputs, dict) else module)
        if any(isinstance(m, LazyModuleMixin) for m in module.modules()):
            with torch.no_grad():
                was_training = module.training
                module.eval()(probe)  # so that no statistics of the probe stay in it
                module.train(was_training)
    except Exception as error:  # a user's module may raise anything
        raise ModelError(f"{_title(module)}: cannot be copied ({first_line(error)})") from error
    return module


def _with_logits(module: nn.Module, probe: Inputs, output: str | None) -> tuple[nn.Module, bool]:
    """Returns a module that returns logits, and whether it had to be wrapped, for one of its modes at least."""
    outs = [_out(copy.deepcopy(module), probe, training=training) for training in (False, True)]
    if all(isinstance(out, Tensor) for out in outs):
        return module, False
    return Taking(module, output), True


def _check_classes(module: nn.Module, task: Task, probe: Inputs) -> None:
    """Refuses an entry of what a model returns that cannot be its logits."""
    logits = _forward(copy.deepcopy(module), probe, training=False)
    if isinstance(module, Taking) and logits.shape[1:] != (task.num_classes,):
        entries = ", ".join(entries_in(_out(copy.deepcopy(module.module), probe, training=False)))
        raise ModelError(
            f"{_title(module)}: of what it returns ({entries}), what is taken for logits is {list(logits.shape[1:])} a "
            f"sample, and the task has {task.num_classes} classes; name the entry that holds them: output = ..."
        )


def _divided_at(module: nn.Module, name: str) -> SplitModel:
    linear = module.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    return SplitModel(_without(module, name), _plain(linear), channels_last=False)


def _fit_width(parts: SplitModel, task: Task) -> None:
    size = parts.header.in_features
    if size != task.width:
        projection = nn.Linear(size, task.width)
        parts.extractor = nn.Sequential(parts.extractor, projection, nn.ReLU())
        parts.header = nn.Linear(task.width, task.num_classes)


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


def _check_other_batches(module: nn.Module, task: Task, probe: Inputs) -> None:
    """Refuses a model that squeezes, say: the last batch of an evaluation may be small, or a single sample."""
    for size in (1, 3):
        logits = _forward(copy.deepcopy(module), rows(probe, slice(size)), training=False)
        if logits.shape[1] != task.num_classes:
            raise ModelError(
                f"{_title(module)}: returns {logits.shape[1]} numbers a sample for a batch of {size}, and "
                f"{task.num_classes} for a larger one; their number must not depend on the batch"
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
    out = _out(module, probe, training=training)
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != count(probe):
        raise ModelError(
            f"{_title(module)}: returns {_kind(out)} for a batch of {count(probe)}; it should return logits "
            "[batch, classes], or an object, dict or tuple that holds them as 'logits' or as its first tensor"
        )
    return out


def _out(module: nn.Module, probe: Inputs, *, training: bool) -> object:
    was_training = module.training
    module.train(training)
    try:
        with torch.no_grad(), seeded(0, "start"):
            out: object = module(probe)
    except Exception as error:  # a user's module may raise anything
        form = in_words(form_of(probe, stored=False)) + _extent(probe)
        raise ModelError(f"{_title(module)}: does not run on an input of {form} ({first_line(error)})") from error
    finally:
        module.train(was_training)
    return out


def _extent(probe: Inputs) -> str:
    """Tells the least and the largest whole number, since an embedding may have no row for an id."""
    tensors = probe.values() if isinstance(probe, dict) else [probe]
    ids = [x for x in tensors if x.dtype == torch.int64 and x.numel()]
    return f", numbers from {min(int(x.min()) for x in ids)} to {max(int(x.max()) for x in ids)}" if ids else ""


def _title(module: nn.Module) -> str:
    while isinstance(module, (Taking, ByName, SplitModel)):
        module = module.extractor if isinstance(module, SplitModel) else module.module
    return type(module).__name__


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.ndim} dimensions" if value.ndim != 2 else f"{len(value)} rows"
    held = ", ".join(entries_in(value))
    return f"a {type(value).__name__}" + (f" of {held}" if held else "")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def header_rows(header: nn.Linear, classes: Tensor | None = None) -> Tensor:
    """Returns a copy of the header, or of some classes, as class rows (weight[s], bias[s]): [S, d + 1]."""
    parts = (header.weight, header.bias[:, None])
    return torch.cat(parts if classes is None else [part[classes] for part in parts], dim=1)


@torch.no_grad()
def set_header_rows(header: nn.Linear, classes: Tensor, rows: Tensor) -> None:
    header.weight[classes] = rows[:, :-1]
    header.bias[classes] = rows[:, -1]
