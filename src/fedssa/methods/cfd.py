"""CFD: quantised labels of public samples travel both ways, only where they change; a server model stands between.

Sattler, Marban, Rischke, Samek: "CFD: Communication-Efficient Federated Distillation via Soft-Label Quantization and
Delta Coding", IEEE TNSE 2022.

    server → k:  Q_b(softmax(z_S(x))), x ∈ X (once there is one)
    client k:    phase 1: soft CE(Q_b(softmax(z_S(x))), z_k(x)) on X, E_d epochs
                 phase 2: CE on its own data
    k → server:  Q_b(softmax(z_k(x))), x ∈ X, with the final model
    server:      Y(x) = mean of Q_b(softmax(z_k(x))) over this round's participants
                 θ_S (models.server) goes on from the last round: soft CE(Y(x), z_S(x)) on X, server.epochs passes

Q_b rounds to multiples of 1/(2^b − 1) that sum to 1, the nearest in L1; b = 1 is the class itself. X is the same in
every round (public.per_round = 0), so both ways only those samples are sent whose label has changed since the last
message, with their places, if that is smaller [ours: by sample, without the paper's arithmetic coder; the entropy of
the changes, what such a coder would reach, is in the record]. A client that missed a round gets everything; so does a
server that lacks a client's last upload, of which it tells the round.

The paper starts phase 1 from one random model in every round, so that all clients hold the same; that undoes
personalisation. Here a client keeps its net; `reset` starts each round from its own first weights. Epochs are ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.tensors import copy_in, module_state, own
from fedssa.core.training import Batch, Phase
from fedssa.errors import AnswerError
from fedssa.methods.parts.coded_labels import (
    WHOLE_FLOATS,
    Labels,
    decoded,
    delta,
    entropy_of_changes,
    no_codes,
    quantise,
    undelta,
    whole,
)
from fedssa.methods.parts.model import loaded
from fedssa.methods.parts.public_outputs import mean_probabilities, next_probabilities, soft_cross_entropy
from fedssa.methods.parts.server_model import distil, outputs_of


@message
class Down:
    labels: Labels
    last: int | None = None  # the round of this client's last upload, if the server has one


@message
class Server:
    """The server keeps its model, its codes of this round and of the last, and each client's last codes."""

    model: dict[str, Tensor]
    codes: Tensor | None = None
    before: Tensor | None = None  # what those have who took part in the last round
    said: dict[int, Tensor] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # client → its last round


@message
class Memory:
    """A client keeps what it has heard and said, so that only changes need be sent."""

    heard: Tensor
    said: Tensor
    t: Tensor  # the round in which it said so


@message
class Start:
    """A client that resets its net keeps the weights it had at first."""

    weights: dict[str, Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class CFD(Method[Server, Down, Labels]):
    """Labels of public samples, rounded to few bits, travel where they change; the server distils them into a model."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    fixed_public: ClassVar[bool] = True
    needs_server_model: ClassVar[bool] = True
    travels: ClassVar = ("outputs",)
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"epochs": 5}}  # over X
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#96783c"

    bits_up: Annotated[int, Ge(1), Le(32)] = 1  # b of the clients' labels: 1 to 8, or 32 for whole floats
    bits_down: Annotated[int, Ge(1), Le(32)] = 1  # b of the server's
    distill_epochs: Annotated[int, Ge(1)] = 5  # E_d
    reset: bool = False  # start every round from the client's own first weights

    def __post_init__(self) -> None:
        for name in ("bits_up", "bits_down"):
            if 8 < getattr(self, name) < WHOLE_FLOATS:
                raise ValueError(f"{name} = {getattr(self, name)} should be 1 to 8, or 32")

    @override
    def server_init(self, ctx: ServerContext) -> Server:
        return Server(module_state(ctx.task.server_start(ctx.seed)))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        assert ctx.public is not None
        heard, said = (no_codes(ctx.public.num, ctx.task.num_classes, bits) for bits in (self.bits_down, self.bits_up))
        client.keep(Memory(heard, said, torch.tensor([-1])))
        if self.reset:
            client.keep(Start({name: own(tensor) for name, tensor in module_state(client.net).items()}))

    @override
    def downlink(self, server: Server, to: ClientInfo, ctx: ServerContext) -> Down | None:
        if server.codes is None:
            return None
        last = server.last.get(to.id)
        before = server.before if last == ctx.t - 1 else None
        return Down(whole(server.codes) if before is None else delta(server.codes, before), last)

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is not None:
            heard = client[Memory].heard
            heard.copy_(undelta(down.labels, heard))
        if self.reset:
            copy_in(client[Start].weights, module_state(client.net))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        private = Phase(self.loss)
        if client.received(Down) is None:
            return (private,)
        return Phase(self.distil, data="public", epochs=self.distill_epochs), private

    def distil(self, client: Client, batch: Batch) -> Tensor:
        target = decoded(client[Memory].heard[batch.index], client.task.num_classes)
        return soft_cross_entropy(target, client.net(batch.x))

    @override
    def uplink(self, client: Client, ctx: Context) -> Labels:
        memory, down = client[Memory], client.received(Down)
        codes = quantise(next_probabilities(client, ctx), self.bits_up)
        is_known = down is not None and down.last == memory.t.item()
        said = delta(codes, memory.said) if is_known else whole(codes)
        memory.said.copy_(codes)
        memory.t.fill_(ctx.t)
        return said

    @override
    def check(self, up: Labels, info: ClientInfo, ctx: Context) -> None:
        if not up.is_of(self.bits_up):
            raise AnswerError(f"labels of {up.bits or 'other'} bits, not of {self.bits_up}")

    @override
    def refuses_noise(self) -> str:
        return "sends labels in few bits, which are no floats"

    @override
    def aggregate(self, server: Server, uploads: Sequence[Upload[Labels]], ctx: ServerContext) -> Server:
        said = {k: undelta(labels, server.said.get(k, labels.values)) for k, labels in _usable(uploads, server)}
        if not said:
            return server
        target = mean_probabilities({k: decoded(codes, ctx.task.num_classes) for k, codes in said.items()}, ctx)
        model = loaded(ctx.task.server_start(ctx.seed), server.model)
        distil(model, ctx.public_now, target, ctx)
        codes = quantise(softmax(outputs_of(model, ctx.public_now, ctx), dim=1), self.bits_down)
        last = server.last | dict.fromkeys(said, ctx.t)
        return Server(module_state(model), codes, server.codes, server.said | said, last)

    @override
    def metrics(self, before: Server, after: Server) -> dict[str, float]:
        if after.codes is None:
            return {}
        found, now = dict[str, float](), max(after.last.values())
        if self.bits_up < WHOLE_FLOATS:
            said = [k for k, t in after.last.items() if t == now]
            found["up"] = sum(entropy_of_changes(after.said[k], before.said.get(k)) for k in said)
        if self.bits_down < WHOLE_FLOATS:
            found["down"] = entropy_of_changes(after.codes, after.before)
        return {f"entropy of changes {way}, bytes": bits / 8 for way, bits in found.items()}


def _usable(uploads: Sequence[Upload[Labels]], server: Server) -> Iterator[tuple[int, Labels]]:
    """Leaves out changes of labels that the server does not have; an honest client says everything then."""
    for upload in uploads:
        if upload.payload.places is None or upload.info.id in server.said:
            yield upload.info.id, upload.payload
