"""FedKT: clients vote once on the classes of public samples, and learn from the labels that the votes make.

Li, He, Song: "Practical One-Shot Federated Learning for Cross-Silo Setting", IJCAI 2021.

    client k, round 0:  s times: its data are dealt anew into t disjoint parts, one teacher learns from each (CE);
                        the teachers' majority labels X; one student learns from (X, labels)
    k → server:         the class that each of its s students gives each x ∈ X
    server:             a client whose s students all say c gives s votes to c, others give none;
                        label(x) = the class with most votes (a tie: the lowest class); without a vote x has no label
    server → k:         the labels of X, in round 1
    client k, round 1:  its own net learns from (X, labels), then from its own data (CE)

There are two rounds, and everybody should be in both. Teachers and students have the shared architecture and one
stands where the other stood, so a client keeps one. A client of n < t samples has n teachers. `gamma` adds Laplace
noise of scale 1/γ to the votes on every sample: to the server's counts (`noise = "server"`, the paper's FedKT-L1) or
to the counts of teachers (`"clients"`, FedKT-L2). With the server's noise every sample has a label, since it would be
told otherwise which have no vote. At sites noise is the operating system's, never the seed's.

In the paper the students themselves travel, the server asks them about X, trains a final model and hands it out. X is
everybody's here, so their answers are all that is used, and the labels are the same; and the final model is personal
[ours]. The published code has the vote's consistency commented out, and a sample without a vote becomes class 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import id_type, labels
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.noise import Noise
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch, Phase, outputs
from fedssa.errors import AnswerError
from fedssa.kernels.devices import CPU
from fedssa.methods.parts.model import SharedModel


@message
class Labels:
    """Holds a class for each of X, and S where there is none."""

    labels: Annotated[Tensor, labels("P", or_none=True)]


@message
class Result:
    """The server has no labels before the votes, and counts those of X that get none."""

    labels: Tensor | None = None
    unlabelled: int = 0


@message
class Votes:
    """Holds what each student says of X; it is sent once."""

    votes: Annotated[Tensor | None, labels("s", "P")] = None


@message
class Said:
    """A client keeps its students' answers from the phase that trains them until they are sent."""

    votes: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class FedKT(Method[Result, Labels, Votes]):
    """In one exchange, students of each client vote on the classes of public samples; clients learn from the labels."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    fixed_public: ClassVar[bool] = True
    needs_shared_model: ClassVar[bool] = True
    fixed_rounds: ClassVar[int] = 2
    travels: ClassVar = ("outputs",)
    colour: ClassVar[str] = "#4b7896"

    partitions: Annotated[int, Ge(1)] = 2  # s
    teachers: Annotated[int, Ge(1)] = 5  # t, of a partition
    teacher_epochs: Annotated[int, Ge(1)] = 10  # each over its part of the client's data
    student_epochs: Annotated[int, Ge(1)] = 10  # over X
    public_epochs: Annotated[int, Ge(1)] = 10  # of the client's own net, over X
    private_epochs: Annotated[int, Ge(1)] = 10  # of the client's own net, over its own data
    gamma: Annotated[float, Ge(0)] = 0.0  # γ, noise of scale 1/γ; 0: none
    noise: Literal["server", "clients"] = "server"  # whose counts it is added to

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        assert ctx.public is not None
        client.keep(SharedModel(ctx.task.shared_start(ctx.seed)))
        nothing = torch.zeros(self.partitions, ctx.public.num, dtype=id_type(ctx.task.num_classes))
        client.keep(Said(nothing))

    @override
    def downlink(self, server: Result, to: ClientInfo, ctx: ServerContext) -> Labels | None:
        return None if server.labels is None else Labels(server.labels)

    @override
    def phases(self, client: Client, ctx: Context) -> Iterator[Phase]:
        if ctx.t == 0:
            yield from self.studies(client, ctx)
            return
        down = client.received(Labels)
        if down is not None:
            yield Phase(partial(self.learn, down.labels), data="public", epochs=self.public_epochs)
        yield Phase(self.loss, epochs=self.private_epochs)

    # -- teachers and students -----------------------------------------------------------------------------------------
    def studies(self, client: Client, ctx: Context) -> Iterator[Phase]:
        """Trains all teachers and students one after another; their votes are counted between the phases."""
        num_classes, said = ctx.task.num_classes, client[Said].votes
        noise = ctx.noise(client.id) if self.gamma and self.noise == "clients" else None
        for j in range(self.partitions):
            counts = torch.zeros(said.shape[1], num_classes, dtype=torch.int64, device=said.device)
            for i, part in enumerate(self.parts(client, j, ctx)):
                self._renew(client, f"{j}.{i}", ctx)
                yield Phase(self.teach, data=part, epochs=self.teacher_epochs, trains=(SharedModel,))
                counts += one_hot(self._answers(client, ctx), num_classes)
            target = self.majority(counts, noise)
            self._renew(client, f"{j}", ctx)
            yield Phase(partial(self.study, target), data="public", epochs=self.student_epochs, trains=(SharedModel,))
            said[j] = self._answers(client, ctx)

    def parts(self, client: Client, partition: int, ctx: Context) -> Sequence[Tensor]:
        """Deals the client's samples into t disjoint parts, none of them empty."""
        num = len(client.data.train)
        rng = torch_rng(ctx.seed, "method", t=ctx.t, client=client.id, step=partition)
        return torch.tensor_split(torch.randperm(num, generator=rng, device=CPU), min(self.teachers, num))

    def teach(self, client: Client, batch: Batch) -> Tensor:
        return client.cross_entropy(client[SharedModel].model(batch.x), batch.y)

    def study(self, target: Tensor, client: Client, batch: Batch) -> Tensor:
        return cross_entropy(client[SharedModel].model(batch.x), target[batch.index])

    def learn(self, target: Tensor, client: Client, batch: Batch) -> Tensor:
        """Returns the mean over those of the batch that have a label, and 0 if none has."""
        chosen, none = target[batch.index].long(), client.task.num_classes
        total = cross_entropy(client.net(batch.x), chosen, ignore_index=none, reduction="sum")
        return total / max(1, int((chosen != none).sum()))

    def majority(self, counts: Tensor, noise: Noise | None) -> Tensor:
        """Returns the class with most votes, or with most after noise of scale 1/γ; a tie goes to the lowest class."""
        return (
            counts if noise is None else counts + noise.laplace(*counts.shape).to(counts.device) / self.gamma
        ).argmax(dim=1)

    def _renew(self, client: Client, called: str, ctx: Context) -> None:
        """Puts a model with new weights where the last one stood."""
        build = ctx.task.build_shared
        assert build is not None
        with seeded(ctx.seed, "method", t=ctx.t, client=client.id, phase=called), CPU:
            copy_in(module_state(build()), module_state(client[SharedModel].model))

    def _answers(self, client: Client, ctx: Context) -> Tensor:
        return outputs(client, ctx.public_now, SharedModel).argmax(dim=1)

    # -- the votes -----------------------------------------------------------------------------------------------------
    @override
    def uplink(self, client: Client, ctx: Context) -> Votes:
        return Votes(client[Said].votes if ctx.t == 0 else None)

    @override
    def check(self, up: Votes, info: ClientInfo, ctx: Context) -> None:
        if ctx.t > 0 and up.votes is not None:
            raise AnswerError(f"votes in round {ctx.t}, and clients vote in round 0 alone")
        given = 0 if up.votes is None else len(up.votes)
        if ctx.t == 0 and given != self.partitions:
            raise AnswerError(f"votes of {given} students, and a client sends those of {self.partitions}")

    @override
    def refuses_noise(self) -> str:
        return "sends classes, which are no floats, and has noise of its own (method.gamma)"

    @override
    def aggregate(self, server: Result, uploads: Sequence[Upload[Votes]], ctx: ServerContext) -> Result:
        votes = [upload.payload.votes for upload in uploads if upload.payload.votes is not None]
        if not votes:
            return server
        num_classes = ctx.task.num_classes
        counts = torch.stack([self.consistent(said, num_classes) for said in votes]).sum(dim=0)
        noise = ctx.noise() if self.gamma and self.noise == "server" else None
        chosen, unlabelled = self.majority(counts, noise), counts.sum(dim=1) == 0
        if noise is None:
            chosen[unlabelled] = num_classes
        return Result(chosen.to(id_type(num_classes + 1)), 0 if noise else int(unlabelled.sum()))

    def consistent(self, votes: Tensor, num_classes: int) -> Tensor:
        """Returns the votes of one client [P, S]: s for the class that all its students say, else none."""
        agreed = (votes == votes[0]).all(dim=0)
        return len(votes) * one_hot(votes[0].long(), num_classes) * agreed[:, None]

    @override
    def metrics(self, before: Result, after: Result) -> dict[str, float]:
        return {"unlabelled": after.unlabelled}

    @override
    def advice(self, ctx: Context) -> list[str]:
        if self.gamma == 0 or ctx.public is None:
            return []
        spent, whom = 2 * self.partitions * self.gamma * ctx.public.num, {"server": "client", "clients": "sample"}
        return [
            f"method.gamma = {self.gamma:g}: by plain composition over {ctx.public.num} public samples the labels are "
            f"ε = {spent:g} differentially private for a {whom[self.noise]}; the paper's accountant is tighter"
        ]
