"""What a task tells whoever asks for what it does not have."""

import pytest

from fedssa.core.task import Task
from fedssa.errors import SettingsError
from fedssa.methods import FedAvg
from tests.conftest import server_at


def test_a_task_without_a_shared_model_names_the_setting() -> None:
    with pytest.raises(SettingsError, match=r"^models\.shared is missing"):
        FedAvg().server_init(server_at(-1, Task(num_classes=3, input_shape=(4,))))
