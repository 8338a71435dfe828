"""Messages: what is encoded comes back, and what does not fit is refused in one line that names the field."""

import json
from typing import Annotated, Any, Generic, TypeVar, Union

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssa.core.client import Answer, AnyAnswer, ClientInfo
from fedssa.core.fields import Between
from fedssa.core.message import (
    FORMAT,
    Nothing,
    decode,
    digest,
    encode,
    from_bytes,
    message,
    num_bytes,
    num_params,
    of,
    owned,
    plain_in,
    seal,
    tensors_in,
    to_bytes,
    unseal,
)
from fedssa.core.tensors import digest as digest_of_tensors
from fedssa.errors import AnswerError
from fedssa.methods import METHODS
from fedssa.records import Scores
from tests.conftest import rows_message, same_bits, share_memory
from tests.core.kinds import Kinds, Row, kinds

T = TypeVar("T")


@message
class Envelope(Generic[T]):
    content: T | None
    number: Annotated[int, Between(0)] = 0


def through(kind: type[T], value: object) -> T:
    """There and back as bytes, and the same without them."""
    direct = decode(kind, json.loads(json.dumps(encode(value)[0])), encode(value)[1])
    back = from_bytes(kind, to_bytes(value))
    assert digest(direct) == digest(back)
    return back


# -- round trips -----------------------------------------------------------------------------------------------
PRESENT = {
    "maybe_tensor": torch.tensor([2.0]),
    "maybe_number": 0,
    "maybe_row": Row(torch.zeros(2)),
    "maybe_weights": {"w.x": torch.ones(1)},
    "maybe_last": {1: 2},
    "counted": 5,
    "made": {"a.b": Row(torch.ones(1))},
}


@pytest.mark.parametrize("others", [{}, PRESENT, {"weights": {}, "last": {}, "several": (), "rows": (), "tensors": ()}])
def test_every_kind_of_field_comes_back(others: dict[str, Any]) -> None:
    value = kinds(**others)
    back = through(Kinds, value)
    assert digest(back) == digest(value)
    assert plain_in(back) == plain_in(value)
    mine, theirs = tensors_in(back), tensors_in(value)
    assert same_bits(dict(sorted(mine.items())), dict(sorted(theirs.items())))


def test_the_types_come_back_too() -> None:
    back = through(Kinds, kinds(**PRESENT))
    assert set(back.by_client) == {2, 10}
    assert {type(key) for key in (*back.by_client, *back.last)} == {int}
    assert set(back.weights) == {"extractor.0.weight", "b", "a.b.c"}
    assert isinstance(back.row, Row)
    assert isinstance(back.by_client[2], Row)
    assert isinstance(back.made["a.b"], Row)
    assert (back.several, type(back.rows), type(back.tensors)) == ((3, 1, 2), tuple, tuple)
    assert (back.yes, back.number, back.real, back.choice, back.text) == (True, -3, 0.1, "all", 'ü "\n')


def test_the_order_of_a_dict_of_numbers_stays() -> None:
    """The first accuracy is the headline."""
    scores = {"head": 0.5, "untuned": 0.25, "a": 1.0}
    assert list(through(Kinds, kinds(scores=scores)).scores) == ["head", "untuned", "a"]


@pytest.mark.parametrize("name", ["maybe_tensor", "maybe_number", "maybe_row", "maybe_weights", "maybe_last"])
def test_an_optional_field_is_there_or_not(name: str) -> None:
    assert getattr(through(Kinds, kinds()), name) is None
    back = through(Kinds, kinds(**{name: PRESENT[name]}))
    assert digest({"x": getattr(back, name)}) == digest({"x": PRESENT[name]})


@pytest.mark.parametrize("name", ["maybe_weights", "maybe_last"])
def test_an_empty_dict_is_not_nothing(name: str) -> None:
    assert getattr(through(Kinds, kinds(**{name: {}})), name) == {}
    assert getattr(through(Kinds, kinds(**{name: None})), name) is None


