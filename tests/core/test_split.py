"""Any module becomes extractor and header, and what cannot is refused in one line."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from typing_extensions import override

from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel, header_rows, set_header_rows, split
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.errors import ModelError
from tests.conftest import copies, same_bits, share_memory

TASK = Task(num_classes=3, input_shape=(4,), width=5)
IMAGES = Task(num_classes=3, input_shape=(2, 6, 6), width=5)


class HeaderDefinedFirst(nn.Module):
    """The last linear layer to be defined is not the last to run; the header sits two levels down."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.ModuleDict({"out": nn.Sequential(nn.Identity(), nn.Linear(5, 3))})
        self.body = nn.Linear(4, 5)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.top["out"](torch.relu(self.body(x)))
        return logits


class WithSpareHead(nn.Module):
    """`spare` is defined last and never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 7)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(x)))
        return logits


class HeaderTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x)) + self.head(self.body(-x))
        return logits


class TiedWeights(nn.Module):
    """The header's weight is the weight of an earlier layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(4, 3)
        self.head.weight = self.body.weight

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x + self.body(x).mean(dim=1, keepdim=True))
        return logits


class Named(NamedTuple):
    features: Tensor
    logits: Tensor


class Returning(nn.Module):
    """Its logits are inside what `pack` makes of (features, logits)."""

    def __init__(self, pack: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.body, self.head, self.pack = nn.Linear(4, 5), nn.Linear(5, 3), pack

    @override
    def forward(self, x: Tensor) -> object:
        features = torch.relu(self.body(x))
        return self.pack(features, self.head(features))


class Conv(nn.Module):
    """2×6×6 → convolution 3×3 → 4×4×4 = 64 numbers → 5 → 3."""

    def __init__(self, *, view: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.body, self.head = nn.Linear(64, 5), nn.Linear(5, 3)
        self.view = view

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = x.view(len(x), -1) if self.view else x.reshape(len(x), -1)
        logits: Tensor = self.head(torch.relu(self.body(x)))
        return logits


def mlp(*behind: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), *behind)


def inputs(task: Task = TASK) -> Tensor:
    return torch.randn(6, *task.input_shape, generator=torch.Generator().manual_seed(1))


def tensors_of(module: nn.Module) -> Tensors:
    return dict(module.state_dict())


def refusal(module: nn.Module, task: Task = TASK) -> str:
    with pytest.raises(ModelError) as error:
        split(module, task)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(type(module).__name__)
    return message


SPLITTABLE: dict[str, tuple[Callable[[], nn.Module], Task]] = {
    "sequential": (mlp, TASK),
    "header defined first": (HeaderDefinedFirst, TASK),
    "spare head": (WithSpareHead, TASK),
    "no bias": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), TASK),
    "weight norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), weight_norm(nn.Linear(5, 3))), TASK),
    "dropout before header": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)), TASK),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), TASK),
    "plain linear": (lambda: nn.Linear(4, 3), Task(3, (4,), width=4)),
    "images, view": (lambda: Conv(view=True), IMAGES),
    "images, reshape": (lambda: Conv(view=False), IMAGES),
}


