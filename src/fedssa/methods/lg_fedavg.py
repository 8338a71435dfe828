"""LG-FedAvg: the whole header is averaged, the extractor stays local.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", 2020.

    server → k:  θ (once there is one); the client replaces its header
    client k:    trains its whole model on its own data, one joint SGD
    k → server:  θ_k
    server:      θ ← mean of θ_k over this round's participants, uniform or by samples
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.methods.parts.header import GlobalHeader, Header, header_of, mean_header, replace_header


@final
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method[GlobalHeader, Header, Header]):
    """The whole header is averaged and replaced; the extractor stays local."""

    travels: ClassVar = ("headers",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#008e3b"

    weights: Literal["equal", "count"] = "equal"  # count: by the client's training samples

    @override
    def downlink(self, server: GlobalHeader, to: ClientInfo, ctx: ServerContext) -> Header | None:
        return None if server.rows is None else Header(server.rows)

    @override
    def receive(self, client: Client, down: Header | None, ctx: Context) -> None:
        if down is not None:
            replace_header(client, down)

    @override
    def uplink(self, client: Client, ctx: Context) -> Header:
        return header_of(client)

    @override
    def aggregate(self, server: GlobalHeader, uploads: Sequence[Upload[Header]], ctx: ServerContext) -> GlobalHeader:
        return mean_header(uploads, self.weights, ctx)
