"""A second, naive implementation of FedDF, from its card alone; like `naive`, it shares no code with `fedssa`."""

from collections.abc import Callable

from torch import Tensor

from tests.methods.naive import (
    Batches,
    NaiveClient,
    Sgd,
    Weights,
    gradients,
    kl,
    logits,
    mean,
    momentum_step,
    plain_loss,
    train,
    weighted_mean,
    zeros,
)

GroupBatches = Callable[[str], list[list[int]]]  # group -> one list of places in X_t a step, of all passes


def feddf_round(
    clients: list[NaiveClient],
    server: dict[str, Weights],  # group -> its prototype
    groups: dict[int, str],
    public: Tensor,
    batches: Batches,
    server_batches: GroupBatches,
    sgd: Sgd,
    server_sgd: Sgd,
) -> dict[int, Weights]:
    uploads: dict[int, Weights] = {}
    for client in clients:
        client.model = dict(server[groups[client.id]])
        train(client, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = dict(client.model)
    teachers = [mean([logits(w, x) for w in uploads.values()]) for x in public]
    for group in sorted({groups[client.id] for client in clients}):
        own = [client for client in clients if groups[client.id] == group]
        sizes = [float(len(client.y)) for client in own]
        names = server[group].keys()
        student = {name: weighted_mean([uploads[client.id][name] for client in own], sizes) for name in names}
        velocity = zeros(student)
        for batch in server_batches(group):
            momentum_step(student, gradients(student, batch, distance(teachers, public)), velocity, server_sgd)
        server[group] = student
    return uploads


def distance(teachers: list[Tensor], public: Tensor) -> Callable[[Weights, list[int]], Tensor]:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        return mean([kl(teachers[i], logits(w, public[i])) for i in batch])

    return loss
