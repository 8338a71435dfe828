"""A context tells hooks the round, the task, the seed and the public data; the server's can average and train."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.averaging import Cuts, Mean, Rule, average
from fedssa.core.fitting import Batch, Fitted, Step, Training, fit, num_batches
from fedssa.core.noise import Noise, NoiseFrom, NoiseStream, from_seed, from_system
from fedssa.core.public import Public
from fedssa.core.samples import Inputs, Samples, count, rows
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.task import Task
from fedssa.core.tensors import all_finite
from fedssa.core.training import EVAL_BATCH
from fedssa.errors import Diverged


@dataclass(frozen=True)
class Context:
    task: Task
    seed: int
    public: Public | None = field(default=None, repr=False)
    t: int = -1  # the round; -1: before the first
    noise_from: NoiseFrom = "seed"  # in simulations; at sites and at their server it is "system"

    @property
    def num_rounds(self) -> int:
        return self.task.num_rounds

    def at(self, t: int) -> Self:
        return replace(self, t=t)

    def noise(self, client: int = -1, stream: NoiseStream = "noise") -> Noise:
        """Returns the noise of differential privacy for this round of a client, or of the server."""
        return from_seed(self.seed, self.t, client, stream) if self.noise_from == "seed" else from_system()

    @cached_property
    def public_now(self) -> Samples:
        """Returns X_t, the samples that this round's downlink is about."""
        assert self.public is not None, "a method without needs_public asks for public data"
        return self.public.at(self.seed, self.t)

    @cached_property
    def public_next(self) -> Samples:
        """Returns X_{t+1}, the samples that this round's upload is about."""
        assert self.public is not None, "a method without needs_public asks for public data"
        return self.public.at(self.seed, self.t + 1)


CountFlops = Callable[[], AbstractContextManager[Callable[[], int]]]  # it counts what runs inside, then says how much


@dataclass(frozen=True)
class ServerContext(Context):
    """The server's `fit` trains with the one loop, seeded by (seed, round, number), as [server] says."""

    training: Training = field(default_factory=Training)
    count_flops: CountFlops | None = field(default=None, repr=False)
    flops: list[int] = field(default_factory=list, repr=False)  # of this round's trainings
    is_rehearsal: bool = False  # then it trains nothing before the first round, which may take long
    rule: Rule = field(default_factory=Mean)  # by which it averages: [aggregation]
    cuts: Cuts = field(default_factory=Cuts, repr=False)  # of this round

    @override
    def at(self, t: int) -> Self:
        return replace(self, t=t, flops=[], cuts=Cuts())

    def mean(self, values: Mapping[int, Tensor], weights: Sequence[float] | None = None) -> Tensor:
        """Averages what clients have uploaded, by their ids, as [aggregation] says; without weights, all count alike.

        Rules other than the mean have no use for weights.
        """
        return average(values, [1] * len(values) if weights is None else weights, self.rule, self.cuts)

    def fit(
        self,
        modules: nn.Module | Sequence[nn.Module],
        loss: Callable[[Batch], Tensor],
        x: Tensor,
        y: Tensor | None = None,
        *,
        how: Training | None = None,
        shuffled: bool = True,
        number: int = 0,
        moments: Sequence[Tensor] = (),
    ) -> Fitted:
        """Trains modules in place on rows of x (and y); `number` tells a round's trainings apart.

        The optimiser begins anew, or goes on from the `moments` of an earlier training, which its server has kept.
        """
        how, trained = how or self.training, nn.ModuleList([modules] if isinstance(modules, nn.Module) else modules)
        if self.is_rehearsal and self.t < 0:
            how = replace(how, epochs=0)
        stream = f"server{number}"
        trained.train()
        counting = self.count_flops() if self.count_flops else nullcontext(lambda: 0)
        with torch.enable_grad(), seeded(self.seed, "training", t=self.t, phase=stream), counting as counted:
            todo = self._steps(x, y, how, shuffled, stream)
            rates = how.rates(self.t, self.num_rounds, how.epochs * num_batches(len(x), how.batch_size))
            steps = how.optimiser.start(trained.parameters())
            steps.go_on_from(moments)
            fitted = fit(loss, todo, steps, how.clip, rates)._replace(moments=steps.moments())
        self.flops.append(counted())
        trained.eval()
        if not fitted.is_finite or not all_finite(p.detach() for p in trained.parameters()):
            raise Diverged(None, self.t)
        return fitted

    def _steps(self, x: Tensor, y: Tensor | None, how: Training, shuffled: bool, stream: str) -> Iterator[Step]:
        order = torch_rng(self.seed, "batches", t=self.t, phase=stream)
        labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
        for _ in range(how.epochs):
            drawn = torch.randperm(len(x), generator=order) if shuffled else torch.arange(len(x))
            for index in torch.split(drawn, how.batch_size):
                yield Step(len(index), [Batch(x[index], labels[index], index)])

    @torch.no_grad()
    def outputs(self, module: nn.Module, x: Inputs) -> Tensor:
        """Returns a module's outputs on rows of x, in eval mode."""
        module.eval()
        starts = range(0, count(x), EVAL_BATCH)
        return torch.cat([module(rows(x, slice(start, start + EVAL_BATCH))) for start in starts])
