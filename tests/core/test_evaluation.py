"""Samples as a model takes them, and accuracies by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import AnyMethod, Client
from fedssa.core.context import Context
from fedssa.core.evaluation import evaluate
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.split import SplitModel
from fedssa.core.training import EVAL_BATCH, Batch, LocalData, Samples, as_input
from fedssa.methods import Standalone
from fedssa.records import Scores
from tests.conftest import bare_net, make_client

IDENTITY = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


# -- samples as input ------------------------------------------------------------------------------------------
def test_bytes_become_minus_one_to_one() -> None:
    x = as_input(torch.tensor([0, 255, 51, 204], dtype=torch.uint8).reshape(1, 4, 1, 1)).flatten(1)
    assert x.dtype == torch.float32
    # 0 / 127.5 - 1 = -1 and 255 / 127.5 - 1 = 1 exactly; 51 / 127.5 - 1 = 0.4 - 1; 204 / 127.5 - 1 = 1.6 - 1
    assert x[0, :2].tolist() == [-1.0, 1.0]
    assert x[0, 2:].tolist() == pytest.approx([-0.6, 0.6], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_whole_numbers_that_are_no_image_stay_whole(dtype: torch.dtype) -> None:
    x = as_input(torch.tensor([[0, 255, 51, 204]]).to(dtype))
    assert (x.dtype, x.tolist()) == (torch.int64, [[0, 255, 51, 204]])


def test_floats_are_taken_as_they_are() -> None:
    x = torch.tensor([[-3.0, 0.5, 255.0]])
    assert torch.equal(as_input(x), x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_come_as_channels_height_width(channels_last: bool, dtype: torch.dtype) -> None:
    images = torch.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3).to(dtype)  # [n, H, W, C]
    x = as_input(images, channels_last=channels_last)
    assert x.shape == (2, 3, 4, 5)
    assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    value = images[1, 2, 3, 0].item()
    assert x[1, 0, 2, 3].item() == pytest.approx(value / 127.5 - 1 if dtype == torch.uint8 else value, abs=1e-6)


def test_images_are_contiguous_unless_asked_otherwise() -> None:
    """A user's own code may use .view on them."""
    assert as_input(torch.zeros(2, 4, 5, 3)).is_contiguous()


def test_the_samples_themselves_stay_as_they_were() -> None:
    x = torch.tensor([[0, 255]], dtype=torch.uint8)
    as_input(x)
    assert x.tolist() == [[0, 255]]


# -- evaluation ------------------------------------------------------------------------------------------------
def says(*classes: int) -> Tensor:
    """Inputs for which the identity header answers these classes."""
    return torch.eye(3)[list(classes)]


def part(answers: tuple[int, ...], labels: tuple[int, ...]) -> Samples:
    return Samples(says(*answers).reshape(-1, 3), torch.tensor(labels, dtype=torch.int64))


def oracle_client(
    *, val: Samples, test: Samples, net: SplitModel | None = None, method: AnyMethod | None = None
) -> Client:
    return make_client(net=net or bare_net(IDENTITY), data=LocalData(part((0,), (0,)), val, test), method=method)


def test_accuracy_is_right_answers_over_samples() -> None:
    client = oracle_client(
        val=part((0, 1, 2), (0, 0, 0)),  # 1 of 3
        test=part((0, 1, 2, 2), (0, 1, 1, 2)),  # 3 of 4
    )
    assert evaluate(client, Standalone()) == Scores(test={"head": 0.75}, num_test=4, val={"head": 1 / 3}, num_val=3)


def test_no_validation_samples_give_no_validation_accuracy() -> None:
    scores = evaluate(oracle_client(val=part((), ()), test=part((0,), (1,))), Standalone())
    assert (scores.val, scores.num_val) == ({}, 0)
    assert scores.test == {"head": 0.0}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
