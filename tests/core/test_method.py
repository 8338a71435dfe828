"""What the class of a method says of its messages: their types, through any classes in between, and what they share."""

from typing import Annotated, Generic, TypeVar

from torch import Tensor

from fedssa.core.fields import f32, ids
from fedssa.core.message import Nothing, message
from fedssa.core.method import Method

Server = TypeVar("Server")
Up = TypeVar("Up")


@message
class One:
    number: int = 1


@message
class Two:
    number: int = 2


class Plain(Method[One, Nothing, Two]):
    pass


class Heir(Plain):
    pass


class Open(Method[Server, One, Up]):
    pass


class Swapped(Open[Up, Server], Generic[Server, Up]):
    pass


class Filled(Open[One, Two]):
    pass


class FilledTwice(Swapped[One, Two]):
    pass


def test_a_class_says_its_types_or_inherits_them() -> None:
    assert Plain.messages() == Heir.messages() == (One, Nothing, Two)


def test_a_generic_class_in_between_is_filled_in() -> None:
    """Otherwise such a method would be taken for one that shares nothing."""
    assert Filled.messages() == (One, One, Two)
    assert FilledTwice.messages() == (Two, One, One)
    assert Filled().shares


def test_what_nobody_has_said_is_nothing() -> None:
    assert Open.messages() == (Nothing, One, Nothing)
    assert Method.messages() == (Nothing, Nothing, Nothing)
    assert not Open().shares


@message
class ByClass:
    rows: Annotated[Tensor, f32("m", "d")]
    classes: Annotated[Tensor, ids("m")]


class TellsByClass(Method[Nothing, ByClass, One]):
    pass


class AsksByClass(Method[Nothing, One, ByClass]):
    pass


def test_a_downlink_goes_by_classes_if_one_of_its_fields_names_them() -> None:
    assert TellsByClass().shares_by_class
    assert not any(method().shares_by_class for method in (AsksByClass, Plain, Open))


def test_a_method_that_says_nothing_needs_nothing() -> None:
    assert not any((Plain.needs_shared_model, Plain.needs_same_models, Plain.needs_server_model))
    assert (Plain.needs_public, Plain.groups, Plain.fixed_rounds, Plain.num_views) == ("no", "none", None, 1)
    assert (Plain.colour, Plain.presets) == ("", {})
