"""What is no message of its kind is refused in one line that names the field and nothing else."""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssa.core.check import check
from fedssa.core.fields import Shapes
from fedssa.core.message import (
    FORMAT,
    decode,
    digest,
    encode,
    from_bytes,
    is_finite,
    message,
    seal,
    to_bytes,
    unseal,
)
from fedssa.core.tensors import Tensors, pack
from fedssa.errors import AnswerError
from tests.core.kinds import Kinds, Row, kinds


# -- what does not fit -----------------------------------------------------------------------------------------
class Sent(NamedTuple):
    """A message on its way, to be changed."""

    fields: dict[str, Any]
    tensors: Tensors


Change = Callable[[Sent], object]


def refused(kind: type[Any], meta: dict[str, Any], tensors: Tensors) -> str:
    """The one line in which a message is refused, as bytes too."""
    with pytest.raises(AnswerError) as direct:
        decode(kind, meta, tensors)
    with pytest.raises(AnswerError) as from_wire:
        from_bytes(kind, pack(meta, tensors))
    assert str(direct.value) == str(from_wire.value)
    assert str(direct.value).isprintable()  # so it is one line
    assert len(str(direct.value)) < 250
    return str(direct.value)


BAD: dict[str, tuple[Change, str]] = {
    "missing number": (lambda sent: sent.fields.pop("number"), "number is missing"),
    "missing text": (lambda sent: sent.fields.pop("text"), "text is missing"),
    "missing tensor": (lambda sent: sent.tensors.pop("tensor"), "tensor is missing"),
    "missing message": (lambda sent: sent.fields.pop("row"), "row is missing"),
    "missing dict": (lambda sent: sent.fields.pop("weights"), "weights is missing"),
    "missing tuple": (lambda sent: sent.fields.pop("several"), "several is missing"),
    "missing in a message": (lambda sent: sent.tensors.pop("row.values"), "row.values is missing"),
    "missing in a dict": (lambda sent: sent.tensors.pop("by_client.10.values"), "by_client.10.values is missing"),
    "missing in a tuple": (lambda sent: sent.tensors.pop("tensors.1"), "tensors.1 is missing"),
    "missing deep down": (lambda sent: sent.tensors.pop("rows.0.values"), "rows.0.values is missing"),
    "null": (lambda sent: sent.fields.update(number=None), "number is missing"),
    "null in a dict": (lambda sent: sent.fields["last"].update({"3": None}), "last.3 is missing"),
    "extra field": (lambda sent: sent.fields.update(more=1), "more is no field of Kinds"),
    "extra null": (lambda sent: sent.fields.update(more=None), "more is no field of Kinds"),
    "extra tensor": (lambda sent: sent.tensors.update(more=torch.ones(1)), "more is no field of Kinds"),
    "extra in a message": (lambda sent: sent.fields["row"].update(more=1), "row.more is no field of Row"),
    "extra in a message of a dict": (
        lambda sent: sent.fields["by_client"]["2"].update(more=1),
        "by_client.2.more is no field of Row",
    ),
    "extra in a message of a tuple": (
        lambda sent: sent.fields["rows"][0].update(more={}),
        "rows.0.more is no field of Row",
    ),
    "extra tensor in a message": (
        lambda sent: sent.tensors.update({"row.more": torch.ones(1)}),
        "row.more is no field of Kinds",
    ),
    "extra tensor in a tuple": (
        lambda sent: sent.tensors.update({"tensors.2": torch.ones(1)}),
        "tensors.2 is no field of Kinds",
    ),
    "extra beside tensors": (lambda sent: sent.fields["weights"].update(more=1), "weights.more should be a tensor"),
    "tensor of an absent dict": (
        lambda sent: sent.tensors.update({"maybe_weights.x": torch.ones(1)}),
        "maybe_weights.x is no field of Kinds",
    ),
    "a value where a tensor is": (lambda sent: sent.fields.update(tensor=1), "tensor should be a tensor"),
    "a value in a tuple of tensors": (
        lambda sent: sent.fields.update(tensors=[None, 5]),
        "tensors.1 should be a tensor",
    ),
    "text for a number": (lambda sent: sent.fields.update(number="1"), "number should be of type int"),
    "real for a number": (lambda sent: sent.fields.update(number=1.0), "number should be of type int"),
    "yes for a number": (lambda sent: sent.fields.update(number=True), "number should be of type int"),
    "text for a real": (lambda sent: sent.fields.update(real="nan"), "real should be of type float"),
    "a real of 400 digits": (lambda sent: sent.fields.update(real=10**400), "real should be of type float"),
    "a real that is too large": (lambda sent: sent.fields.update(real=-(2**1023)), "real should be of type float"),
    "number for yes": (lambda sent: sent.fields.update(yes=1), "yes should be of type bool"),
    "number for text": (lambda sent: sent.fields.update(text=1), "text should be of type str"),
    "other choice": (lambda sent: sent.fields.update(choice="none"), "choice should be one of 'seen', 'all'"),
    "list for a choice": (lambda sent: sent.fields.update(choice=["all"]), "choice should be one of 'seen', 'all'"),
    "list for a message": (lambda sent: sent.fields.update(row=[]), "row should be of type dict"),
    "number for a dict": (lambda sent: sent.fields.update(last=3), "last should be of type dict"),
    "list for tensors": (lambda sent: sent.fields.update(weights=[]), "weights should be of type dict"),
    "dict for a tuple": (lambda sent: sent.fields.update(several={}), "several should be of type list"),
    "text in a tuple": (lambda sent: sent.fields.update(several=[1, "2"]), "several.1 should be of type int"),
    "text in a dict": (lambda sent: sent.fields["last"].update({"3": "x"}), "last.3 should be of type int"),
    "a key that is no number": (lambda sent: sent.fields["last"].update(x=1), "last.x should be a key of type int"),
    "a number written otherwise": (
        lambda sent: sent.fields["last"].update({"03": 1}),
        "last.03 should be a key of type int",
    ),
    "a name of two lines": (lambda sent: sent.fields.update({"a\nb": 1}), "a?b is no field of Kinds"),
    "a tensor of two lines": (lambda sent: sent.tensors.update({"a\nb": torch.ones(1)}), "a?b is no field of Kinds"),
    "a key of two lines": (
        lambda sent: sent.fields["last"].update({"a\nb": 1}),
        "last.a?b should be a key of type int",
    ),
}


