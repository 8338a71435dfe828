"""Small data of other kinds than images, and own nets that take them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.task import Task

VOCABULARY, LENGTH, STEPS, CHANNELS = 40, 6, 8, 3


def texts(largest: int = VOCABULARY - 1) -> dict[str, Any]:
    """Sentences of token ids, padded with 0 behind their end; the first words tell the class."""
    rng, y = np.random.default_rng(0), np.arange(80) % 4
    mask = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, len(y))[:, None]
    ids = np.where(np.arange(LENGTH) < 2, 1 + y[:, None], rng.integers(5, VOCABULARY, (len(y), LENGTH))) * mask
    ids[0, 1] = largest
    return {"x": {"ids": ids, "mask": mask}, "y": y}


def ids_alone(largest: int = VOCABULARY - 1) -> tuple[np.ndarray, np.ndarray]:
    found = texts(largest)
    return found["x"]["ids"].astype(np.int16), found["y"]


def series() -> dict[str, Any]:
    """Series [T, C] whose mean tells the class."""
    rng, y = np.random.default_rng(0), np.arange(80) % 4
    return {"x": rng.normal(y[:, None, None], 1.0, (len(y), STEPS, CHANNELS)), "y": y, "kind": "tensor"}


def photos() -> dict[str, Any]:
    """Images of bytes, each with a row of a table."""
    rng, y = np.random.default_rng(0), np.arange(80) % 4
    image = rng.integers(0, 256, (len(y), 6, 6, 3)).astype(np.uint8)
    return {"x": {"image": image, "table": rng.normal(y[:, None], 1.0, (len(y), 2))}, "y": y}


# -- text ----------------------------------------------------------------------------------------------------------
class Text(nn.Module):
    """Embeds ids, and classifies what `read` makes of those that the mask leaves."""

    def __init__(self, task: Task, size: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size, padding_idx=0)
        self.head = nn.Linear(size, task.num_classes)

    @override
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        assert ids.dtype == torch.int64
        assert mask.dtype == torch.bool
        logits: Tensor = self.head(self.read(self.words(ids), mask))
        return logits

    def read(self, words: Tensor, mask: Tensor) -> Tensor:
        return (words * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


class Bag(Text):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.bag = nn.EmbeddingBag(VOCABULARY, 8, mode="mean", padding_idx=0)

    @override
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.head(self.bag(ids * mask))
        return logits


class Recurrent(Text):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.gru = nn.GRU(8, 8, batch_first=True)

    @override
    def read(self, words: Tensor, mask: Tensor) -> Tensor:
        return super().read(self.gru(words)[0], mask)


class Convolving(Text):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    @override
    def read(self, words: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.conv((words * mask[:, :, None]).transpose(1, 2)).relu()
        return found.amax(dim=2)


class Attending(Text):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    @override
    def read(self, words: Tensor, mask: Tensor) -> Tensor:
        return super().read(self.encoder(words, src_key_padding_mask=~mask), mask)


class Deep(Text):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.hidden = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    @override
    def read(self, words: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.hidden(super().read(words, mask))
        return found


TEXT_NETS = ("Bag", "Recurrent", "Convolving", "Attending", "Deep")


def ids_net(task: Task) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(VOCABULARY, 8, padding_idx=0), nn.Linear(8, task.num_classes))


# -- series, image and table -----------------------------------------------------------------------------------------
class Remembering(nn.Module):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.lstm = nn.LSTM(task.input_shape[1], 8, batch_first=True)
        self.head = nn.Linear(8, task.num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class Filtering(nn.Module):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.conv = nn.Conv1d(task.input_shape[1], 8, 3, padding=1)
        self.head = nn.Linear(8, task.num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.conv(x.transpose(1, 2)).relu().mean(dim=2))
        return logits


class Joined(nn.Module):
    """Takes an image and a row of a table."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        assert isinstance(task.inputs, dict)
        self.conv = nn.Conv2d(task.inputs["image"].shape[0], 6, 3)
        self.head = nn.Linear(6 + task.inputs["table"].shape[0], task.num_classes)

    @override
    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        assert float(image.min()) >= -1
        assert float(image.max()) <= 1
        logits: Tensor = self.head(torch.cat([self.conv(image).relu().mean(dim=(2, 3)), table], dim=1))
        return logits
