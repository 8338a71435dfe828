"""Which means are weighted by samples: each method's, with payloads that real clients upload."""

from dataclasses import replace

import pytest
import torch

from fedssa.core.client import AnyMethod
from fedssa.core.message import digest
from fedssa.core.method import Upload
from fedssa.methods import FD, FML, FedAvg, FedClassAvg, FedKD, FedProto, FedSSA, LGFedAvg
from fedssa.methods.fedproto import Up
from tests.conftest import make_client, server_at

UNIFORM: list[AnyMethod] = [
    FedSSA(),
    FedSSA(upload_form="masked"),
    FedSSA(shared_rows="all", scope="all"),
    FedProto(weights="uniform"),
    FD(),
    FML(),
    FedKD(),
    LGFedAvg(),
]
BY_SAMPLES: list[AnyMethod] = [FedAvg(), FedClassAvg(), LGFedAvg(weights="count")]


def uploads(method: AnyMethod) -> list[Upload[object]]:
    """Three clients that have trained; what they share differs."""
    server = method.server_init(server_at(-1))
    sent = []
    for k, labels in enumerate([(0, 0, 1), (1, 0, 1, 1), (0, 1)]):
        client = make_client(k, train=labels, method=method)
        who = client.hello(evaluate_start=False)
        sent.append(Upload(who, client.run_round(method.downlink(server, who, server_at(0)), 0).payload))
    return sent


def aggregated(method: AnyMethod, num_train: tuple[int, ...]) -> str:
    sent = [
        Upload(replace(upload.info, num_train=num), upload.payload)
        for upload, num in zip(uploads(method), num_train, strict=True)
    ]
    return digest(method.aggregate(method.server_init(server_at(-1)), sent, server_at(0)))


@pytest.mark.parametrize("method", UNIFORM, ids=str)
def test_a_uniform_mean_is_that_whatever_the_samples(method: AnyMethod) -> None:
    assert aggregated(method, (10, 10, 10)) == aggregated(method, (1000, 1, 30))


@pytest.mark.parametrize("method", BY_SAMPLES, ids=str)
def test_a_mean_by_samples_is_another(method: AnyMethod) -> None:
    assert aggregated(method, (10, 10, 10)) != aggregated(method, (1000, 1, 30))
    assert aggregated(method, (10, 10, 10)) == aggregated(method, (4, 4, 4))


@pytest.mark.parametrize(("weights", "mean"), [("uniform", 4.0), ("count", 5.5)])
def test_prototypes_by_count_or_not(weights: str, mean: float) -> None:
    method = FedProto(weights=weights)  # type: ignore[arg-type]
    sent = [
        Upload(make_client(k).info(), Up(torch.tensor([0]), torch.full((1, 2), value), torch.tensor([count])))
        for k, (value, count) in enumerate([(1.0, 1), (7.0, 3)])
    ]
    rows = method.aggregate(method.server_init(server_at(-1)), sent, server_at(0)).prototypes
    assert rows[0].tolist() == [mean, mean]  # (1 + 7) / 2, (1 · 1 + 3 · 7) / 4