@pytest.mark.parametrize(("change", "line"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_named_and_nothing_else(change: Change, line: str) -> None:
    meta, tensors = json.loads(json.dumps(encode(kinds())[0])), dict(encode(kinds())[1])
    change(Sent(meta["fields"], tensors))
    assert refused(Kinds, meta, tensors) == line


def test_a_name_of_any_length_makes_a_short_line() -> None:
    meta, tensors = encode(kinds())
    assert refused(Kinds, meta | {"fields": meta["fields"] | {"x" * 10**5: 1}}, tensors)


@pytest.mark.parametrize("fields", [None, [], 5, "x"])
def test_a_message_that_is_no_object_is_refused(fields: object) -> None:
    line = refused(Row, {"format": FORMAT, "fields": fields}, {})
    assert line in ("the message is missing", "the message should be of type dict")


@pytest.mark.parametrize("other", [None, 1, FORMAT + 1, "2", [["x" * 500]], {"a\nb": 1}])
def test_a_message_of_another_format_is_refused(other: object) -> None:
    meta, tensors = encode(kinds())
    line = refused(Kinds, meta | {"format": other}, tensors)
    assert line.startswith("a message of format ")
    assert line.endswith(f", this is {FORMAT}; install the same version")


def test_every_cut_of_a_blob_is_refused_in_one_line() -> None:
    blob = to_bytes(Row(torch.ones(3)))
    for length in range(len(blob)):
        with pytest.raises(AnswerError, match=r"^not a message of ours: ") as error:
            from_bytes(Row, blob[:length])
        assert str(error.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(encode(kinds())[0]["fields"])), JSON)
@settings(max_examples=200)
def test_any_value_in_any_field_is_taken_or_refused_in_one_line(name: str, value: object) -> None:
    meta, tensors = encode(kinds())
    meta["fields"][name] = value
    try:
        decode(Kinds, meta, tensors)
    except AnswerError as error:
        assert str(error).startswith(name)  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017


# -- numbers that are none -------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("real", lambda bad: {"real": bad}),
        ("scores.a", lambda bad: {"scores": {"a": bad}}),
        ("tensor", lambda bad: {"tensor": torch.tensor([0.0, bad])}),
        ("row.values", lambda bad: {"row": Row(torch.tensor([bad]))}),
        ("row.weight", lambda bad: {"row": Row(torch.ones(1), bad)}),
        ("weights.a.b", lambda bad: {"weights": {"a.b": torch.tensor(bad)}}),
        ("by_client.7.values", lambda bad: {"by_client": {7: Row(torch.tensor([bad]))}}),
        ("tensors.0", lambda bad: {"tensors": (torch.tensor([bad]),)}),
        ("rows.1.weight", lambda bad: {"rows": (Row(torch.ones(1)), Row(torch.ones(1), bad))}),
    ],
)
def test_a_field_that_is_not_finite_is_named(
    name: str, change: Callable[[float], dict[str, Any]], value: float
) -> None:
    check(kinds(), Shapes())
    with pytest.raises(AnswerError) as error:
        check(kinds(**change(value)), Shapes())
    assert str(error.value) in (f"{name} holds NaN or infinity", f"{name} is not finite")


def test_finite_is_said_of_tensors() -> None:
    assert is_finite(kinds())
    assert not is_finite(kinds(row=Row(torch.tensor([math.nan]))))


# -- sealed ----------------------------------------------------------------------------------------------------
@message
class Stored:
    t: int
    text: str
    weights: dict[str, Tensor]
    maybe: int | None = None


STORED = Stored(12, "a.b", {"extractor.0": torch.tensor([1.0, -2.0]), "n": torch.tensor([3])})


def test_what_is_sealed_comes_back() -> None:
    assert digest(unseal(Stored, seal(STORED))) == digest(STORED)


def test_one_flipped_bit_anywhere_is_refused() -> None:
    blob = seal(STORED)
    for i in range(len(blob)):
        for bit in range(8):
            damaged = bytearray(blob)
            damaged[i] ^= 1 << bit
            with pytest.raises(AnswerError):
                unseal(Stored, bytes(damaged))


@given(st.integers(0, len(seal(STORED)) - 1), st.integers(0, 255))
@settings(max_examples=200)
def test_one_other_byte_is_refused_or_changes_nothing(i: int, byte: int) -> None:
    damaged = bytearray(seal(STORED))
    damaged[i] = byte
    try:
        assert digest(unseal(Stored, bytes(damaged))) == digest(STORED)
    except AnswerError as error:
        assert str(error).isprintable()  # noqa: PT017


def test_what_is_not_sealed_is_refused() -> None:
    with pytest.raises(AnswerError, match=r"^its digest does not fit its content$"):
        unseal(Stored, to_bytes(STORED))
