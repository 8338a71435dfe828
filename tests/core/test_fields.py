"""What a field may hold: types, shapes in the paper's letters, ranges; what does not fit is named in one line."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from fedssa.core.check import check
from fedssa.core.client import Answer, ClientInfo
from fedssa.core.context import Context
from fedssa.core.fields import (
    Between,
    Rule,
    Shapes,
    Text,
    bounded,
    f32,
    flags,
    gram_of,
    i64,
    ids,
    like,
    probabilities,
    sample_counts,
    u8,
)
from fedssa.core.message import Nothing, decode, encode, message, of
from fedssa.core.method import Method
from fedssa.core.public import public_data
from fedssa.core.task import Task
from fedssa.errors import AnswerError
from fedssa.methods import FedAvg, FedSSA, Standalone
from fedssa.records import Scores
from tests.conftest import TASK, at, info, rows_message, tiny_net, vectors

T = TypeVar("T")
LAYOUT = {"extractor.weight": (torch.float32, (2, 4)), "n": (torch.int64, ())}
SHAPES = Shapes({"S": 4, "S_k": 2, "d": 3, "n": 10, "N": 5, "P": 7, "L": 6}, (1, 3), {"shared": LAYOUT})


@message
class Fields:
    rows: Annotated[Tensor | None, f32("S_k", "d + 1")] = None
    numbers: Annotated[Tensor | None, i64("N")] = None
    pixels: Annotated[Tensor | None, u8("P", "2")] = None
    known: Annotated[Tensor | None, flags("S")] = None
    own: Annotated[Tensor | None, ids("S_k")] = None
    some: Annotated[Tensor | None, ids("m")] = None
    some_rows: Annotated[Tensor | None, f32("m", "d")] = None
    counts: Annotated[Tensor | None, sample_counts("S_k", total="n")] = None
    outputs: Annotated[Tensor | None, probabilities("m", "S")] = None
    weights: Annotated[dict[str, Tensor] | None, like("shared")] = None
    share: Annotated[float | None, Between(0, 1)] = None
    steps: Annotated[int | None, Between(1)] = None
    last: Annotated[dict[int, int] | None, Between(0, 9)] = None
    places: Annotated[tuple[int, ...] | None, Between(0)] = None
    name: Annotated[str | None, Text("[a-z]{2}")] = None
    by_name: Annotated[dict[str, float] | None, Text("[a-z]{2}")] = None
    scalar: Annotated[Tensor | None, f32()] = None
    logits: Annotated[Tensor | None, bounded("m", "S")] = None
    triangle: Annotated[Tensor | None, gram_of("d")] = None


GOOD: dict[str, list[Any]] = {
    "rows": [torch.zeros(2, 4)],
    "numbers": [torch.zeros(5, dtype=torch.int64)],
    "pixels": [torch.zeros(7, 2, dtype=torch.uint8)],
    "known": [torch.zeros(4, dtype=torch.bool)],
    "own": [torch.tensor([1, 3])],
    "some": [torch.tensor([0, 2, 3]), torch.tensor([], dtype=torch.int64)],
    "counts": [torch.tensor([4, 6]), torch.tensor([0, 10])],
    "outputs": [torch.full((3, 4), 0.25), torch.zeros(0, 4), torch.tensor([[1.0, 0.0, 0.0, 0.0]])],
    "weights": [{"n": torch.tensor(3), "extractor.weight": torch.zeros(2, 4)}],
    "share": [0.0, 1.0, 0.5],
    "steps": [1, 10**9],
    "last": [{}, {5: 9, 7: 0}],
    "places": [(), (0, 3)],
    "name": ["ab"],
    "by_name": [{"ab": 1.0}, {}],
    "scalar": [torch.tensor(1.0)],
    "logits": [torch.full((2, 4), -10_000.0), torch.zeros(0, 4)],
    "triangle": [torch.zeros(6), torch.ones(6), torch.tensor([1.0, 1.00005, 0, 1, 0, 0])],
}
CASES = [(name, value) for name, values in GOOD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_what_fits_is_taken(name: str, value: Any) -> None:
    check(Fields(**{name: value}), SHAPES)


def test_a_field_that_is_absent_is_not_asked() -> None:
    check(Fields(), SHAPES)


ints = torch.tensor
NO_GRAM = "triangle is no Gram matrix: |K_ij| should be at most √(K_ii·K_jj), K_ii at least 0"
BAD: list[tuple[str, Any, str]] = [
    ("rows", torch.zeros(2, 3), "rows is float32 [2, 3], not float32 [S_k, d + 1] = [2, 4]"),
    ("rows", torch.zeros(4), "rows is float32 [4], not float32 [S_k, d + 1]"),
    ("rows", torch.zeros(2, 4, dtype=torch.float64), "rows is float64 [2, 4], not float32 [S_k, d + 1] = [2, 4]"),
    ("numbers", torch.zeros(5), "numbers is float32 [5], not int64 [N] = [5]"),
    ("numbers", torch.zeros(6, dtype=torch.int64), "numbers is int64 [6], not int64 [N] = [5]"),
    ("pixels", torch.zeros(7, 3, dtype=torch.uint8), "pixels is uint8 [7, 3], not uint8 [P, 2] = [7, 2]"),
    ("known", torch.zeros(4, dtype=torch.uint8), "known is uint8 [4], not bool [S] = [4]"),
    ("own", ints([0, 3]), "own is not the client's own classes"),
    ("own", ints([3, 1]), "own is not the client's own classes"),
    ("own", ints([1]), "own is int64 [1], not int64 [S_k] = [2]"),
    ("some", ints([2, 0]), "some is not classes in ascending order"),
    ("some", ints([2, 2]), "some is not classes in ascending order"),
    ("some", ints([2, 4]), "some is not classes in ascending order"),
    ("some", ints([-1, 2]), "some is not classes in ascending order"),
    ("some", ints([-1]), "some is not classes in ascending order"),
    ("counts", ints([4, 5]), "counts does not sum to its 10 training samples"),
    ("counts", ints([11, -1]), "counts has a count below 0"),
    ("counts", ints([2**63 - 1, 11]), "counts does not sum to its 10 training samples"),
    ("logits", torch.full((1, 4), -10_000.5), "logits has logits beyond ±10,000"),
    ("logits", torch.zeros(1, 3), "logits is float32 [1, 3], not float32 [m, S] = [1, 4]"),
    ("logits", ints([[math.inf, 0, 0, 1]]), "logits holds NaN or infinity"),
    ("triangle", torch.ones(5), "triangle is float32 [5], not float32 [d·(d + 1)/2] = [6]"),
    ("triangle", torch.ones(3, 3), "triangle is float32 [3, 3], not float32 [d·(d + 1)/2] = [6]"),
    ("triangle", ints([1.0, 0, 0, -1, 0, 1]), NO_GRAM),
    ("triangle", ints([1.0, 1.001, 0, 1, 0, 1]), NO_GRAM),
    ("triangle", ints([0.0, 0, 1, 1, 0, 4]), NO_GRAM),
    ("triangle", ints([1.0, 0, math.nan, 1, 0, 1]), "triangle holds NaN or infinity"),
    ("outputs", torch.full((1, 4), 0.3), "outputs has rows that are no probabilities (at least 0, sum 1)"),
    ("outputs", torch.full((1, 4), 0.2), "outputs has rows that are no probabilities (at least 0, sum 1)"),
    ("outputs", ints([[1.5, -0.5, 0, 0]]), "outputs has rows that are no probabilities (at least 0, sum 1)"),
    ("outputs", ints([[math.nan, 0, 0, 1]]), "outputs has rows that are no probabilities (at least 0, sum 1)"),
    ("weights", {"n": ints(3)}, "weights has other tensors than the shared model (extractor.weight)"),
    (
        "weights",
        {"n": ints(3), "extractor.weight": torch.zeros(2, 4), "a\nb": ints(1)},
        "weights has other tensors than the shared model (a?b)",
    ),
    (
        "weights",
        dict.fromkeys("dcba", ints(1)),
        "weights has other tensors than the shared model (a, b, c)",
    ),
    (
        "weights",
        {"n": ints(3), "extractor.weight": torch.zeros(4, 2)},
        "weights.extractor.weight is float32 [4, 2], not float32 [2, 4]",
    ),
    ("weights", {"n": ints(3.0), "extractor.weight": torch.zeros(2, 4)}, "weights.n is float32 [], not int64 []"),
    ("share", 1.5, "share = 1.5 should be from 0 to 1"),
    ("share", -0.5, "share = -0.5 should be from 0 to 1"),
    ("share", math.nan, "share is not finite"),
    ("steps", 0, "steps = 0 should be at least 1"),
    ("last", {5: 10}, "last = 10 should be from 0 to 9"),
    ("places", (0, -2), "places = -2 should be at least 0"),
    ("name", "abc", "name is not what it should be"),
    ("name", "ab\n", "name is not what it should be"),
    ("by_name", {"ab": 1.0, "x\ny": 1.0}, "by_name is not what it should be"),
    ("by_name", {"ab": math.inf}, "by_name.ab is not finite"),
    ("scalar", torch.zeros(1), "scalar is float32 [1], not float32 []"),
    ("scalar", torch.tensor(math.inf), "scalar holds NaN or infinity"),
]


@pytest.mark.parametrize(("name", "value", "line"), BAD, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BAD)])
def test_what_does_not_fit_is_named_in_one_line(name: str, value: Any, line: str) -> None:
    with pytest.raises(AnswerError) as error:
        check(Fields(**{name: value}), SHAPES)
    assert str(error.value) == line


def test_a_number_of_any_size_makes_a_short_line() -> None:
    with pytest.raises(AnswerError) as error:
        check(Fields(steps=-(10**4000)), SHAPES)
    assert len(str(error.value)) <= 500


# -- letters that nobody has said ------------------------------------------------------------------------------
def test_a_free_letter_is_the_size_where_it_is_first_met() -> None:
    check(Fields(some=ints([0, 2]), some_rows=torch.zeros(2, 3)), SHAPES)
    with pytest.raises(AnswerError, match=r"^some_rows is float32 \[3, 3\], not float32 \[m, d\] = \[2, 3\]$"):
        check(Fields(some=ints([0, 2]), some_rows=torch.zeros(3, 3)), SHAPES)


def test_a_free_letter_is_forgotten_in_the_next_message() -> None:
    for num in (1, 3, 2):
        check(Fields(some=torch.arange(num), some_rows=torch.zeros(num, 3)), SHAPES)
    assert SHAPES.bound == {}


@message
class Several:
    by_client: dict[int, Fields] = field(default_factory=dict)
    rows: tuple[Fields, ...] = ()
    one: Fields | None = None


def test_every_message_within_a_message_has_letters_of_its_own() -> None:
    one, two = (Fields(some=torch.arange(n), some_rows=torch.zeros(n, 3)) for n in (1, 2))
    check(Several({3: one, 7: two}, (two, one), two), SHAPES)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Several(by_client={7: Fields(steps=0)}), "by_client.7.steps"),
        (Several(rows=(Fields(), Fields(steps=0))), "rows.1.steps"),
        (Several(one=Fields(steps=0)), "one.steps"),
    ],
)
def test_a_field_deep_down_is_named_with_its_path(value: Several, name: str) -> None:
    with pytest.raises(AnswerError, match=rf"^{name} = 0 should be at least 1$"):
        check(value, SHAPES)


@message
class Filled(Generic[T]):
    content: T | None


def test_what_fills_a_generic_message_is_checked_where_it_is_said_what_that_is() -> None:
    """An envelope is checked when it comes, its content when the shapes of its client are known."""
    bad: Filled[Fields] = Filled(Fields(steps=0))
    check(bad, Shapes())
    with pytest.raises(AnswerError, match=r"^content\.steps = 0 should be at least 1$"):
        check(bad, SHAPES, of(Filled, Fields))


@message
class RuleInside:
    """The rule stands at the type, beside the None."""

    rows: Annotated[Tensor, f32("S", "d")] | None = None


def test_a_rule_beside_none_is_not_overlooked() -> None:
    check(RuleInside(torch.zeros(4, 3)), SHAPES)
    with pytest.raises(AnswerError, match=r"^rows is float32 \[1, 1\]"):
        check(RuleInside(torch.zeros(1, 1)), SHAPES)


@dataclass
class Positive(Rule):
    """A user's own rule, which is neither frozen nor hashable."""

    least: float = 0.0

    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        if value.min() <= self.least:
            raise AnswerError(f"{name} should be positive")


