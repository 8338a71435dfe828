"""FedMD's, KT-pFL's and Cronus's rounds in both implementations."""

from dataclasses import replace
from typing import Any

import torch

from fedssa.methods import Cronus, FedMD, KTpFL
from tests.methods import naive_public as naive
from tests.methods.beside_naive import LABELS, PUBLIC, SEED, TASK, Case, NaiveRound, Trace, batches
from tests.methods.naive import Batches, NaiveClient, Sgd
from tests.methods.witnesses_beside_naive import outputs

X, NUM = PUBLIC.samples.x.double(), PUBLIC.num
QUICK: dict[str, Any] = {"public_epochs": 2, "private_epochs": 3, "digest_epochs": 2, "digest_batch": 3}


def logits(message: Any) -> Trace:
    return {"": message.logits}


def coefficients(server: Any) -> Trace:
    return {"c": server.coefficients}


def stacked(uploads: dict[int, list[torch.Tensor]]) -> dict[int, Trace]:
    return {k: {"": torch.stack(said)} for k, said in uploads.items()}


def samples(t: int) -> tuple[torch.Tensor, torch.Tensor]:
    now, coming = (X[PUBLIC.indices(SEED, at)] for at in (t, t + 1))
    return now, coming


def fedmd(**settings: Any) -> NaiveRound:
    server, public = naive.PublicServer(), (X, PUBLIC.samples.y.tolist())

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        pretraining = batches(t, epochs=2, phase="0", num=len(X)), batches(t, epochs=3)
        digesting = batches(t, epochs=2, phase="0", num=NUM)
        uploads = naive.fedmd_round(
            clients, server, public, *samples(t), pretraining, digesting, batches(t), sgd, **settings
        )
        return stacked(uploads), {"": torch.stack(server.said)}

    return run_round


def kt_pfl(**settings: Any) -> NaiveRound:
    server = naive.MixingServer([[1 / len(LABELS)] * len(LABELS) for _ in LABELS])

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        digesting = batches(t, epochs=2, phase="0", num=NUM)
        uploads = naive.kt_pfl_round(clients, server, *samples(t), digesting, batches(t), sgd, **settings)
        return stacked(uploads), {"c": torch.tensor(server.c, dtype=torch.float64)}

    return run_round


def cronus(**settings: Any) -> NaiveRound:
    server = naive.PublicServer()

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        joint: Batches = {k: batches(t, phase="0", num=len(own) + NUM)[k] for k, own in enumerate(LABELS)}
        uploads = naive.cronus_round(clients, server, *samples(t), joint, batches(t), sgd, **settings)
        return stacked(uploads), {"": torch.stack(server.said)}

    return run_round


SIX = replace(TASK, num_clients=len(LABELS))
DIGEST: dict[str, Any] = {"digest_epochs": 2, "digest_batch": 3}
WARM: dict[str, Any] = {"temperature": 2.0, "rho": 0.1, "lr_c": 0.5, "t_squared": True}
CASES = {
    "fedmd": Case(FedMD(**QUICK), fedmd, logits, logits),
    "fedmd-mse": Case(FedMD(**QUICK, distance="mse"), fedmd, logits, logits, {"distance": "mse"}, tolerance=4e-6),
    "fedmd-kl": Case(FedMD(**QUICK, distance="kl"), fedmd, logits, logits, {"distance": "kl"}),
    "kt-pfl": Case(KTpFL(**DIGEST), kt_pfl, outputs, coefficients, task=SIX),
    "kt-pfl-warm": Case(KTpFL(**DIGEST, **WARM), kt_pfl, outputs, coefficients, WARM, task=SIX),
    "cronus": Case(Cronus(), cronus, outputs, outputs),
    "cronus-median": Case(Cronus(aggregation="median"), cronus, outputs, outputs, {"aggregation": "median"}),
}
