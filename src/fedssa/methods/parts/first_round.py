"""Some work is done only in the first round that a client takes part in, which need not be round 0."""

import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.message import message


@message
class Attendance:
    """A client keeps the number of rounds it has taken part in; from `attend` on, this one is among them."""

    rounds: Tensor  # int64 []


def keep_attendance(client: Client) -> None:
    """Is called in `client_init`."""
    client.keep(Attendance(torch.zeros((), dtype=torch.int64)))


def attend(client: Client) -> None:
    """Is called in `receive`, at the start of every round."""
    client[Attendance].rounds.add_(1)


def is_first_round(client: Client) -> bool:
    return int(client[Attendance].rounds) == 1
