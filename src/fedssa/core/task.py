"""The task is what all clients share, and all that a server needs to start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedssa.core.samples import Form, Input, Inputs, read, written
from fedssa.core.seeds import seeded
from fedssa.core.tensors import Layout, layout_of, module_state
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.core.split import SplitModel

Build = Callable[[], "SplitModel"]
BuildShared = Callable[..., "SplitModel"]  # without an argument: of the task's width; with one: of that width


@dataclass(frozen=True)
class TaskFacts:
    """A task is written down as these facts, which are all of it but how models are built."""

    num_classes: int
    input_shape: tuple[int, ...]
    width: int
    num_rounds: int
    num_clients: int = 0
    inputs: dict[str, Input] | None = None  # of each by its name, "" if it has none; None: one tensor of floats

    def task(self) -> "Task":
        form = read(self.inputs or {}, self.input_shape)
        return Task(self.num_classes, (), self.width, self.num_rounds, self.num_clients, inputs=form)


@dataclass(frozen=True)
class Task:
    num_classes: int  # S
    input_shape: tuple[int, ...]  # (channels, height, width) of an image, (size,) of a vector; () if inputs have names
    width: int = 500  # d, the size of the representation: every header is [S, d] with bias
    num_rounds: int = 1  # T
    num_clients: int = 0  # N; 0 if it is not known
    header_scale: float = 1.0  # multiplies the initial weights of every client's header
    build_shared: BuildShared | None = field(default=None, compare=False, repr=False)  # models.shared
    build_server: Build | None = field(default=None, compare=False, repr=False)  # models.server
    prototypes: Mapping[str, Build] = field(default_factory=dict, compare=False, repr=False)  # models.prototypes
    inputs: Form = field(default=Input(()), hash=False)  # shape and type of the input, or of each by its name
    probe: Inputs | None = field(default=None, compare=False, repr=False)  # some real samples, as a model takes them

    def __post_init__(self) -> None:
        if self.inputs == Input(()):
            object.__setattr__(self, "inputs", Input(self.input_shape))
        shape = self.inputs.shape if isinstance(self.inputs, Input) else ()
        object.__setattr__(self, "input_shape", shape)

    @property
    def has_images(self) -> bool:
        several = self.inputs.values() if isinstance(self.inputs, dict) else (self.inputs,)
        return any(one.type == "float32" and len(one.shape) == 3 for one in several)

    @property
    def takes_floats(self) -> bool:
        """Tells whether the input is one tensor of floats, so that inputs can be averaged, changed or made up."""
        return isinstance(self.inputs, Input) and self.inputs.type == "float32"

    @torch.no_grad()
    def scale(self, header: nn.Linear) -> None:
        """Gives a client's header its start: the weights are scaled, the bias stays as it was drawn."""
        header.weight.mul_(self.header_scale)

    def shared_start(self, seed: int, width: int | None = None) -> "SplitModel":
        """Builds the shared model with the weights it starts from, at the server and at every client.

        `width` is that of its representation, if it is not the clients' own d.
        """
        if self.build_shared is None:
            raise SettingsError("models.shared is missing: this task has no shared model, and the method asks for it")
        with seeded(seed, "server"):
            return self.build_shared() if width in (None, self.width) else self.build_shared(width)

    def server_start(self, seed: int) -> "SplitModel":
        """Builds the server's own model with the weights it starts from."""
        if self.build_server is None:
            raise SettingsError(
                "models.server is missing: this task has no model for the server, and the method asks for it"
            )
        with seeded(seed, "server"):
            return self.build_server()

    def prototype_start(self, name: str, seed: int) -> "SplitModel":
        """Builds a model of a prototype that the server can run, with the weights that all its clients start from."""
        if name not in self.prototypes:
            known = ", ".join(self.prototypes) or "none"
            raise SettingsError(f"models.prototypes: has no {name!r}, which a client says it has; it has {known}")
        with seeded(seed, "server", phase=name):
            return self.prototypes[name]()

    @cached_property
    def prototype_layouts(self) -> dict[str, Layout]:
        return {name: layout_of(module_state(self.prototype_start(name, 0))) for name in self.prototypes}

    def shared_layout(self, width: int | None = None) -> Layout:
        """Says what every state of the shared model of this width looks like."""
        known, wanted = self._shared_layouts, width or self.width
        if wanted not in known:
            known[wanted] = layout_of(module_state(self.shared_start(0, wanted)))
        return known[wanted]

    @cached_property
    def _shared_layouts(self) -> dict[int, Layout]:
        return {}


def facts_of(task: Task) -> TaskFacts:
    facts = (task.num_classes, task.input_shape, task.width, task.num_rounds, task.num_clients)
    return TaskFacts(*facts, written(task.inputs) or None)