@message
class OwnRule:
    rows: Annotated[Tensor, Positive()]
    more: dict[str, Annotated[Tensor, Positive()]]


def test_a_rule_may_be_of_any_class() -> None:
    good, bad = (OwnRule(torch.full((2,), value), {"a": torch.ones(1)}) for value in (1.0, 0.0))
    check(decode(OwnRule, *encode(good)), SHAPES)
    with pytest.raises(AnswerError, match=r"^rows should be positive$"):
        check(bad, SHAPES)


@given(st.lists(st.integers(0, 3), unique=True).map(sorted), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=50)
def test_rows_of_classes_fit_if_there_is_one_of_the_width_for_each(classes: list[int], num: int, width: int) -> None:
    value = Fields(some=torch.tensor(classes, dtype=torch.int64), some_rows=torch.zeros(num, width))
    if (num, width) == (len(classes), 3):
        check(value, SHAPES)
    else:
        with pytest.raises(AnswerError, match=r"^some_rows is "):
            check(value, SHAPES)


# -- what the letters stand for --------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class InGroups(Method[Nothing, Nothing, Nothing]):
    groups = "layout"


def test_letters_stand_for_what_the_receiver_knows() -> None:
    who = ClientInfo(2, (0, 1), 12)
    assert Standalone().shapes(who, at(0)).sizes == {"S": 3, "S_k": 2, "d": 2, "n": 12, "X": 4}
    assert Standalone().shapes(who, at(0)).seen_classes == (0, 1)
    task = Task(num_classes=3, input_shape=(3, 4, 5), width=2, num_clients=9)
    public = public_data(vectors([0] * 6), "own", 4)
    ctx = Context(task, 0, public)
    grouped = ClientInfo(2, (0, 1), 12, None, "0123456789abcdef-345")
    assert InGroups().shapes(grouped, ctx).sizes == {
        "S": 3,
        "S_k": 2,
        "d": 2,
        "n": 12,
        "X": 60,
        "N": 9,
        "P": 4,
        "L": 345,
        "I": 0,
    }
    assert FedAvg().shapes(who, at(0)).layouts == {"shared": TASK.shared_layout()}


