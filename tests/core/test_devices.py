"""A client computes on its device and is kept on the CPU; what a round draws is the same on every device."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.accounting.flops import FlopCounter
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.evaluation import Measures
from fedssa.core.message import plain_in
from fedssa.core.optim import Adam
from fedssa.core.samples import LocalData, Samples, named
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.core.training import Batch, LocalTraining, Phase
from fedssa.kernels.devices import CPU
from fedssa.methods import Standalone
from tests.core.phases import PUBLIC, Adapter, InPhases, client_with, everything
from tests.elsewhere import ELSEWHERE, Elsewhere, SaysWhere

DEVICES = (CPU, ELSEWHERE)
IMAGES = Task(3, (2, 8, 8), width=4)
HARD = LocalTraining(
    batch_size=4,
    lr=0.01,
    clip=0.1,
    optimiser=Adam(),
    augment=True,
    accumulate=2,
    class_weights="balanced",
    label_smoothing=0.1,
)


def most(logits: Tensor, y: Tensor) -> float:
    """A user's own metric, which knows of no device."""
    return float(logits.numpy()[y.numpy()].max())


def images() -> LocalData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (10, 8, 8, 2), dtype=torch.uint8, generator=generator)
    samples = Samples(x, torch.arange(10) % 3 // 2)
    return LocalData(samples, samples.take(torch.arange(2)), samples.take(torch.arange(3)))


def on_images(device: torch.device) -> Client:
    """Everything at once that a client may do with a batch, a loss, a step and a score."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.ReLU())
        net = SplitModel(nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(4, 3))
    measures, count = Measures(per_class=True, metrics={"most": most}), FlopCounter().of_round
    names = ("crop", "flip", "erase")
    return Client(
        0,
        net,
        images(),
        IMAGES,
        Standalone(),
        HARD,
        0,
        names,
        count,
        "torch",
        measures=measures,
        find_device=lambda: device,
    )


def test_all_that_a_client_does_with_images_is_the_same_on_every_device() -> None:
    here, there = map(on_images, DEVICES)
    with Elsewhere(), SaysWhere():
        assert there.hello(evaluate_start=True) == here.hello(evaluate_start=True)
    assert answered(there) == answered(here)


def answered(client: Client) -> dict[str, Any]:
    """All that it says after a round in which every tensor is told its device, with a digest of its state."""
    with Elsewhere(), SaysWhere():
        return plain_in(client.run_round(None, 0))


@pytest.mark.parametrize("data", ["train", "public", "all-public", "both", torch.tensor([3, 1, 4])])
def test_all_kinds_of_samples_are_on_the_device(data: Any) -> None:
    method, count = InPhases(Phase(everything, data=data, batch_size=2)), FlopCounter().of_round
    here, there = (client_with(method, count_flops=count, device=device) for device in DEVICES)
    assert answered(there) == answered(here)


def test_a_phase_may_choose_its_samples_on_the_device() -> None:
    class Chosen(InPhases):
        @override
        def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
            return (Phase(everything, data=(client.data.train.y == 1).nonzero().flatten()),)

    here, there = (client_with(Chosen(), device=device) for device in DEVICES)
    assert answered(there) == answered(here)


def test_a_client_is_on_its_device_for_a_round_and_on_the_cpu_before_and_after() -> None:
    seen: list[set[torch.device]] = []

    def noted(client: Client, batch: Batch) -> Tensor:
        seen.append(places(client) | {batch.x.device, batch.y.device, batch.index.device})
        return everything(client, batch)

    local = LocalTraining(batch_size=6, class_weights="balanced")
    client = client_with(InPhases(Phase(noted)), local=local, device=ELSEWHERE)
    assert places(client) == {CPU}
    with Elsewhere():
        for t in range(2):
            client.run_round(None, t)
            assert places(client) == {CPU}
    assert seen == [{ELSEWHERE}] * 2
    assert client.downlink is None


def places(client: Client) -> set[torch.device]:
    """Where all is that a client has."""
    public = client._ctx.public
    assert public is not None
    samples = [*client.data, public.samples]
    tensors: Tensors = {f"{i}{name}": t for i, s in enumerate(samples) for name, t in (*named(s.x).items(), ("y", s.y))}
    assert client._class_weights is not None
    return {t.device for t in (*tensors.values(), *client.state().values(), client.seen, client._class_weights)}


def test_clients_of_one_process_share_the_public_samples_of_a_device() -> None:
    with Elsewhere():
        assert PUBLIC.on(ELSEWHERE).samples.x is PUBLIC.on(ELSEWHERE).samples.x
    assert PUBLIC.on(CPU) is PUBLIC
    assert PUBLIC.samples.x.device == CPU


def test_a_modules_parameters_stay_trainable_or_frozen() -> None:
    client = client_with(InPhases(Phase(everything)), device=ELSEWHERE)
    client.net.header.requires_grad_(False)
    with Elsewhere():
        client.run_round(None, 0)
    assert not any(p.requires_grad for p in client.net.header.parameters())
    assert all(p.requires_grad for p in client[Adapter].parameters())
