"""A whole header travels as a message, for methods that average all of it."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.fields import f32
from fedssa.core.message import message
from fedssa.core.method import Upload
from fedssa.core.split import header_rows, set_header_rows
from fedssa.methods.parts.means import num_samples


@message
class Header:
    rows: Annotated[Tensor, f32("S", "d + 1")]


@message
class GlobalHeader:
    """The server keeps this header, which is None until somebody has uploaded one."""

    rows: Annotated[Tensor | None, f32("S", "d + 1")] = None


def header_of(client: Client) -> Header:
    return Header(header_rows(client.net.header))


def replace_header(client: Client, header: Header) -> None:
    set_header_rows(client.net.header, torch.arange(len(header.rows), device=client.device), header.rows)


def mean_header(
    uploads: Sequence[Upload[Header]], weights: Literal["equal", "count"], ctx: ServerContext
) -> GlobalHeader:
    """Averages this round's headers, uniformly or by training samples."""
    shares = num_samples(uploads) if weights == "count" else None
    return GlobalHeader(ctx.mean({info.id: up.rows for info, up in uploads}, shares))