@dataclass(frozen=True, kw_only=True)
class OfArchitectures(Method[Nothing, Nothing, Nothing]):
    groups = "architecture"


def test_a_client_of_an_architecture_has_the_layout_of_its_prototype() -> None:
    ctx = Context(Task(3, (4,), prototypes={"small": tiny_net}), 0)
    layouts = {
        group: OfArchitectures().shapes(ClientInfo(2, (0,), 12, None, group), ctx).layouts
        for group in ("small", "large", None)
    }
    assert layouts == {"small": {"prototype": ctx.task.prototype_layouts["small"]}, "large": {}, None: {}}


def test_an_upload_is_checked_against_its_own_client() -> None:
    method = FedSSA()
    method.check_upload(rows_message({0: [1.0, 2.0, 3.0], 2: [4.0, 5.0, 6.0]}), info(0, 0, 2), at(0))
    with pytest.raises(AnswerError, match=r"^rows is float32 \[1, 2\], not float32 \[m, d \+ 1\] = \[1, 3\]$"):
        method.check_upload(rows_message({0: [1.0, 2.0]}), info(0, 0), at(0))
    with pytest.raises(AnswerError, match="rows of other classes than its own"):
        method.check_upload(rows_message({0: [1.0, 2.0, 3.0]}), info(0, 1), at(0))
    with pytest.raises(AnswerError, match=r"^an answer without the method's upload$"):
        method.check_upload(None, info(0, 0), at(0))
    with pytest.raises(AnswerError, match=r"^an upload, and the method has none$"):
        Standalone().check_upload(Nothing(), info(0, 0), at(0))


