"""What tests of methods with public data share: five of twelve public samples a round, and clients that have them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.method import Upload
from fedssa.core.public import Public, public_data
from fedssa.core.split import SplitModel
from fedssa.core.training import Batch, LocalTraining, Phase, steps_of
from tests.conftest import LOCAL, TASK, bare_net, make_client, server_at, vectors

NUM = 5  # P
PUBLIC = public_data(vectors([0, 1, 2] * 4, seed=9), "own", NUM)


def made(
    method: AnyMethod,
    client_id: int = 0,
    *,
    train: Sequence[int] = (0, 0, 1),
    net: SplitModel | None = None,
    local: LocalTraining = LOCAL,
    public: Public = PUBLIC,
) -> Client:
    return make_client(client_id, method=method, train=train, net=net, local=local, public=public)


def server(t: int = 0, num_clients: int = 0) -> ServerContext:
    return server_at(t, replace(TASK, num_clients=num_clients), public=PUBLIC)


def up(client: int, payload: Any, num_train: int = 10) -> Upload[Any]:
    return Upload(ClientInfo(client, (0,), num_train), payload)


def saying(method: AnyMethod, logits: Tensor) -> tuple[Client, Batch]:
    """A client, and a batch of unit vectors of which its net, a header without bias, says these rows."""
    num, num_classes = logits.shape
    task = replace(TASK, num_classes=num_classes, input_shape=(num,), width=num)
    client = make_client(method=method, net=bare_net(logits.T.tolist()), task=task, train=(0, 1), public=PUBLIC)
    return client, Batch(torch.eye(num), torch.zeros(num, dtype=torch.int64), torch.arange(num))


def batches_of(client: Client, phase: Phase, t: int = 1) -> Iterator[Batch]:
    for step in steps_of(client, phase, LOCAL, server(t), "0")[1]:
        yield from step.batches


def largest_gradient(client: Client) -> float:
    return max(float(p.grad.abs().max()) for p in client.net.parameters() if p.grad is not None)


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