@pytest.fixture(params=SPLITTABLE)
def module_and_task(request: pytest.FixtureRequest) -> tuple[nn.Module, Task]:
    make, task = SPLITTABLE[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make(), task


@pytest.mark.parametrize("training", [False, True])
def test_header_of_extractor_is_the_module(module_and_task: tuple[nn.Module, Task], training: bool) -> None:
    module, task = module_and_task
    parts = split(module, task)
    outputs = []
    for network in (module, parts):
        network.train(training)
        with seeded(0, "training"), torch.no_grad():  # the same dropout for both
            outputs.append(network(inputs(task)))
    torch.testing.assert_close(outputs[1], outputs[0])


def test_the_header_has_the_shape_that_all_clients_share(module_and_task: tuple[nn.Module, Task]) -> None:
    module, task = module_and_task
    parts = split(module, task)
    assert parts.header.weight.shape == (task.num_classes, task.width)
    assert parts.header.bias.shape == (task.num_classes,)
    assert parts.extractor(inputs(task)).shape == (6, task.width)


def test_the_users_module_is_unchanged_and_shares_no_memory(module_and_task: tuple[nn.Module, Task]) -> None:
    module, task = module_and_task
    module.train()
    before, children = copies(tensors_of(module)), [name for name, _ in module.named_modules()]
    parts = split(module, task)
    with torch.no_grad():
        for tensor in tensors_of(parts).values():
            tensor.zero_()
    assert same_bits(before, tensors_of(module))
    assert [name for name, _ in module.named_modules()] == children
    assert all(part.training for part in module.modules())
    assert not share_memory(tensors_of(module), tensors_of(parts))


def test_the_header_is_the_last_linear_that_runs_not_the_last_defined() -> None:
    module = HeaderDefinedFirst()
    linear = module.top["out"].get_submodule("1")
    assert isinstance(linear, nn.Linear)
    assert same_bits(tensors_of(split(module, TASK).header), tensors_of(linear))


def test_a_linear_that_never_runs_is_no_header_and_stays_in_the_extractor() -> None:
    module = WithSpareHead()
    parts = split(module, TASK)
    assert same_bits(tensors_of(parts.header), tensors_of(module.head))
    assert torch.equal(parts.extractor.get_parameter("spare.weight"), module.spare.weight)


def test_a_header_without_bias_gets_one_of_zeros() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3, bias=False))
    header = split(module, TASK).header
    assert header.bias.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(header.weight, module.get_parameter("1.weight"))


def test_a_plain_linear_is_all_header() -> None:
    parts = split(nn.Linear(4, 3), Task(3, (4,), width=4))
    assert isinstance(parts.extractor, nn.Identity)


@pytest.mark.parametrize("behind", [nn.Softmax(dim=1), nn.LogSoftmax(dim=1), nn.Dropout(0.5), nn.Tanh()])
def test_an_operation_behind_the_header_is_refused(behind: nn.Module) -> None:
    assert "'2' is not its last operation" in refusal(mlp(behind))


def test_a_header_that_runs_twice_is_refused() -> None:
    assert "'head' runs 2 times" in refusal(HeaderTwice())


def test_tied_weights_are_refused() -> None:
    assert "untie" in refusal(TiedWeights(), Task(3, (4,), width=4))


def test_rows_can_be_written_into_a_weight_normed_header() -> None:
    """Such a layer computes its weight: rows written into it would be lost without a word."""
    header = split(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), weight_norm(nn.Linear(5, 3))), TASK).header
    row = torch.arange(6.0)
    set_header_rows(header, torch.tensor([1]), row[None])
    assert torch.equal(header_rows(header)[1], row)


def test_a_frozen_header_is_trained_all_the_same() -> None:
    module = mlp().requires_grad_(False)
    assert all(p.requires_grad for p in split(module, TASK).header.parameters())
    assert not any(p.requires_grad for p in split(module, TASK).extractor.parameters())


def test_another_number_of_outputs_than_classes_is_refused() -> None:
    message = refusal(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 7)))
    assert "'2' has 7 outputs, the task has 3 classes" in message


def test_a_module_without_linear_is_refused() -> None:
    assert "no nn.Linear runs" in refusal(nn.Sequential(nn.Identity()))


# -- logits inside something else ------------------------------------------------------------------------------
PACKED: dict[str, tuple[Callable[[Tensor, Tensor], object], str | None]] = {
    "attribute": (lambda _features, logits: SimpleNamespace(loss=None, logits=logits), None),
    "dict": (lambda features, logits: {"features": features, "logits": logits}, None),
    "only entry of a dict": (lambda _features, logits: {"scores": logits, "notes": "none"}, None),
    "entry by name": (lambda features, logits: {"features": features, "scores": logits}, "scores"),
    "tuple": (lambda features, logits: (logits, features), None),
    "entry by number": (lambda features, logits: [features, logits], "1"),
    "named tuple": (Named, None),
}


