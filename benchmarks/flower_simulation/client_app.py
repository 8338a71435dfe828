"""A client in Flower: it keeps its model in its context, trains it plainly, and exchanges header rows as FedSSA does.

Ray pickles this module by name, not by value, so what is cached here stays in an actor from round to round.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.eager import plain_cnn, train_plainly

EVAL_BATCH = 256
Samples = tuple[Tensor, Tensor]

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round; evaluation is a part of it, because a second message would cost a second wait for the slowest."""
    told, client = message.content.config_records["told"], int(context.node_config["partition-id"])
    folder, mu = told["folder"], told["mu"]
    assert isinstance(folder, str)
    assert isinstance(mu, float)
    federation, parts = load_federation(folder), load_parts(folder, client)
    net = own_model(federation["cnns"][client], context)
    header, seen = net[-1], torch.unique(parts["train"][1]).tolist()
    assert isinstance(header, nn.Linear)
    fuse(header, message.content.array_records["rows"].to_torch_state_dict(), seen, mu)
    loss = train_plainly(net, *parts["train"], **federation["local"])
    context.state["net"] = ArrayRecord(net.state_dict())
    metrics = MetricRecord({"loss": loss, "val": accuracy(net, *parts["val"]), "test": accuracy(net, *parts["test"])})
    answer = RecordDict({"rows": ArrayRecord(rows_of(header, seen)), "metrics": metrics})
    return Message(content=answer, reply_to=message)


@cache
def load_federation(folder: str) -> dict[str, Any]:
    federation: dict[str, Any] = json.loads((Path(folder) / "federation.json").read_text())
    return federation


@cache
def load_parts(folder: str, client: int) -> dict[str, Samples]:
    """The client's own samples: train, val and test, images as floats in [-1, 1]."""
    x, y = (np.load(Path(folder) / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    with np.load(Path(folder) / f"client-{client}.npz") as parts:
        return {name: (as_floats(x[which]), torch.from_numpy(y[which])) for name, which in parts.items()}


def as_floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1.0).contiguous()


def own_model(sizes: list[int], context: Context) -> nn.Sequential:
    net = plain_cnn(*sizes)
    if "net" in context.state:
        net.load_state_dict(context.state.array_records["net"].to_torch_state_dict())
    return net


@torch.no_grad()
def fuse(header: nn.Linear, rows: dict[str, Tensor], seen: list[int], mu: float) -> None:
    """Eq. 4 of the paper: the row of the server + mu · the client's own, for each class that the client has seen."""
    for s in seen:
        if str(s) in rows:
            row = rows[str(s)]
            header.weight[s] = row[:-1] + mu * header.weight[s]
            header.bias[s] = row[-1] + mu * header.bias[s]


def rows_of(header: nn.Linear, seen: list[int]) -> dict[str, Tensor]:
    return {str(s): torch.cat([header.weight[s], header.bias[s : s + 1]]).detach() for s in seen}


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    batches = zip(torch.split(x, EVAL_BATCH), torch.split(y, EVAL_BATCH), strict=True)
    return sum(int((net(images).argmax(dim=1) == labels).sum()) for images, labels in batches) / len(y)
