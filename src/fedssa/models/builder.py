"""Models of one architecture are built here, and split for their owner if they are not split already."""

import copy
from collections.abc import Callable

from torch import nn

from fedssa.core.seeds import seeded
from fedssa.core.split import Cut, SplitModel, by_name, checked, divided, proved, refuse_views
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models.cnn import CNN_FACTORIES
from fedssa.models.fingerprint import structure
from fedssa.models.mlp import MLP_FACTORIES

ModelFactory = Callable[[Task], nn.Module]

MODELS: dict[str, ModelFactory] = {**CNN_FACTORIES, **MLP_FACTORIES}


class Builder:
    """Builds models of one architecture: the first is thrown away after the proof that all are split rightly.

    So no model that is handed out has run, and what it costs to split one does not depend on how often it is built.
    """

    def __init__(self, name: str, factory: ModelFactory, task: Task, output: str | None = None) -> None:
        self.name, self._factory, self._task, self._output = name, factory, task, output
        self._proof: tuple[Cut | bool, dict[str, str]] | None = None

    def __call__(self) -> SplitModel:
        if any(self._factory is ours for ours in MODELS.values()):  # ours is made anew and fits
            ours = self._made()
            assert isinstance(ours, SplitModel)
            return ours
        if self._proof is None:
            with seeded(0, "start"):
                self._proof = self._proved()
        cut, wanted = self._proof
        return self._like(wanted, self._split(self._made(), cut))

    def _made(self) -> nn.Module:
        try:
            module = self._factory(self._task)
        except ModelError:
            raise
        except Exception as error:  # a user's factory may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ModelError(f"{self.name}: cannot be built for {self._task} ({reason})") from error
        if not isinstance(module, nn.Module):
            kind = "None" if module is None else f"a {type(module).__name__}"
            raise ModelError(f"{self.name}: returned {kind}; it should return an nn.Module")
        return module

    def _proved(self) -> tuple[Cut | bool, dict[str, str]]:
        module = self._made()
        try:
            if isinstance(module, SplitModel):
                self._check_header(module)
                refuse_views(module)
                cut: Cut | bool = checked(copy.deepcopy(module), self._task).channels_last
            else:
                cut = proved(module, self._task, output=self._output)
        except ModelError as error:
            said = str(error).removeprefix(f"{self.name.rpartition(':')[2]}: ")  # a class's name stands there already
            raise ModelError(f"{self.name}: {said}") from error
        return cut, structure(self._split(module, cut))

    def _split(self, module: nn.Module, cut: Cut | bool) -> SplitModel:
        """Copies a module, since a factory may hand out the same one again."""
        if isinstance(cut, Cut):
            return divided(module, self._task, cut)
        assert isinstance(module, SplitModel)
        net = by_name(copy.deepcopy(module), self._task)
        net.channels_last = cut
        return net

    def _check_header(self, module: SplitModel) -> None:
        shapes = [list(p.shape) for p in module.header.parameters()]
        wanted = [[self._task.num_classes, self._task.width], [self._task.num_classes]]
        if shapes != wanted:
            raise ModelError(f"its header's weight and bias are {shapes}, the federation's are {wanted}")

    def _like(self, wanted: dict[str, str], net: SplitModel) -> SplitModel:
        found = structure(net)
        if found == wanted:
            return net
        part = next(name for name in {**wanted, **found} if found.get(name) != wanted.get(name))
        raise ModelError(
            f"{self.name}: builds two different models: '{part}' is {wanted.get(part, 'missing')} in one and "
            f"{found.get(part, 'missing')} in another; it must build the same layers each time"
        )


def build(name: str, factory: ModelFactory, task: Task) -> SplitModel:
    return Builder(name, factory, task)()
