"""The smallest methods that ask for something: public data, groups, a model of the server's, a number of rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import probabilities
from fedssa.core.groups import Flat, flat, set_flat
from fedssa.core.message import Nothing, message
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase, outputs


@message
class Outputs:
    """What models say of the public samples of a round."""

    outputs: Annotated[Tensor, probabilities("P", "S")]


@message
class Latest:
    outputs: Annotated[Tensor | None, probabilities("P", "S")] = None


@dataclass(frozen=True, kw_only=True)
class Talking(Method[Latest, Outputs, Outputs]):
    """Clients say what they see in X_{t+1}, and learn in the next round what the first of them saw."""

    needs_public: ClassVar[Literal["no", "unlabelled", "labelled"]] = "unlabelled"

    @override
    def downlink(self, server: Latest, to: ClientInfo, ctx: ServerContext) -> Outputs | None:
        return None if server.outputs is None else Outputs(server.outputs)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        heard = () if client.received(Outputs) is None else (Phase(self.listen, data="public"),)
        return (*heard, Phase(self.loss))

    def listen(self, client: Client, batch: Batch) -> Tensor:
        heard = client.received(Outputs)
        assert heard is not None
        return cross_entropy(client.net(batch.x), heard.outputs[batch.index])

    @override
    def uplink(self, client: Client, ctx: Context) -> Outputs:
        return Outputs(softmax(outputs(client, ctx.public_next), dim=1))

    @override
    def aggregate(self, server: Latest, uploads: Sequence[Upload[Outputs]], ctx: ServerContext) -> Latest:
        return Latest(uploads[0].payload.outputs)


@dataclass(frozen=True, kw_only=True)
class Labelled(Method[Nothing, Nothing, Nothing]):
    needs_public: ClassVar[Literal["no", "unlabelled", "labelled"]] = "labelled"

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return Phase(self.loss, data="public"), Phase(self.loss)


@dataclass(frozen=True, kw_only=True)
class AnyLabels(Method[Nothing, Nothing, Nothing]):
    needs_public: ClassVar[Literal["no", "unlabelled", "labelled"]] = "labelled"
    takes_foreign_labels: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class OneRound(Method[Nothing, Nothing, Nothing]):
    fixed_rounds: ClassVar[int | None] = 1


@dataclass(frozen=True, kw_only=True)
class ServerModel(Method[Nothing, Nothing, Nothing]):
    needs_server_model: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Grouped(Method[Nothing, Nothing, Flat]):
    """Extractors go up, and nothing comes down."""

    groups: ClassVar[Literal["none", "layout", "architecture"]] = "layout"

    @override
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        set_flat(client.net.extractor, flat(client.net.extractor))

    @override
    def uplink(self, client: Client, ctx: Context) -> Flat:
        return flat(client.net.extractor)


@message
class Weights:
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingServer(Method[Weights, Nothing, Nothing]):
    """The server trains a small model on noise of its own, as [server] says."""

    @override
    def server_init(self, ctx: ServerContext) -> Weights:
        return Weights(Tensor([[0.0, 0.0]]), Tensor([0.0]))

    @override
    def aggregate(self, server: Weights, uploads: Sequence[Upload[Nothing]], ctx: ServerContext) -> Weights:
        model = nn.Linear(2, 1)
        model.load_state_dict({"weight": server.weight, "bias": server.bias})
        x = Tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])
        ctx.fit(model, lambda batch: ((model(batch.x) - batch.x.sum(dim=1, keepdim=True)) ** 2).mean(), x)
        return Weights(model.weight.detach(), model.bias.detach())
