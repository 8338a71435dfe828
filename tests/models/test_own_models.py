"""A user's own architectures: proved once, known by a fingerprint, and copied only where a copy shares nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models import Builder
from fedssa.models.alike import picture
from fedssa.models.fingerprint import fingerprint, what_changed

TASK = Task(num_classes=3, input_shape=(4,), width=5)


class Net(nn.Module):
    """Counts how often it has run."""

    def __init__(self, size: int = 5, act: Any = torch.relu) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, size), nn.BatchNorm1d(size), nn.Linear(size, 3)
        self.act, self.runs = act, 0

    @override
    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        logits: Tensor = self.head(self.act(self.norm(self.body(x))))
        return logits


def started(builder: Builder, client: int) -> SplitModel:
    with seeded(0, "start", client=client):
        return builder()


# -- building ----------------------------------------------------------------------------------------------------
def test_no_model_that_is_handed_out_has_run_and_the_first_is_as_the_second() -> None:
    builder = Builder("mine:Net", lambda _: Net(), TASK)
    nets = [started(builder, 0), started(builder, 0)]
    assert [net.extractor.runs for net in nets] == [0, 0]
    assert [net.extractor.get_buffer("norm.num_batches_tracked").item() for net in nets] == [0, 0]
    assert all(map(torch.equal, nets[0].parameters(), nets[1].parameters()))
    assert not torch.equal(nets[0].header.weight, started(builder, 1).header.weight)


def test_a_factory_runs_once_more_than_it_is_asked() -> None:
    made = []

    def factory(task: Task) -> nn.Module:
        made.append(Net())
        return made[-1]

    builder = Builder("mine:factory", factory, TASK)
    for _ in range(3):
        builder()
    assert [net.runs for net in made] == [0] * 4  # copies of the first were proved


def two_sizes() -> Callable[[Task], nn.Module]:
    sizes: Iterator[int] = iter((5, 6, 7))
    return lambda _: Net(next(sizes))


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (two_sizes(), r"mine:x: builds two different models: 'extractor.0.body\(\)' is Linear\(in_features.*same"),
        (lambda _: None, r"mine:x: returned None; it should return an nn.Module"),
        (lambda _: Net(act=torch.softmax), r"mine:x: Net: does not run on an input of 4 \("),
        (lambda _: SplitModel(nn.Linear(4, 5), nn.Linear(5, 2)), r"mine:x: its header's weight and bias are"),
    ],
)
def test_one_line_names_the_architecture(factory: Any, told: str) -> None:
    with pytest.raises(ModelError, match=f"^{told}") as error:
        Builder("mine:x", factory, Task(3, (4,), width=8) if "two" in told else TASK)()
    assert "\n" not in str(error.value)


# -- fingerprints ------------------------------------------------------------------------------------------------
def variant(body: str) -> type[nn.Module]:
    """Net, with another text in its source."""
    import linecache

    text = f"class Mine(Base):\n    def forward(self, x):\n        {body}\n"
    name = f"<{body}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"Base": Net, "__name__": f"variant {body}"}
    exec(compile(text, name, "exec"), space)  # noqa: S102
    import sys
    from types import ModuleType

    module = ModuleType(space["__name__"])
    module.__file__ = name
    sys.modules[space["__name__"]] = module
    kind: type[nn.Module] = space["Mine"]
    return kind


def test_a_fingerprint_is_that_of_structure_and_code() -> None:
    base = fingerprint(Net())
    assert fingerprint(Net()) == base
    assert what_changed(base, fingerprint(Net(6))) == "structure"
    forms = {
        body: fingerprint(variant(body)())
        for body in ("return x + 1", "return x + 1  # a comment", "'a docstring'; return (x  +  1)", "return x + 2")
    }
    same, comment, text, other = forms.values()
    assert same == comment == text
    assert what_changed(same, other) == "code"
    assert what_changed(same, text) is None


# -- models that are alike -----------------------------------------------------------------------------------------
def with_attribute(make: Callable[[], object]) -> tuple[nn.Module, nn.Module]:
    nets = Net(), Net()
    for net in nets:
        setattr(net, "extra", make())  # noqa: B010 (it may be anything)
    return nets


def counter() -> Callable[[], int]:
    calls = [0]
    return lambda: calls[0]


class Slotted:
    __slots__ = ("value",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"depth": 20, "sizes": [1, (2, 3.5)], "act": torch.relu},
        lambda: SimpleNamespace,
        lambda: partial(torch.softmax, dim=1),
        lambda: lambda x: 2 * x,
        lambda: torch.arange(3),
        lambda: nn.LSTM(2, 3),
        lambda: torch.float32,
    ],
)
def test_plain_data_and_functions_that_remember_nothing_are_alike(make: Callable[[], object]) -> None:
    first, second = map(picture, with_attribute(make))
    assert first is not None
    assert first == second


@pytest.mark.parametrize(
    "make", [counter, Slotted, lambda: iter([1]), lambda: torch.Generator(), lambda: {"f": counter()}]
)
def test_what_a_copy_would_share_is_not_alike(make: Callable[[], object]) -> None:
    assert picture(with_attribute(make)[0]) is None


@pytest.mark.parametrize("make", [torch.rand(4).tolist().pop, lambda: float(torch.rand(())), lambda: torch.rand(2)])
def test_what_depends_on_random_numbers_is_not_alike(make: Callable[[], object]) -> None:
    first, second = map(picture, with_attribute(make))
    assert first != second


def test_a_hook_is_seen() -> None:
    first, second = Net(), Net()
    assert picture(first) == picture(second)
    second.body.register_forward_hook(lambda *_: None)
    assert picture(first) != picture(second)
