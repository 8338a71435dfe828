"""Groups: an extractor as one flat vector, the id of a layout and a start, and a start that a group shares."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.check import check
from fedssa.core.fields import Shapes
from fedssa.core.groups import Flat, flat, layout_id, set_flat, sizes_in, started
from fedssa.core.message import digest, from_bytes, to_bytes
from fedssa.core.split import SplitModel
from fedssa.core.tensors import module_state
from fedssa.errors import AnswerError
from tests.conftest import copies, same_bits, share_memory


class Counting(nn.Module):
    """Batch normalisation, and a whole number and a flag that a state_dict leaves out."""

    calls: Tensor
    flag: Tensor

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, width), nn.BatchNorm1d(width)
        self.register_buffer("calls", torch.tensor(0), persistent=False)
        self.register_buffer("flag", torch.tensor([True, False]), persistent=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.norm(self.linear(x)))


def build() -> SplitModel:
    return SplitModel(Counting(), nn.Linear(2, 3), channels_last=False)


def used(seed: int = 0) -> nn.Module:
    """With buffers that have moved."""
    module = started(build, seed, 0, common=False).extractor.train()
    for _ in range(3):
        module(torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)))
    return module


# -- flat vectors ----------------------------------------------------------------------------------------------
def test_a_module_is_one_vector_and_its_counters() -> None:
    values = flat(used())
    # linear 4 · 2 + 2, norm: weight, bias, running mean and variance, 2 each; calls, two flags, batches tracked
    assert (values.floats.dtype, list(values.floats.shape)) == (torch.float32, [18])
    assert values.integers is not None
    assert (values.integers.dtype, sorted(values.integers.tolist())) == (torch.int64, [0, 1, 3, 3])
    check(values, Shapes({"L": 18, "I": 4}))


def test_a_vector_goes_round_without_losing_a_bit() -> None:
    source, target = used(0), used(1)
    with torch.no_grad():
        source.get_parameter("linear.weight")[0, 0] = -0.0
    assert not same_bits(module_state(source), module_state(target))
    set_flat(target, from_bytes(Flat, to_bytes(flat(source))))
    assert same_bits(module_state(source), module_state(target))


def test_writing_a_vector_keeps_the_tensors_and_shares_nothing() -> None:
    module, values = used(1), flat(used(0))
    weight = module.get_parameter("linear.weight")
    set_flat(module, values)
    assert module.get_parameter("linear.weight") is weight
    assert not share_memory(module_state(module), {"floats": values.floats})
    assert not share_memory(module_state(module), {"floats": flat(module).floats})


def test_a_vector_of_a_channels_last_module_is_that_of_a_contiguous_one() -> None:
    conv = nn.Conv2d(3, 4, 3)
    turned = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    set_flat(turned, flat(conv))
    assert torch.equal(turned.weight, conv.weight)
    assert torch.equal(flat(turned).floats, flat(conv).floats)
    assert flat(conv).integers is None


def test_a_module_without_numbers_is_an_empty_vector() -> None:
    values = flat(nn.Identity())
    assert (values.floats.tolist(), values.integers) == ([], None)
    set_flat(nn.Identity(), values)


@pytest.mark.parametrize(
    "values",
    [
        Flat(torch.zeros(17), torch.zeros(4, dtype=torch.int64)),
        Flat(torch.zeros(19), torch.zeros(4, dtype=torch.int64)),
        Flat(torch.zeros(18), torch.zeros(3, dtype=torch.int64)),
        Flat(torch.zeros(18), torch.zeros(5, dtype=torch.int64)),
        Flat(torch.zeros(18)),
    ],
)
def test_a_vector_of_another_layout_is_refused_and_changes_nothing(values: Flat) -> None:
    module = used()
    before = copies(module_state(module))
    with pytest.raises(AnswerError, match=r"^a vector of \d+ numbers for a module of \d+$"):
        set_flat(module, values)
    assert same_bits(module_state(module), before)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
@settings(max_examples=30)
def test_any_stack_of_layers_goes_round(sizes: list[int], normalised: bool) -> None:
    def stack() -> nn.Sequential:
        layers: list[nn.Module] = [nn.Linear(a, b) for a, b in zip([2, *sizes], sizes, strict=False)]
        return nn.Sequential(*layers, *([nn.BatchNorm1d(sizes[-1])] if normalised else []))

    source, target = stack(), stack()
    set_flat(target, flat(source))
    assert same_bits(module_state(source), module_state(target))
    assert digest(flat(target)) == digest(flat(source))


# -- ids -------------------------------------------------------------------------------------------------------
def test_the_id_tells_the_number_of_floats() -> None:
    group = layout_id(started(build, 0, 0, common=True).extractor)
    assert group.split("-")[1:] == ["18", "4"]  # and the number of counters, where there are some
    assert len(group.partition("-")[0]) == 16


def renamed(linear: nn.Linear) -> nn.Module:
    module = nn.Module()
    module.other = linear
    return module


@pytest.mark.parametrize("module", [Counting(), Counting(3), nn.Linear(4, 2), nn.Identity()])
def test_the_sizes_of_vectors_are_read_from_the_id(module: nn.Module) -> None:
    vectors = flat(module)
    counters = 0 if vectors.integers is None else len(vectors.integers)
    assert sizes_in(layout_id(module)) == {"L": len(vectors.floats), "I": counters}


def test_the_id_covers_names_shapes_and_bits() -> None:
    linear = nn.Linear(2, 3)
    same = nn.Linear(2, 3)
    same.load_state_dict(linear.state_dict())
    assert layout_id(same) == layout_id(linear)
    with torch.no_grad():
        same.bias[0] += 1
    turned = nn.Linear(3, 2)
    turned.weight = nn.Parameter(linear.weight.detach().reshape(2, 3))
    others = [same, turned, renamed(linear), linear.double()]
    assert len({layout_id(nn.Linear(2, 3)), *map(layout_id, others)}) == 5


# -- starts ----------------------------------------------------------------------------------------------------
def test_extractors_of_a_group_begin_alike_and_headers_do_not() -> None:
    nets = [started(build, 5, client, common=True) for client in range(3)]
    first = nets[0]
    for net in nets[1:]:
        assert same_bits(module_state(net.extractor), module_state(first.extractor))
        assert layout_id(net.extractor) == layout_id(first.extractor)
        assert not torch.equal(net.header.weight, first.header.weight)
        assert not share_memory(module_state(net), module_state(first))


def test_headers_are_those_of_clients_without_groups() -> None:
    for client in range(2):
        own, grouped = (started(build, 5, client, common=common) for common in (False, True))
        assert same_bits(module_state(own.header), module_state(grouped.header))
        assert not same_bits(module_state(own.extractor), module_state(grouped.extractor))


def test_without_groups_every_client_has_a_start_of_its_own() -> None:
    one, other, again = (started(build, 5, client, common=False) for client in (0, 1, 0))
    assert same_bits(module_state(one), module_state(again))
    assert not same_bits(module_state(one.extractor), module_state(other.extractor))


def test_a_group_of_one_is_a_group() -> None:
    """It begins where it would begin with others, so nobody must know who else is there."""
    alone = started(build, 5, 7, common=True)
    assert same_bits(module_state(alone.extractor), module_state(started(build, 5, 0, common=True).extractor))


def test_another_architecture_or_seed_is_another_group() -> None:
    def wide() -> SplitModel:
        return SplitModel(Counting(3), nn.Linear(3, 3), channels_last=False)

    nets = [started(build, 5, 0, common=True), started(wide, 5, 0, common=True), started(build, 6, 0, common=True)]
    assert len({layout_id(net.extractor) for net in nets}) == 3


def test_a_start_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    started(build, 0, 0, common=True)
    assert torch.equal(torch.get_rng_state(), before)