@pytest.mark.parametrize("kind", PACKED)
def test_logits_are_taken_out_of_what_a_model_returns(kind: str) -> None:
    pack, output = PACKED[kind]
    module = Returning(pack)
    parts = split(module, TASK, output=output)
    x = inputs()
    torch.testing.assert_close(parts(x), module.head(torch.relu(module.body(x))))
    torch.testing.assert_close(parts.extractor(x), torch.relu(module.body(x)))
    assert same_bits(tensors_of(parts.header), tensors_of(module.head))


def test_a_model_may_return_a_tuple_in_training_alone() -> None:
    class Auxiliary(Returning):
        @override
        def forward(self, x: Tensor) -> object:
            out = super().forward(x)
            return (out, x) if self.training else out

    parts = split(Auxiliary(lambda _features, logits: logits), TASK)
    assert parts.train()(inputs()).shape == parts.eval()(inputs()).shape == (6, 3)


@pytest.mark.parametrize(
    ("pack", "output", "told"),
    [
        (lambda features, logits: {"a": features, "b": logits}, "c", "returns a dict of a, b for a batch of 8"),
        (lambda _features, _logits: "logits", None, "returns a str for a batch of 8"),
        (lambda _features, _logits: (), None, "returns a tuple for a batch of 8"),
        (lambda _features, _logits: None, None, "returns a NoneType for a batch of 8"),
        (lambda _features, logits: logits.squeeze(0), None, "returns a tensor of 1 dimensions for a batch of 1"),
        (lambda _features, logits: logits[:4], None, "returns 4 rows for a batch of 8"),
    ],
)
def test_what_holds_no_logits_is_refused(
    pack: Callable[[Tensor, Tensor], object], output: str | None, told: str
) -> None:
    with pytest.raises(ModelError, match=rf"^Returning: {told}; it should return logits") as error:
        split(Returning(pack), TASK, output=output)
    assert "\n" not in str(error.value)


def test_another_number_of_outputs_for_a_small_batch_is_refused() -> None:
    told = "^Returning: returns 2 numbers a sample for a batch of 3, and .* must not depend on the batch$"
    with pytest.raises(ModelError, match=told):
        split(Returning(lambda _features, logits: logits[:, : 2 if len(logits) == 3 else None]), TASK)


def test_an_entry_that_cannot_be_logits_is_refused_with_the_names_of_all() -> None:
    told = (
        r"^Returning: of what it returns \(features, scores\), what is taken for logits is \[5\] a sample, and the task"
    )
    with pytest.raises(ModelError, match=told):
        split(Returning(lambda features, logits: {"features": features, "scores": logits}), TASK)


# -- views of a weight -----------------------------------------------------------------------------------------
def with_view(make: Callable[[nn.Linear, nn.Module], None]) -> nn.Module:
    module = WithSpareHead()
    make(module.body, module)
    return module


