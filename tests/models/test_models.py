"""The paper's CNNs, the perceptrons, and how a user's model becomes one of ours."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.kernels import using
from fedssa.models import DESCRIPTIONS, MODELS, build
from fedssa.models.cnn import ConvReluPool
from tests.conftest import share_memory

CIFAR = (3, 32, 32)


def num_parameters(name: str, task: Task) -> int:
    return sum(p.numel() for p in build(name, MODELS[name], task).parameters())


def images(shape: tuple[int, ...], *, seed: int = 0) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed))


def refusal(name: str, task: Task) -> str:
    with pytest.raises(ModelError) as error:
        build(name, MODELS[name], task)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- the paper's CNNs ------------------------------------------------------------------------------------------
# Weights and biases, 32×32×3, S = 10: conv1 16·75 + 16 = 1,216; 28×28, pooled 14×14; conv2 c·400 + c; 10×10, pooled
# 5×5, so 25·c numbers; FC1 25·c·f + f; FC2 f·500 + 500; header 10·500 + 10 = 5,010.
#   cnn-1, c = 32, f = 2000: 1,216 + 12,832 + 1,602,000 + 1,000,500 + 5,010
#   cnn-2, c = 16, f = 2000: 1,216 +  6,416 +   802,000 + 1,000,500 + 5,010
#   cnn-3, c = 32, f = 1000: 1,216 + 12,832 +   801,000 +   500,500 + 5,010
#   cnn-4, c = 32, f =  800: 1,216 + 12,832 +   640,800 +   400,500 + 5,010
#   cnn-5, c = 32, f =  500: 1,216 + 12,832 +   400,500 +   250,500 + 5,010
COUNTS = {"cnn-1": 2_621_558, "cnn-2": 1_815_142, "cnn-3": 1_320_558, "cnn-4": 1_060_358, "cnn-5": 670_058}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_with_10_classes(name: str, count: int) -> None:
    assert num_parameters(name, Task(10, CIFAR)) == count


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_with_100_classes(name: str, count: int) -> None:
    assert num_parameters(name, Task(100, CIFAR)) == count + 90 * 501  # 90 more rows of 500 weights and a bias


def test_grey_images() -> None:
    # 28 → 24 → 12 → 8 → 4: 32·16 = 512 numbers. conv1 16·25 + 16 = 416, conv2 12,832, FC1 512·500 + 500 = 256,500,
    # FC2 250,500, header 5,010
    assert num_parameters("cnn-5", Task(10, (1, 28, 28))) == 416 + 12_832 + 256_500 + 250_500 + 5_010


def test_images_of_odd_sizes() -> None:
    # 33 → 29 → 14 → 10 → 5 and 29 → 25 → 12 → 8 → 4: 32·20 = 640 numbers
    task = Task(10, (3, 33, 29))
    assert num_parameters("cnn-5", task) == 1_216 + 12_832 + (640 * 500 + 500) + 250_500 + 5_010


@pytest.mark.parametrize("shape", [CIFAR, (1, 28, 28), (3, 33, 29), (3, 16, 16), (4, 16, 40)], ids=str)
@pytest.mark.parametrize("name", COUNTS)
def test_a_cnn_runs_on_images_of_this_size(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, MODELS[name], Task(7, shape, width=20))
    representation = net.extractor(images(shape))
    assert representation.shape == (2, 20)
    assert (representation >= 0).all()  # after ReLU
    assert net(images(shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(3, 15, 32), (3, 32, 15), (1, 8, 8)], ids=str)
def test_smaller_images_are_refused_with_a_hint(shape: tuple[int, ...]) -> None:
    # 15 → 11 → 5 → 1 → 0: nothing is left
    message = refusal("cnn-1", Task(10, shape))
    assert f"at least 16×16, got {shape[1]}×{shape[2]}" in message
    assert "mlp-1" in message


def test_vectors_are_refused_with_a_hint() -> None:
    message = refusal("cnn-3", Task(10, (64,)))
    assert "cnn-3 needs images" in message
    assert "mlp-1" in message


@pytest.mark.parametrize("size", [(2, 3, 12, 12), (3, 3, 13, 16), (4, 3, 6, 6)], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling(size: tuple[int, ...], channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        block = ConvReluPool(3, 8).to(memory_format=layout)  # type: ignore[call-overload]
        x = torch.randn(size).contiguous(memory_format=layout).requires_grad_()
    with using("torch"):
        ours, plain = block(x), max_pool2d(torch.relu(block.conv(x)), 2)
    assert (plain == 0).any()  # ReLU has had something to do
    assert (plain > 0).any()
    weights = torch.arange(1.0, ours.numel() + 1).reshape(ours.shape)
    inputs = [x, block.conv.weight, block.conv.bias]
    gradients = [torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, plain)]
    assert torch.equal(ours, plain)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# -- perceptrons -----------------------------------------------------------------------------------------------
# On vectors of 64, d = 500, S = 10:
#   mlp-1: 64·512 + 512 = 33,280; 512·500 + 500 = 256,500; header 5,010
#   mlp-2: 64·256 + 256 = 16,640; 256·500 + 500 = 128,500; header 5,010
#   mlp-3: 16,640; 256·128 + 128 = 32,896; 128·500 + 500 = 64,500; header 5,010
@pytest.mark.parametrize(("name", "count"), [("mlp-1", 294_790), ("mlp-2", 150_150), ("mlp-3", 119_046)])
def test_parameters_of_perceptrons(name: str, count: int) -> None:
    assert num_parameters(name, Task(10, (64,))) == count


@pytest.mark.parametrize("shape", [(64,), (1,), (1, 8, 8), CIFAR], ids=str)
@pytest.mark.parametrize("name", ["mlp-1", "mlp-2", "mlp-3"])
def test_a_perceptron_runs_on_vectors_and_images(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, MODELS[name], Task(5, shape, width=9))
    assert net.extractor(images(shape)).shape == (2, 9)
    assert (net.extractor(images(shape)) >= 0).all()
    assert net(images(shape)).shape == (2, 5)


# -- building --------------------------------------------------------------------------------------------------
TASK = Task(num_classes=3, input_shape=(4,), width=5)


def test_every_model_has_a_description() -> None:
    assert list(MODELS) == ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5", "mlp-1", "mlp-2", "mlp-3"]
    assert list(DESCRIPTIONS) == list(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_every_build_has_weights_of_its_own(name: str) -> None:
    task = Task(3, (3, 16, 16), width=5)
    first, second = (build(name, MODELS[name], task) for _ in range(2))
    assert not share_memory(first.state_dict(), second.state_dict())
    assert not torch.equal(first.header.weight, second.header.weight)


def test_a_plain_module_is_split() -> None:
    net = build(
        "mine:net", lambda task: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, task.num_classes)), TASK
    )
    assert isinstance(net, SplitModel)
    assert net.header.weight.shape == (3, 5)


def test_a_split_model_is_taken_as_it_is() -> None:
    made = SplitModel(nn.Linear(4, 5), nn.Linear(5, 3))
    net = build("mine:net", lambda _: made, TASK)
    x = torch.ones(2, 4)
    assert torch.equal(net(x), made(x))
    assert not net.channels_last  # vectors have no channels


def test_what_is_no_module_is_refused() -> None:
    factory: Any = lambda _: "resnet"  # noqa: E731
    with pytest.raises(ModelError, match=r"mine:net: returned a str; it should return an nn\.Module"):
        build("mine:net", factory, TASK)


def test_a_factory_that_fails_is_named_in_one_line() -> None:
    def broken(task: Task) -> nn.Module:
        raise RuntimeError("no such layer\nand a second line")

    with pytest.raises(ModelError, match=r"mine:net: .*no such layer") as error:
        build("mine:net", broken, TASK)
    assert "\n" not in str(error.value)


def test_a_factory_that_refuses_the_task_is_heard() -> None:
    def choosy(task: Task) -> nn.Module:
        raise ModelError("needs images")

    with pytest.raises(ModelError, match=r"^needs images$"):
        build("mine:net", choosy, TASK)


@pytest.mark.parametrize("header", [nn.Linear(6, 3), nn.Linear(5, 4)], ids=["width", "classes"])
def test_a_header_of_another_shape_is_refused(header: nn.Linear) -> None:
    with pytest.raises(ModelError, match=r"mine:net: its header's .* the federation's are \[\[3, 5\], \[3\]\]"):
        build("mine:net", lambda _: SplitModel(nn.Linear(4, header.in_features), header), TASK)


def test_a_header_without_bias_is_refused_or_gets_one() -> None:
    made = SplitModel(nn.Linear(4, 5), nn.Linear(5, 3, bias=False))
    try:
        net = build("mine:net", lambda _: made, TASK)
    except ModelError:
        return
    assert net.header.bias.shape == (3,)


def test_clients_of_a_factory_that_always_returns_one_model_share_no_memory() -> None:
    made = SplitModel(nn.Linear(4, 5), nn.Linear(5, 3))
    first, second = (build("mine:net", lambda _: made, TASK) for _ in range(2))
    assert not share_memory(first.state_dict(), second.state_dict())


def test_clients_of_a_factory_that_always_returns_one_module_share_no_memory() -> None:
    made = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    first, second = (build("mine:net", lambda _: made, TASK) for _ in range(2))
    assert not share_memory(first.state_dict(), second.state_dict())