@settings(max_examples=30)
def test_accuracy_counts_as_a_loop_does(pairs: list[tuple[int, int]]) -> None:
    answers, labels = zip(*pairs, strict=True)
    scores = evaluate(oracle_client(val=part((), ()), test=part(answers, labels)), Standalone())
    assert scores.headline == sum(a == y for a, y in pairs) / len(pairs)


def test_more_samples_than_one_batch_are_all_counted() -> None:
    assert EVAL_BATCH == 256  # part of what "the same bits" means
    labels = (0,) * 200 + (1,) * 100
    scores = evaluate(oracle_client(val=part((), ()), test=part((0,) * 300, labels)), Standalone())
    assert (scores.test, scores.num_test) == ({"head": 200 / 300}, 300)


class TwoKinds(Method[Nothing, Nothing, Nothing]):
    """A headline and its opposite."""

    @override
    def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
        logits = client.net(x)
        return {"head": logits, "opposite": logits[:, [1, 0, 2]]}


def test_every_kind_of_inference_has_its_accuracy_and_the_first_is_the_headline() -> None:
    client = oracle_client(val=part((), ()), test=part((0, 0, 0, 2), (0, 0, 1, 2)))
    scores = evaluate(client, TwoKinds())
    # head says 0 0 0 2: 3 of 4; its opposite says 1 1 1 2: 2 of 4
    assert scores.test == {"head": 0.75, "opposite": 0.5}
    assert scores.headline == 0.75


def test_dropout_is_off() -> None:
    net = bare_net(IDENTITY)
    net.extractor = nn.Dropout(0.9)
    net.train()
    client = oracle_client(net=net, val=part((), ()), test=part((0, 1, 2) * 20, (0, 1, 2) * 20))
    assert evaluate(client, Standalone()).headline == 1.0


def test_batch_norm_uses_its_running_statistics_and_leaves_them_alone() -> None:
    net = bare_net(IDENTITY)
    norm = nn.BatchNorm1d(3)
    net.extractor = norm
    norm.running_mean = torch.tensor([2.0, 0.0, 0.0])  # so that (1, 0, 0) becomes (-1, 0, 0), and class 1 or 2 wins
    client = oracle_client(net=net, val=part((), ()), test=part((0, 0), (0, 0)))
    assert evaluate(client, Standalone()).headline == 0.0
    assert norm.running_mean.tolist() == [2.0, 0.0, 0.0]


class Noisy(nn.Dropout):
    """A module that a method keeps."""


class KeepsNoise(Method[Nothing, Nothing, Nothing]):
    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(Noisy(0.9))

    @override
    def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
        return {"head": client[Noisy](client.net(x))}


def test_modules_that_a_client_keeps_are_in_eval_mode_too() -> None:
    test = part((0, 1, 2) * 20, (0, 1, 2) * 20)
    client = oracle_client(val=part((), ()), test=test, method=KeepsNoise())
    client[Noisy].train()
    assert evaluate(client, client.method).headline == 1.0


def test_a_round_is_evaluated_in_eval_mode_after_it_was_trained_in_train_mode() -> None:
    modes: list[tuple[str, bool]] = []

    class Notes(Method[Nothing, Nothing, Nothing]):
        @override
        def loss(self, client: Client, batch: Batch) -> Tensor:
            modes.append(("loss", client.net.training))
            return super().loss(client, batch)

        @override
        def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
            modes.append(("predict", any(module.training for module in client.net.modules())))
            return super().predict(client, x)

    client = oracle_client(val=part((0,), (0,)), test=part((0,), (0,)), method=Notes())
    for t in range(2):
        client.run_round(None, t)
    assert modes == [("loss", True), ("predict", False), ("predict", False)] * 2


def test_evaluation_keeps_no_graph() -> None:
    seen: list[bool] = []

    class Watching(Method[Nothing, Nothing, Nothing]):
        @override
        def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
            logits = client.net(x)
            seen.append(logits.requires_grad)
            return {"head": logits}

    evaluate(oracle_client(val=part((0,), (0,)), test=part((0,), (0,))), Watching())
    assert seen == [False, False]
