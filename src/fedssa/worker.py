"""A worker of a pool: `python -m fedssa.worker`, driven through its standard input and output.

It ends when its input closes, even in the middle of a training step: the process that drove it is gone,
and whoever resumes the run must not meet a writer from the past.
"""

import os
import queue
import sys
import threading
from typing import BinaryIO

import torch

from fedssa.simulate.memory import keep_freed_memory
from fedssa.simulate.wire import read_frame, write_frame
from fedssa.simulate.workers import Frame
from fedssa.workplace import Workplace


def main() -> None:
    requests, replies = sys.stdin.buffer, _take_stdout()
    torch.set_num_threads(1)
    keep_freed_memory()
    inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    workplace = Workplace()
    while True:
        meta, tensors = inbox.get()
        if "open" in meta:
            workplace.open(meta["open"])
        else:
            write_frame(replies, *workplace.reply(meta, tensors))


def _take_stdout() -> BinaryIO:
    """Replies have the output for themselves: what a user's model prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _listen(requests: BinaryIO, inbox: "queue.SimpleQueue[Frame]") -> None:
    try:
        while True:
            inbox.put(read_frame(requests))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
