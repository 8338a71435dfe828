"""On a device that refuses to mix with the CPU, every method's rounds give what they give on the CPU, bit for bit."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import AnyAnswer, Client
from fedssa.core.message import Nothing, digest, owned
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, LocalTraining
from fedssa.kernels.devices import CPU
from fedssa.methods import METHODS
from fedssa.settings.build import without_name
from tests.conftest import make_client
from tests.elsewhere import ELSEWHERE, Elsewhere, Mixed, SaysWhere
from tests.golden.records import OPTIONS
from tests.methods.contract import CASES, Tiny, tiny_of

TRAIN = [(0, 0, 1, 1), (1, 1, 2, 2)]  # both have enough of class 1 to share it with any method
LOCAL = LocalTraining(batch_size=4, lr=0.1)
WITH_OPTIONS = CASES | {label: (METHODS[said["name"]], without_name(said)) for label, said in OPTIONS.items()}


@pytest.mark.parametrize("case", WITH_OPTIONS)
def test_rounds_elsewhere_are_those_on_the_cpu(case: str) -> None:
    cls, said = WITH_OPTIONS[case]
    here, there = (tiny_of(cls(**said), TRAIN, LOCAL) for _ in range(2))
    for client in there.clients:
        client.device = ELSEWHERE
    assert two_rounds(there, Elsewhere(), SaysWhere()) == two_rounds(here)


def two_rounds(tiny: Tiny, *modes: AbstractContextManager[object]) -> list[Any]:
    """Clients run inside of the modes; the server is outside, so what it gets must be on the CPU."""
    method, server, found = tiny.method, tiny.start(), list[Any]()
    for t in tiny.rounds[:2]:
        infos, ctx = tiny.infos, tiny.ctx.at(t)
        downs = [method.downlink(server, info, ctx) for info in infos]
        with ExitStack() as inside:
            for mode in modes:
                inside.enter_context(mode)
            answers = [client.run_round(down, t) for client, down in zip(tiny.clients, downs, strict=True)]
        uploads = [Upload(info, answer.payload) for info, answer in zip(infos, answers, strict=True)]
        server = owned(method.aggregate(server, uploads, ctx))
        found += [digest(server), *map(told, answers)]
    return found


def told(answer: AnyAnswer) -> tuple[Any, ...]:
    return answer.loss, answer.scores, answer.header_norm, answer.state_digest, digest(answer.payload)


# -- what would be wrong -------------------------------------------------------------------------------------------
class Wrong(Method[Nothing, Nothing, Nothing]):
    """Adds what is said to every loss."""

    def __init__(self, added: Callable[[Client, Batch], Tensor]) -> None:
        self.added = added

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return super().loss(client, batch) + self.added(client, batch).sum()


MIXED = "of tensors elsewhere and one of the CPU"
WRONG: list[tuple[Callable[[Client, Batch], Tensor], str]] = [
    (lambda _, batch: batch.x * torch.ones(4, device=CPU), rf"aten.mul.Tensor: {MIXED}, \[4\]"),
    (lambda _, batch: batch.x.cpu() @ batch.x.T, f"aten.mm.default: {MIXED}"),
    (lambda client, batch: client.net.header.bias[batch.y] + batch.y.cpu(), f"aten.add.Tensor: {MIXED}"),
    (lambda *_: torch.ones(4), "torch.ones: creates a tensor and does not say where"),
    (lambda *_: torch.tensor([1.0]), "torch.tensor: creates a tensor"),
]


@pytest.mark.parametrize(("added", "reason"), WRONG)
def test_a_method_that_forgets_the_device_is_found_out(added: Callable[[Client, Batch], Tensor], reason: str) -> None:
    client = make_client(method=Wrong(added), device=ELSEWHERE)
    with Elsewhere(), SaysWhere(), pytest.raises(Mixed, match=reason):
        client.run_round(None, 0)


def test_what_an_accelerator_allows_is_allowed() -> None:
    """Copies, single numbers, and places of the CPU as indices."""
    fine = lambda _, batch: batch.x[torch.arange(1, device=CPU)] * torch.tensor(2.0, device=CPU)  # noqa: E731
    client = make_client(method=Wrong(fine), device=ELSEWHERE)
    with Elsewhere(), SaysWhere():
        client.run_round(None, 0)
