"""A client scores its own model on its own data, once a round and once before the first."""

from typing import TYPE_CHECKING

import torch

from fedssa.core.samples import Samples
from fedssa.core.training import EVAL_BATCH, batch_of
from fedssa.records import Scores

if TYPE_CHECKING:
    from fedssa.core.client import AnyMethod, Client


def evaluate(client: "Client", method: "AnyMethod") -> Scores:
    """Scores the client's own model on its own validation and test samples."""
    for module in (client.net, *client.modules()):
        module.eval()
    return Scores(
        test=_accuracy(client, method, client.data.test),
        num_test=len(client.data.test),
        val=_accuracy(client, method, client.data.val),
        num_val=len(client.data.val),
    )


@torch.no_grad()
def _accuracy(client: "Client", method: "AnyMethod", samples: Samples) -> dict[str, float]:
    correct: dict[str, int] = {}
    for batch in torch.split(torch.arange(len(samples)), EVAL_BATCH) if len(samples) else ():
        x = batch_of(client, samples, batch)
        for kind, logits in method.predict(client, x).items():
            hits = int((logits.argmax(dim=1) == samples.y[batch]).sum())
            correct[kind] = correct.get(kind, 0) + hits
    return {kind: hits / len(samples) for kind, hits in correct.items()}
