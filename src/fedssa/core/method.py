"""Method: the hooks of a federated method. The default of every hook is Standalone: nothing is exchanged."""

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedssa.core.payload import Tensors, expect
from fedssa.core.task import Task

if TYPE_CHECKING:
    from fedssa.core.client import Client, ClientInfo


class Upload(NamedTuple):
    """What the server has of one participant: what it said when it joined, and this round's payload."""

    info: "ClientInfo"
    payload: Tensors


class Method(ABC):  # noqa: B024 (no abstract hook: each has Standalone's behaviour)
    """Subclass as a frozen, keyword-only dataclass: its fields are hyper-parameters; it holds no state.

    State is the server's (a dict of tensors that `aggregate` replaces) or the client's (`net`, `aux`,
    `memory`). In order of one round: downlink, receive, loss (every step), uplink, aggregate.
    """

    needs_shared_model: ClassVar[bool] = False  # then task.build_shared is there
    needs_same_models: ClassVar[bool] = False  # then it is that of all clients; different architectures are refused
    measures_prototypes: ClassVar[bool] = False  # then its uplink passes all training samples through the extractor
    num_views: ClassVar[int] = 1  # augmented views of a batch; if more, `loss` gets x as [views, B, ...]

    def server_init(self, task: Task, seed: int) -> Tensors:
        """The server's state before round 0."""
        return {}

    def client_init(self, client: "Client", task: Task, seed: int) -> None:
        """May change the start of the client's net, and add to client.aux and client.memory."""

    def downlink(self, server: Tensors, to: "ClientInfo", t: int) -> Tensors:
        """What client `to` is sent in round t."""
        return {}

    def receive(self, client: "Client", down: Tensors, t: int) -> None:
        """Fuse it into the client."""

    def loss(self, client: "Client", x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        """The loss of one batch, and tensors to sum over the steps of the round (`stats` of uplink)."""
        return cross_entropy(client.net(x), y), {}

    def uplink(self, client: "Client", stats: Tensors, t: int) -> Tensors:
        """What leaves the client after training."""
        return {}

    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        """The new state of the server; uploads are in the order of client ids."""
        return server

    def check_upload(self, task: Task, info: "ClientInfo", payload: Tensors) -> None:
        """Raise AnswerError unless `uplink` could have sent this: a deployed server asks before it aggregates."""
        expect(payload, {})

    def predict(self, client: "Client", x: Tensor) -> dict[str, Tensor]:
        """Named logits; the first is the headline."""
        return {"head": client.net(x)}

    def events(self, server: Tensors) -> dict[str, int]:
        """What has happened up to here that a user should know of, counted: for the record."""
        return {}

    def shaking(self, before: Tensors, after: Tensors) -> float | None:
        """How far the server's class rows moved in a round, if it has such rows: for the record."""
        return None

    def warnings(self, num_rounds: int) -> list[str]:
        """What a user should know before such a run starts."""
        return []