def test_a_downlink_is_checked_too() -> None:
    FedSSA().check_downlink(None, info(0, 0), at(0))
    with pytest.raises(AnswerError, match=r"^rows holds NaN or infinity$"):
        FedSSA().check_downlink(rows_message({0: [1, math.nan, 3]}), info(0, 0), at(0))


ANSWER: dict[str, Any] = {
    "client": 0,
    "payload": None,
    "loss": 0.5,
    "steps": 1,
    "scores": Scores({"head": 0.5}, 1, {}, 0),
    "header_norm": 0.0,
    "flops": 0,
    "state_digest": "0" * 64,
    "tuning_flops": None,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", -1),
        ("steps", -1),
        ("loss", math.nan),
        ("header_norm", -1.0),
        ("header_norm", math.inf),
        ("flops", -1),
        ("tuning_flops", -1),
        ("state_digest", "0" * 63),
        ("state_digest", "G" * 64),
    ],
)
def test_what_an_answer_says_is_in_range(name: str, value: object) -> None:
    check(Answer(**ANSWER), SHAPES)
    with pytest.raises(AnswerError, match=rf"^{name} "):
        check(Answer(**(ANSWER | {name: value})), SHAPES)


@pytest.mark.parametrize("group", ["0123456789abcdef-12", "cnn-1", "my_pkg.mine:Net"])
def test_a_group_is_an_id_and_a_length_or_the_name_of_an_architecture(group: str) -> None:
    check(ClientInfo(0, (0,), 1, None, group), SHAPES)


@pytest.mark.parametrize("group", ["", "a b", "../x", "0123\n", "x" * 101])
def test_any_other_group_is_refused(group: str) -> None:
    with pytest.raises(AnswerError, match=r"^group is not what it should be$"):
        check(ClientInfo(0, (0,), 1, None, group), SHAPES)