@pytest.mark.parametrize("whole", [0, -3, 5000, 2**1023 - 1])
def test_a_whole_number_may_stand_for_a_real_one(whole: int) -> None:
    """JSON of other languages writes 3 for 3.0."""
    meta, tensors = encode(kinds())
    real = decode(Kinds, meta | {"fields": meta["fields"] | {"real": whole}}, tensors).real
    assert (type(real), real) == (float, float(whole))


def test_tensors_of_a_dict_come_in_the_order_of_their_names() -> None:
    """A blob keeps them in an order of its own, and sums of floats depend on it."""
    meta, tensors = encode(kinds())
    for sent in (tensors, dict(reversed(tensors.items()))):
        assert list(decode(Kinds, meta, sent).weights) == ["a.b.c", "b", "extractor.0.weight"]


@message
class Widened:
    """A message of a later edition: with more fields than were sent."""

    number: int
    counted: int = 7
    note: str = "none"


def test_a_plain_field_with_a_default_may_be_missing() -> None:
    back = decode(Widened, {"format": FORMAT, "fields": {"number": 1}}, {})
    assert (back.number, back.counted, back.note) == (1, 7, "none")


def answer(payload: object) -> AnyAnswer:
    scores = Scores({"head": 0.5}, 4, {}, 0)
    return Answer(
        client=3,
        payload=payload,
        loss=0.25,
        steps=2,
        scores=scores,
        header_norm=1.0,
        flops=None,
        state_digest="0" * 64,
    )


@pytest.mark.parametrize("name", METHODS)
def test_an_answer_of_any_method_is_filled_with_its_upload(name: str) -> None:
    kind: type[AnyAnswer] = of(Answer, METHODS[name].messages().up)
    assert through(kind, answer(None)).payload is None


def test_a_generic_message_holds_what_it_is_filled_with() -> None:
    up = rows_message({0: [1.0, 2.0], 2: [3.0, 4.0]})
    back: AnyAnswer = through(of(Answer, METHODS["fedssa"].messages().up), answer(up))
    assert type(back.payload) is type(up)
    assert digest(back) == digest(answer(up))
    assert back.scores == Scores({"head": 0.5}, 4, {}, 0)
    nested: Envelope[Envelope[Row]] = Envelope(Envelope(Row(torch.ones(1)), 1), 2)
    filled: Any = through(of(Envelope, of(Envelope, Row)), nested)
    assert (type(filled.content.content), filled.content.number, filled.number) == (Row, 1, 2)


@message
class Rows(Generic[T]):
    some: tuple[T, ...] | None
    others: Union[tuple[T, ...], None]  # noqa: UP007  (as some write it)
    by_name: dict[str, T]


def test_a_generic_message_may_hold_many_of_what_it_is_filled_with() -> None:
    some, others, by_name = (Row(torch.ones(1)), Row(torch.zeros(2))), (Row(torch.ones(4)),), {"a": Row(torch.ones(3))}
    value: Rows[Row] = Rows(some, others, by_name)
    back: Rows[Row] = through(of(Rows, Row), value)
    assert back.some
    assert back.others
    assert {type(row) for row in (*back.some, *back.others, *back.by_name.values())} == {Row}
    assert digest(back) == digest(value)


def test_a_generic_message_of_one_type_is_not_read_as_another() -> None:
    meta, tensors = encode(answer(Row(torch.ones(1))))
    with pytest.raises(AnswerError, match=r"^payload.rows is missing$"):
        decode(of(Answer, METHODS["fedssa"].messages().up), meta, tensors)


def test_what_joins_is_a_message_too() -> None:
    info = ClientInfo(3, (0, 2), 10, Scores({"head": 0.5}, 4, {"head": 1.0}, 1), "0" * 16 + "-12")
    assert through(ClientInfo, info) == info
    assert through(ClientInfo, ClientInfo(0, (), 1)) == ClientInfo(0, (), 1)


def test_nothing_is_a_message() -> None:
    assert isinstance(through(Nothing, Nothing()), Nothing)
    assert (num_params(Nothing()), num_bytes(Nothing())) == (0, 0)


