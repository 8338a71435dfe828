"""pFedES: a tiny shared proxy makes inputs of inputs; a client trains its net on both, and then the proxy.

Yi, Yu, Ren, Wang, Liu, Li: "pFedES: Generalized Proxy Feature Extractor Sharing for Model Heterogeneous Personalized
Federated Learning", AAAI 2025.

    server → k:  the proxy G, which makes an input of an input; the client replaces its copy
    client k:    phase 1: its net f alone, local.epochs of (1 − μ)·CE(f(x), y) + μ·CE(f(G(x)), y), G frozen as received
                 phase 2: its proxy alone, E_G epochs of CE(f(G(x)), y), f frozen as phase 1 left it
    k → server:  its trained G; nothing of the net
    server:      mean by training samples over this round's participants

G is conv 3×3 (C → 8), ReLU, conv 3×3 (8 → C), ReLU for images of C channels, which keeps their size. For vectors it is
linear (→ 8), ReLU, linear (8 →): that is our reading, the paper has images only. The paper divides by the samples of
all clients; taken literally, G shrinks where only some take part, so ours divides by the participants'. The model
evaluated is f on x itself, without G. With μ = 0 the net trains as Standalone's, to the last bit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from annotated_types import Ge, Le
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import like
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.tensors import Layout, copy_in, layout_of, module_state
from fedssa.core.training import Batch, Phase
from fedssa.methods.parts.means import mean_state, num_samples

HIDDEN = 8  # channels or units between the proxy's two layers


@message
class ProxyWeights:
    w: Annotated[dict[str, Tensor], like("proxy")]


class Proxy(nn.Sequential):
    """Turns an input into one of the same shape."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) == 3:
            channels = input_shape[0]
            super().__init__(
                nn.Conv2d(channels, HIDDEN, 3, padding="same"),
                nn.ReLU(),
                nn.Conv2d(HIDDEN, channels, 3, padding="same"),
                nn.ReLU(),
            )
        else:
            size = math.prod(input_shape)
            inner = (nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, size))
            super().__init__(nn.Flatten(), *inner, nn.Unflatten(1, input_shape))


def proxy_start(task: Task, seed: int) -> Proxy:
    """Builds the proxy with the weights it starts from, at the server and at every client."""
    with seeded(seed, "server"):
        return Proxy(task.input_shape)


@final
@dataclass(frozen=True, kw_only=True)
class PFedES(Method[ProxyWeights, ProxyWeights, ProxyWeights]):
    """A tiny extractor from inputs to inputs travels; clients train their net on what it makes of their samples too."""

    needs_float_inputs: ClassVar[str] = "changes inputs"
    travels: ClassVar = ("shared models",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#69003c"

    mu: Annotated[float, Ge(0), Le(0.5)] = 0.5  # weight of the proxy's inputs in the net's loss
    proxy_epochs: Annotated[int, Ge(0)] = 0  # E_G; 0: as many as local.epochs

    @override
    def layouts(self, task: Task) -> Mapping[str, Layout]:
        return {"proxy": layout_of(module_state(proxy_start(task, 0)))}

    @override
    def server_init(self, ctx: ServerContext) -> ProxyWeights:
        return ProxyWeights(module_state(proxy_start(ctx.task, ctx.seed)))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(proxy_start(ctx.task, ctx.seed))

    @override
    def downlink(self, server: ProxyWeights, to: ClientInfo, ctx: ServerContext) -> ProxyWeights:
        return server

    @override
    def receive(self, client: Client, down: ProxyWeights | None, ctx: Context) -> None:
        if down is not None:
            copy_in(down.w, module_state(client[Proxy]))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (
            Phase(self.loss, trains=("extractor", "header")),
            Phase(self.proxy_loss, epochs=self.proxy_epochs or None, trains=(Proxy,)),
        )

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        own = client.cross_entropy(client.net(batch.x), batch.y)
        if self.mu == 0:
            return own  # a second pass would move batch statistics
        return (1 - self.mu) * own + self.mu * self.proxy_loss(client, batch)

    def proxy_loss(self, client: Client, batch: Batch) -> Tensor:
        return client.cross_entropy(client.net(client[Proxy](batch.x)), batch.y)

    @override
    def uplink(self, client: Client, ctx: Context) -> ProxyWeights:
        return ProxyWeights(module_state(client[Proxy]))

    @override
    def aggregate(
        self, server: ProxyWeights, uploads: Sequence[Upload[ProxyWeights]], ctx: ServerContext
    ) -> ProxyWeights:
        return ProxyWeights(mean_state({info.id: up.w for info, up in uploads}, ctx, num_samples(uploads)))
