"""The server in Flower: it averages header rows class by class (eq. 3 of the paper) and times the rounds."""

import json
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

Rows = dict[str, Tensor]  # by class


def server_app(folder: Path) -> ServerApp:
    """An app that writes rounds.json into the folder: seconds and mean scores of each round."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001  Flower passes both
        federation = json.loads((folder / "federation.json").read_text())
        nodes = wait_for_nodes(grid, len(federation["cnns"]))
        rows: Rows = {}
        rounds = []
        for mu in federation["mus"]:
            began = time.perf_counter()
            replies = ask(grid, nodes, rows, ConfigRecord({"folder": str(folder), "mu": float(mu)}))
            rows |= mean_by_class(reply.content.array_records["rows"].to_torch_state_dict() for reply in replies)
            rounds.append({"seconds": time.perf_counter() - began, **mean_scores(replies)})
        (folder / "rounds.json").write_text(json.dumps(rounds))

    return app


def wait_for_nodes(grid: Grid, number: int) -> list[int]:
    """Flower starts the server before it has registered its simulated nodes."""
    while len(nodes := list(grid.get_node_ids())) < number:
        time.sleep(0.1)
    return nodes


def ask(grid: Grid, nodes: list[int], rows: Rows, told: ConfigRecord) -> list[Message]:
    content = RecordDict({"rows": ArrayRecord(rows), "told": told})
    messages = [Message(content=content, dst_node_id=node, message_type="train") for node in nodes]
    replies = list(grid.send_and_receive(messages))
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
    return replies


def mean_by_class(uploads: Iterable[Rows]) -> Rows:
    by_class: dict[str, list[Tensor]] = defaultdict(list)
    for upload in uploads:
        for s, row in upload.items():
            by_class[s].append(row)
    return {s: torch.stack(rows).mean(dim=0) for s, rows in by_class.items()}


def mean_scores(replies: list[Message]) -> dict[str, float]:
    return {name: fmean(_number(reply, name) for reply in replies) for name in ("loss", "val", "test")}


def _number(reply: Message, name: str) -> float:
    number = reply.content.metric_records["metrics"][name]
    assert isinstance(number, float)
    return number
