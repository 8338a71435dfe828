"""Which models a task starts, and what it tells whoever asks for what it does not have."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import layout_of, module_state
from fedssa.errors import SettingsError
from fedssa.methods import FedAvg
from tests.conftest import same_bits, server_at


def test_a_task_without_a_shared_model_names_the_setting() -> None:
    with pytest.raises(SettingsError, match=r"^models\.shared is missing"):
        FedAvg().server_init(server_at(-1, Task(num_classes=3, input_shape=(4,))))


def fresh() -> SplitModel:
    """Of torch's generator, as a user's model."""
    return SplitModel(nn.Linear(4, 2), nn.Linear(2, 3), channels_last=False)


TASK = Task(3, (4,), build_shared=fresh, build_server=fresh, prototypes={"cnn-1": fresh, "cnn-2": fresh})


@pytest.mark.parametrize(
    "start", [TASK.shared_start, TASK.server_start, lambda seed: TASK.prototype_start("cnn-1", seed)]
)
def test_a_start_is_of_its_seed_alone(start: Callable[[int], SplitModel]) -> None:
    one, again, other = (module_state(start(seed)) for seed in (0, 0, 1))
    assert same_bits(one, again)
    assert not torch.equal(one["header.weight"], other["header.weight"])


def test_every_prototype_has_a_start_of_its_own() -> None:
    one, other = (TASK.prototype_start(name, 0).header.weight for name in TASK.prototypes)
    assert not torch.equal(one, other)


def test_a_task_without_a_servers_model_names_the_setting() -> None:
    with pytest.raises(SettingsError, match=r"^models\.server is missing"):
        Task(num_classes=3, input_shape=(4,)).server_start(0)


def test_a_prototype_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"^models\.prototypes: has no 'mlp', .* it has cnn-1, cnn-2$"):
        TASK.prototype_start("mlp", 0)
    with pytest.raises(SettingsError, match=r"it has none$"):
        Task(num_classes=3, input_shape=(4,)).prototype_start("mlp", 0)


def test_layouts_are_those_of_the_models() -> None:
    layout = layout_of(module_state(fresh()))
    assert TASK.shared_layout() == layout
    assert TASK.prototype_layouts == {"cnn-1": layout, "cnn-2": layout}