NAME = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TENSOR = st.one_of(
    st.lists(st.floats(width=32), max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float32)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda v: torch.tensor(v, dtype=torch.int64)),
    st.lists(st.booleans(), max_size=3).map(lambda v: torch.tensor(v, dtype=torch.bool)),
    st.integers(0, 255).map(lambda v: torch.tensor(v, dtype=torch.uint8)),
)
ROW = st.builds(Row, TENSOR, REAL)
KEYS = st.dictionaries(st.integers(), st.integers(), max_size=3)
KINDS = st.builds(
    Kinds,
    tensor=TENSOR,
    number=st.integers(),
    real=REAL,
    yes=st.booleans(),
    text=st.text(max_size=8),
    choice=st.sampled_from(["seen", "all"]),
    row=ROW,
    weights=st.dictionaries(NAME, TENSOR, max_size=3),
    by_client=st.dictionaries(st.integers(), ROW, max_size=3),
    last=KEYS,
    scores=st.dictionaries(st.text(max_size=5), REAL, max_size=3),
    several=st.lists(st.integers(), max_size=3).map(tuple),
    tensors=st.lists(TENSOR, max_size=3).map(tuple),
    rows=st.lists(ROW, max_size=2).map(tuple),
    maybe_tensor=st.none() | TENSOR,
    maybe_number=st.none() | st.integers(),
    maybe_row=st.none() | ROW,
    maybe_weights=st.none() | st.dictionaries(NAME, TENSOR, max_size=2),
    maybe_last=st.none() | KEYS,
    counted=st.integers(),
)


@given(KINDS)
@settings(max_examples=100)
def test_whatever_is_encoded_comes_back_to_the_last_bit(value: Kinds) -> None:
    back = through(Kinds, value)
    assert digest(back) == digest(value)
    assert digest(unseal(Kinds, seal(value))) == digest(value)
    assert encode(back)[0] == encode(value)[0]


def test_messages_are_equal_by_their_digests_only() -> None:
    """Tensors have no answer to ==."""
    one, other = Row(torch.ones(2)), Row(torch.ones(2))
    assert one != other
    assert len({one, other}) == 2
    assert digest(one) == digest(other)


# -- leaves ----------------------------------------------------------------------------------------------------
def test_a_message_of_tensors_has_the_digest_of_its_tensors() -> None:
    up = rows_message({0: [1.0, 2.0]})
    assert digest(up) == digest_of_tensors({"rows": up.rows, "classes": torch.tensor([0])})


@pytest.mark.parametrize(
    "others",
    [
        {"number": -2},
        {"real": 0.1000000000000001},
        {"yes": False},
        {"text": "x"},
        {"several": (3, 2, 1)},
        {"tensor": torch.tensor([[1.5, 0.0]])},
        {"row": Row(torch.tensor([1.0]), 2.5)},
        {"maybe_number": 0},
        {"last": {3: 1}},
    ],
    ids=str,
)
def test_any_other_value_has_another_digest(others: dict[str, Any]) -> None:
    assert digest(kinds(**others)) != digest(kinds())


def test_the_order_of_a_dict_is_no_part_of_the_digest() -> None:
    assert digest({"a": 1, "b": 2.5}) == digest({"b": 2.5, "a": 1})
    assert digest({"a": 1, "b": 2.5}) != digest({"a": 2.5, "b": 1})


def test_plain_numbers_are_counted_too() -> None:
    row = Row(torch.ones(3), 0.5)
    assert (num_params(row), num_bytes(row)) == (4, 3 * 4 + 8)
    assert (num_params({"n": 3, "text": "äb"}), num_bytes({"n": 3, "text": "äb"})) == (0, 8 + 3)


def test_an_owned_copy_shares_nothing() -> None:
    value = kinds(**PRESENT)
    copy = owned(value)
    assert digest(copy) == digest(value)
    assert not share_memory(tensors_in(copy), tensors_in(value))
    assert type(copy.row) is Row
    assert owned(None) is None


def test_a_decoded_message_shares_nothing_with_its_bytes() -> None:
    blob = to_bytes(Row(torch.ones(2)))
    from_bytes(Row, blob).values.add_(1)
    assert from_bytes(Row, blob).values.tolist() == [1, 1]
