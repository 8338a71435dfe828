"""All sides in turn: `python -m benchmarks.peers.measure KIND` serves one of them."""

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.eager import plain_cnn, train_plainly
from benchmarks.effort import Effort
from benchmarks.peers.authors import Authors
from benchmarks.peers.htfllib import HtFLlib, as_floats
from benchmarks.peers.work import Part, Work, recipe, work_of
from benchmarks.served import in_turn, serve, served
from benchmarks.timing import gemm_peak
from fedssa.core.seeds import one_thread
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from fedssa.simulate.worker import keep_freed_memory

KINDS = ("ours", "plain eager", "htfllib", "authors", "ours, augmented", "authors, augmented")
EVAL_BATCH = 256
Round = Callable[[], object]


def measure_peers(effort: Effort) -> dict[str, Any]:
    """CPU seconds of a round of each kind, by batch size."""
    with one_thread(), ExitStack() as stack:
        sides = {kind: stack.enter_context(served("benchmarks.peers.measure", kind)) for kind in KINDS}
        rows = [
            {"batch": batch, **in_turn(sides, [batch, effort.images], effort.repeats)} for batch in effort.peer_batches
        ]
        return {"peak": gemm_peak(), "rows": rows}


def rounds_of(kind: str, folder: Path, batch: str, num_images: str) -> Round:
    size, num = int(batch), int(num_images)
    if kind.startswith("ours"):
        keep_freed_memory()  # as every run of ours does
        run = start(parse_settings(recipe(size, num, augment=kind.endswith("augmented"))), folder / f"run-{size}")
        rounds = run.rounds(workers=1)
        for _ in range(2):  # the start, and a round in which clients are new
            next(rounds)
        return partial(next, rounds)
    work = work_of(size, num)
    if kind == "plain eager":
        return Plain(work).round
    if kind == "htfllib":
        return HtFLlib(work, _made(folder / f"files-{size}")).round
    return Authors(work, augment=kind.endswith("augmented")).round


class Plain:
    """Images as floats in memory, index batches, and all clients' nets too; header rows are not exchanged."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._nets = [plain_cnn(*peer.cnn) for peer in work.clients]
        self._parts = [[_tensors(part) for part in (peer.train, peer.val, peer.test)] for peer in work.clients]

    def round(self) -> None:
        work = self._work
        for net, (train, *tests) in zip(self._nets, self._parts, strict=True):
            train_plainly(net, *train, batch_size=work.batch_size, lr=work.lr, momentum=work.momentum)
            with torch.no_grad():
                for x, y in tests:
                    sum(int((net(some).argmax(1) == labels).sum()) for some, labels in _split(x, y))


def _split(x: torch.Tensor, y: torch.Tensor) -> Any:
    return zip(torch.split(x, EVAL_BATCH), torch.split(y, EVAL_BATCH), strict=True)


def _tensors(part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(as_floats(part)).contiguous(), torch.from_numpy(part.labels)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        serve(partial(rounds_of, sys.argv[1], Path(name)))