VIEWS: dict[str, Callable[[nn.Linear, nn.Module], None]] = {
    "rows": lambda body, module: setattr(module, "part", body.weight[:3]),
    "detached": lambda body, module: setattr(module, "part", body.weight.detach()[1]),
    "in a list": lambda body, module: setattr(module, "part", [body.bias, body.weight.data]),
    "buffer": lambda body, module: module.register_buffer("part", body.weight.data[2:]),
    "another shape": lambda body, module: setattr(module, "part", nn.Parameter(body.weight.view(4, 5))),
    "transposed": lambda body, module: setattr(module, "part", nn.Parameter(body.weight.data.t())),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_a_weight_is_refused(kind: str) -> None:
    message = refusal(with_view(VIEWS[kind]))
    assert "share memory" in message
    assert "'part'" in message
    assert "'body.weight'" in message


def test_one_parameter_in_two_places_stays_one() -> None:
    module = WithSpareHead()
    module.spare.weight = nn.Parameter(torch.zeros(3, 5))
    module.again = module.spare
    module.body_weight = module.body.weight
    extractor = split(module, TASK).extractor
    assert extractor.get_parameter("body_weight") is extractor.get_parameter("body.weight")


def test_parts_of_one_storage_that_do_not_overlap_are_no_views_of_one_another() -> None:
    module, both = WithSpareHead(), torch.randn(20 + 21)
    module.body.weight = nn.Parameter(both[:20].view(5, 4))
    module.spare.weight = nn.Parameter(both[20:].view(7, 3))
    split(module, TASK)


def test_logits_of_three_dimensions_are_refused() -> None:
    assert "a tensor of 3 dimensions" in refusal(mlp(), Task(3, (2, 4), width=5))


def test_an_input_that_does_not_fit_is_refused() -> None:
    assert "does not run on an input of 9 (mat1 and mat2" in refusal(mlp(), Task(3, (9,), width=5))


class Raises(nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    @override
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardError(self.text)


class KeyboardError(Exception):
    """A class of the user's."""


@pytest.mark.parametrize(
    ("text", "told"), [("", "KeyboardError"), ("\nthen", "KeyboardError"), ("first\nthen", "first")]
)
def test_the_first_line_of_a_users_error_is_told_or_its_class(text: str, told: str) -> None:
    assert refusal(Raises(text)) == f"Raises: does not run on an input of 4 ({told})"


def test_an_image_of_the_wrong_size_is_refused() -> None:
    assert "does not run on an input of 2×9×9 (" in refusal(Conv(view=True), Task(3, (2, 9, 9), width=5))


def test_a_representation_of_another_width_gets_a_projection() -> None:
    parts = split(mlp(), Task(num_classes=3, input_shape=(4,), width=8))
    # 5 → 8 with bias: 40 + 8 numbers; header 8 → 3: 24 + 3; before it 4 → 5: 20 + 5
    assert sum(p.numel() for p in parts.parameters()) == 48 + 27 + 25
    representation = parts.extractor(inputs())
    assert representation.shape == (6, 8)
    assert (representation >= 0).all()  # ReLU
    assert parts(inputs()).shape == (6, 3)


def test_a_representation_of_the_right_width_gets_none() -> None:
    assert sum(p.numel() for p in split(mlp(), TASK).parameters()) == 25 + 18  # 4 → 5, 5 → 3


def test_images_go_channels_last_unless_the_model_uses_view() -> None:
    assert split(Conv(view=False), IMAGES).channels_last
    assert not split(Conv(view=True), IMAGES).channels_last


class ViewsItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(72, 5), nn.Linear(5, 3)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(x.view(len(x), 72))))
        return logits


def test_a_model_that_uses_view_on_its_input_gets_it_contiguous() -> None:
    assert not split(ViewsItsInput(), IMAGES).channels_last


def test_vectors_have_no_channels() -> None:
    assert not split(mlp(), TASK).channels_last


def test_split_leaves_batch_norm_statistics_alone() -> None:
    parts = split(Conv(view=False), IMAGES)
    assert parts.extractor.get_buffer("norm.running_mean").tolist() == [0.0] * 4
    assert parts.extractor.get_buffer("norm.num_batches_tracked").item() == 0


def test_lazy_layers_start_from_the_random_numbers_of_their_client() -> None:
    def start(client: int) -> SplitModel:
        with seeded(0, "start", client=client):
            return split(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)), TASK)

    assert same_bits(tensors_of(start(0)), tensors_of(start(0)))
    assert not torch.equal(start(0).header.weight, start(1).header.weight)


def test_a_probe_of_ones_own_is_used() -> None:
    embedding = nn.Sequential(nn.Embedding(10, 5), nn.Flatten(), nn.Linear(10, 3))  # wants whole numbers
    task = Task(num_classes=3, input_shape=(2,), width=10)
    parts = split(embedding, task, probe=torch.zeros(8, 2, dtype=torch.int64))
    assert parts(torch.tensor([[1, 2]])).shape == (1, 3)


def test_an_id_beyond_an_embedding_is_told() -> None:
    embedding = nn.Sequential(nn.Embedding(10, 5), nn.Flatten(), nn.Linear(10, 3))
    task = Task(num_classes=3, input_shape=(2,), width=10)
    with pytest.raises(ModelError, match=r"an input of 2 of int64, numbers from 3 to 12 \(index out of range"):
        split(embedding, task, probe=torch.tensor([[3, 4], [5, 12]]))
