"""Extractors travel among clients of one layout. The server knows a group's id and length, and nothing else."""

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.groups import Flat, flat, set_flat
from fedssa.core.message import message
from fedssa.core.method import Upload
from fedssa.methods.parts.means import num_samples


@message
class Extractors:
    """Holds the latest mean of each group."""

    groups: dict[str, Flat] = field(default_factory=dict)

    def of(self, info: ClientInfo) -> Flat | None:
        """Returns the mean of the client's group, or None before anybody in it has uploaded one."""
        return self.groups.get(group_of(info))


def group_of(info: ClientInfo) -> str:
    assert info.group is not None, "a method that shares extractors declares groups"
    return info.group


def extractor_of(client: Client) -> Flat:
    return flat(client.net.extractor)


def replace_extractor(client: Client, extractor: Flat) -> None:
    set_flat(client.net.extractor, extractor)


def mean_by_group(
    server: Extractors, uploads: Sequence[Upload[Flat]], weights: Literal["equal", "count"], ctx: ServerContext
) -> Extractors:
    """Averages over this round's participants of each group; a group without any keeps what it has."""
    groups = dict(server.groups)
    for group in sorted({group_of(upload.info) for upload in uploads}):
        own = [upload for upload in uploads if group_of(upload.info) == group]
        shares = num_samples(own) if weights == "count" else None
        counters = {info.id: up.integers for info, up in own if up.integers is not None}
        floats = ctx.mean({info.id: up.floats for info, up in own}, shares)
        groups[group] = Flat(floats, ctx.mean(counters, shares) if counters else None)
    return Extractors(groups)
