"""Sizes, digests and bytes of tensors on the wire."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from fedssa.core.message import num_bytes, num_params
from fedssa.core.tensors import Tensors, all_finite, blob_of, copy_in, digest, own, pack, tensors_of, unpack
from fedssa.errors import AnswerError, ModelError
from tests.conftest import same_bits, share_memory

MESSAGE: Tensors = {"rows": torch.ones(2, 501), "classes": torch.tensor([3, 7])}


def test_numbers_are_floats_and_bytes_are_everything() -> None:
    assert num_params(MESSAGE) == 1002  # 2 · 501; class ids are no numbers
    assert num_bytes(MESSAGE) == 1002 * 4 + 2 * 8


def test_size_follows_the_type() -> None:
    tensors = {
        "double": torch.zeros(3, dtype=torch.float64),
        "half": torch.zeros(5, dtype=torch.bfloat16),
        "flag": torch.zeros(7, dtype=torch.bool),
    }
    assert num_params(tensors) == 3 + 5
    assert num_bytes(tensors) == 3 * 8 + 5 * 2 + 7 * 1


def test_nothing_costs_nothing() -> None:
    assert (num_params({}), num_bytes({})) == (0, 0)


def test_equal_tensors_have_equal_digests() -> None:
    assert digest({"a": torch.arange(6.0)}) == digest({"a": torch.arange(6.0).clone()})
    assert len(digest({})) == 64


def test_the_order_of_names_does_not_matter() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    assert digest({"a": a, "b": b}) == digest({"b": b, "a": a})


def flip_lowest_bit(x: Tensor) -> Tensor:
    return (x.view(torch.int32) ^ 1).view(torch.float32)


X = torch.arange(1.0, 7.0).reshape(2, 3)
OTHERS: dict[str, Tensors] = {
    "name": {"b": X},
    "type": {"a": X.view(torch.int32)},
    "shape": {"a": X.reshape(3, 2)},
    "flat": {"a": X.reshape(6)},
    "one bit": {"a": torch.where(X == 4, flip_lowest_bit(X), X)},
    "one more": {"a": X, "b": torch.zeros(0)},
    "order of elements": {"a": X.flip(0)},
    "nothing": {},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_any_difference_shows_in_the_digest(other: Tensors) -> None:
    assert digest({"a": X}) != digest(other)


def test_the_two_zeros_differ() -> None:
    assert digest({"a": torch.tensor([0.0])}) != digest({"a": torch.tensor([-0.0])})


def test_values_swapped_between_names_differ() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    assert digest({"a": a, "b": b}) != digest({"a": b, "b": a})


def test_memory_format_does_not_show_in_the_digest() -> None:
    images = torch.arange(48.0).reshape(2, 2, 3, 4)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert channels_last.stride() != images.stride()
    assert digest({"a": images}) == digest({"a": channels_last})


VIEWS = {
    "transposed": X.t(),
    "every other column": X[:, ::2],
    "expanded": X[:, :1].expand(2, 5),
    "one element of a column": X[:, 1][:1],  # shape [1], stride 3: contiguous for torch
    "single number": X[1, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_has_the_digest_of_its_values(view: Tensor) -> None:
    assert digest({"a": view}) == digest({"a": torch.tensor(view.tolist())})


def test_own_is_a_detached_contiguous_copy() -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    copy = own(x.t() * 1)
    assert copy.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copy.is_contiguous()
    assert not copy.requires_grad
    assert not share_memory({"a": own(x)}, {"a": x})


def test_a_state_is_written_into_another_in_place() -> None:
    target = {"a": torch.zeros(2, 3), "n": torch.tensor(0)}
    memory = dict(target)
    copy_in({"n": torch.tensor(5), "a": X}, target)
    assert same_bits(memory, {"a": X, "n": torch.tensor(5)})


@pytest.mark.parametrize("source", [{}, {"b": X}, {"a": X, "b": X}, {"a": X[:1]}])
def test_a_state_of_another_layout_is_not_written(source: Tensors) -> None:
    """A row would be broadcast, and a tensor too many forgotten."""
    target = {"a": torch.zeros(2, 3)}
    with pytest.raises(ModelError, match=r"^a state of another layout"):
        copy_in(source, target)
    assert not target["a"].any()


TYPED: dict[str, Tensors] = {
    "empty": {},
    "int64": {"a": torch.tensor([-1, 2**62])},
    "uint8": {"a": torch.tensor([0, 255], dtype=torch.uint8)},
    "bool": {"a": torch.tensor([[True, False]])},
    "float64": {"a": torch.tensor([0.1, -0.0, 1e300], dtype=torch.float64)},
    "bfloat16": {"a": torch.tensor([0.1, 3.0], dtype=torch.bfloat16)},
    "no elements": {"a": torch.zeros(0, 3)},
    "single number": {"a": torch.tensor(2.5)},
    "several": {"b": torch.ones(2, 3), "a": torch.tensor([1])},
}


@pytest.mark.parametrize("tensors", TYPED.values(), ids=TYPED.keys())
def test_unpack_gives_back_what_was_packed(tensors: Tensors) -> None:
    meta = {"t": 3, "loss": 0.1, "text": "ü – \n", "nested": {"list": [1, None]}}
    got_meta, got = unpack(pack(meta, tensors))
    assert got_meta == meta
    assert got.keys() == tensors.keys()
    assert same_bits({name: got[name] for name in tensors}, tensors)
    assert digest(got) == digest(tensors)


@pytest.mark.parametrize("tensors", [{}, *TYPED.values()], ids=["none", *TYPED.keys()])
def test_a_blob_of_tensors_gives_them_back(tensors: Tensors) -> None:
    got = tensors_of(blob_of(tensors))
    assert digest(got) == digest(tensors)
    assert not share_memory(got, tensors)


def test_no_tensors_are_no_bytes() -> None:
    assert blob_of({}) == b""


@given(st.lists(st.floats(width=32), max_size=20))
def test_every_float_survives_the_wire(values: list[float]) -> None:
    tensors = {"a": torch.tensor(values, dtype=torch.float32)}
    assert same_bits(unpack(pack({}, tensors))[1], tensors)


GARBAGE = {
    "nothing": b"",
    "short": b"abc",
    "text": b"this is not a message, whatever its length may be",
    "zeros": bytes(64),
    "huge header": b"\xff" * 64,
    "cut off": pack({"t": 1}, MESSAGE)[:-1],
    "cut off in the header": pack({"t": 1}, MESSAGE)[:40],
    "no metadata of ours": save(MESSAGE),
    "metadata that is no JSON": save(MESSAGE, metadata={"meta": "{"}),
    "metadata that is no object": save(MESSAGE, metadata={"meta": "5"}),
}


@pytest.mark.parametrize("blob", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_in_one_line(blob: bytes) -> None:
    with pytest.raises(AnswerError, match="not a message of ours") as error:
        unpack(blob)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", range(1, len(blob_of(MESSAGE)), 97))
def test_a_blob_that_is_cut_is_refused_in_one_line(length: int) -> None:
    with pytest.raises(AnswerError, match="not a message of ours") as error:
        tensors_of(blob_of(MESSAGE)[:length])
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(AnswerError):
        unpack(blob)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_is_found(value: float, dtype: torch.dtype) -> None:
    bad = torch.zeros(3, 4, dtype=dtype)
    assert all_finite([bad])
    bad[1, 2] = value
    assert not all_finite([torch.ones(2), bad])


def test_integers_and_empty_tensors_are_finite() -> None:
    assert all_finite([])
    assert all_finite([torch.tensor([2**62]), torch.tensor([True]), torch.zeros(0, 3)])
