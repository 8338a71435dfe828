"""What methods declare of themselves fits what they send, and is told in the words of the list."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import AnyMethod
from fedssa.core.fields import Like, Shaped
from fedssa.core.message import Nothing, hints, rules
from fedssa.core.method import Kind, Messages, Method
from fedssa.methods import METHODS
from fedssa.methods.fedkd import Update
from fedssa.methods.fedproto import Up
from fedssa.methods.parts.public_outputs import Outputs
from fedssa.studies import listed
from fedssa.studies.catalogue import Entry, as_listed, entries

SHAPES: dict[str, set[Kind]] = {  # the last letter of a shape of floats → what that can be
    "d + 1": {"class rows", "headers"},
    "d": {"prototypes", "features"},
    "S": {"outputs"},
    "L": {"extractors", "generators", "shared models", "models"},
}


def found_in(method: type[AnyMethod]) -> Iterator[set[Kind]]:
    """What the fields of its messages can be, as far as their rules tell."""
    messages = method.messages()
    for rule in (rule for kind in messages[1:] for hint in hints(kind).values() for rule in rules(hint)):
        if isinstance(rule, Shaped) and rule.dtype.is_floating_point and len(rule.dims) == 2:
            yield SHAPES.get(rule.dims[-1], set(get_args(Kind)))
        elif isinstance(rule, Shaped) and rule.dims == ("L",):
            yield SHAPES["L"]
        elif isinstance(rule, Like):
            yield {"models"} if method.needs_same_models or rule.model == "prototype" else {"shared models"}


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_is_declared(name: str) -> None:
    method = METHODS[name]
    assert set(method.travels) <= set(get_args(Kind))
    assert len(set(method.travels)) == len(method.travels)
    assert bool(method.travels) == (method.messages()[1:] != (Nothing, Nothing))
    for possible in found_in(method):
        assert possible & set(method.travels), f"{name} sends {' or '.join(possible)}"


def test_what_is_found_in_messages_is_not_everything() -> None:
    assert list(found_in(METHODS["fedgh"])) == [{"class rows", "headers"}, {"prototypes", "features"}]
    assert list(found_in(METHODS["fedavg"])) == [{"models"}, {"models"}]
    assert list(found_in(METHODS["fml"])) == [{"shared models"}, {"shared models"}]


def entry(name: str) -> Entry:
    return Entry(name, METHODS[name])


def test_every_method_has_an_entry_in_the_order_of_the_dict() -> None:
    assert [one.name for one in entries()] == list(METHODS)


def test_the_lists_of_the_command_line_are_what_the_classes_say() -> None:
    assert listed.FILE.read_text(encoding="utf-8") == as_listed().to_json(), "make docs writes it again"


@pytest.mark.parametrize(
    ("name", "shared", "models", "needs", "trained_by"),
    [
        ("standalone", "nothing", "any", [], ["clients"]),
        ("fedssa-plus", "class rows, prototypes", "any", [], ["clients"]),
        ("fml", "shared models", "any", ["shared model"], ["clients"]),
        ("fedavg", "models", "one", [], ["clients"]),
        ("fedrep", "extractors", "groups", [], ["clients"]),
        ("fedgh", "prototypes, headers", "any", [], ["clients", "server"]),
        ("ds-fl", "outputs", "any", ["public data"], ["clients"]),
    ],
)
def test_an_entry_in_words(name: str, shared: str, models: str, needs: list[str], trained_by: list[str]) -> None:
    one = entry(name)
    assert (one.shared, one.models, one.needs, one.trained_by) == (shared, models, needs, trained_by)


class Everything(Method[Nothing, Outputs, Up]):
    travels = ("class rows", "extractors")
    groups = "layout"
    needs_server_model = True
    needs_public = "labelled"
    fixed_rounds = 1


class AtTheServer(Method[Nothing, Nothing, Nothing]):
    groups = "architecture"
    fixed_rounds = 2


def test_rarer_needs_in_words() -> None:
    """One that shares extractors in groups and more with all is for any models."""
    assert Entry("x", Everything).models == "any"
    assert Entry("x", Everything).needs == ["server model", "labelled public data", "1 round"]
    assert Entry("x", AtTheServer).needs == ["models known to the server", "2 rounds"]
    assert Entry("x", AtTheServer).models == "any"


def test_a_method_that_sends_something_and_does_not_say_what() -> None:
    class Silent(Method[Nothing, Nothing, Up]):
        pass

    assert Entry("x", Silent).shared == "not declared"
    assert Entry("x", AtTheServer).shared == "nothing"


def test_fields_in_the_letters_of_the_paper() -> None:
    assert entry("fedgh").up == ["`classes` [S_k]", "`means` [S_k, d]"]
    assert entry("fedgh").down == ["`rows` [S, d + 1]"]
    assert entry("fedavg").up == ["`w` of the whole model"]
    assert entry("fml").down == ["`w` of the shared model"]
    assert entry("fedssa").up[1] == "`classes` [m], or none"
    assert entry("standalone").up == []


def test_only_what_declares_no_size_varies() -> None:
    def sends(down: Any, up: Any) -> Entry:
        class Sending(Method[Any, Any, Any]):
            @classmethod
            @override
            def messages(cls) -> Messages:
                return Messages(Nothing, down, up)

        return Entry("x", Sending)

    assert not sends(Outputs, Up).sizes_vary
    assert sends(Nothing, Update).sizes_vary
    assert sends(Update, Nothing).sizes_vary
    assert entry("fedkd").sizes_vary
    assert not entry("standalone").sizes_vary
    assert Tensor in hints(Update)["whole"].__args__  # a dict without a rule
