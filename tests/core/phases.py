"""A client that trains in phases, with public data: for the tests of phases, tuning and their FLOPs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import AnyMethod, Client, CountFlops
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.optim import SGD
from fedssa.core.public import public_data
from fedssa.core.split import SplitModel
from fedssa.core.training import Batch, LocalTraining, Phase, Trained, train
from fedssa.kernels.devices import CPU
from tests.conftest import TASK, local_data, vectors

PUBLIC = public_data(vectors([2, 1, 0, 2, 1, 0, 2, 1], seed=50), "own", 5)
HARD = LocalTraining(batch_size=2, lr=0.1, optimiser=SGD(momentum=0.9, weight_decay=0.1))


class Adapter(nn.Linear):
    """One more module that a method keeps."""


class InPhases(Method[Nothing, Nothing, Nothing]):
    """Trains what it is told to, and keeps an adapter of logits."""

    def __init__(self, *phases: Phase) -> None:
        self._phases = phases

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(Adapter(3, 3))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return self._phases


def everything(client: Client, batch: Batch) -> Tensor:
    return cross_entropy(client[Adapter](client.net(batch.x)), batch.y)


def net(*, normalised: bool) -> SplitModel:
    """With dropout, and with batch normalisation if no batch is of one sample."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(2) if normalised else nn.Identity()
        return SplitModel(nn.Sequential(nn.Linear(4, 2), norm, nn.Dropout(0.3)), nn.Linear(2, 3), channels_last=False)


def client_with(
    method: AnyMethod,
    *,
    client_id: int = 0,
    seed: int = 0,
    num: int = 6,
    normalised: bool = False,
    local: LocalTraining = HARD,
    count_flops: CountFlops | None = None,
    device: torch.device = CPU,
) -> Client:
    """A client with `num` samples of the classes 0, 1, 2, 0, 1, … and with the public samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        data = local_data([i % 3 for i in range(num)])
        return Client(
            client_id,
            net(normalised=normalised),
            data,
            TASK,
            method,
            local,
            seed,
            count_flops=count_flops,
            public=PUBLIC,
            find_device=lambda: device,
        )


def run(client: Client, t: int = 0, local: LocalTraining = HARD, kind: str = "") -> list[Trained]:
    """The phases of its method in round t."""
    ctx = Context(client.task, client.seed, PUBLIC).at(t)
    return train(client, client.method.phases(client, ctx), local, ctx, kind)
