"""Fed-ET: the consensus by hand, the large model at the server, and its header on the way in and out."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.public import public_data
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import Training
from fedssa.errors import SettingsError
from fedssa.methods import FedET
from fedssa.methods.fed_et import Models, consensus
from fedssa.methods.parts.group_models import GroupWeights
from fedssa.settings.recipe import parse_settings
from tests.conftest import bare_net, same_bits, tiny_net, vectors
from tests.tiny import tiny

TASK = Task(
    3,
    (4,),
    width=2,
    num_rounds=2,
    build_server=lambda: tiny_net(seed=50),
    prototypes={"one": lambda: tiny_net(seed=51), "two": lambda: tiny_net(seed=52)},
)
ZEROS = [[0.0] * 2] * 3
BARE = Task(3, (2,), width=2, build_server=lambda: bare_net(ZEROS), prototypes={"bare": lambda: bare_net(ZEROS)})


def said(*rows: list[float]) -> Tensor:
    """What each client says of one sample: [K, 1, S]."""
    return torch.tensor(rows)[:, None, :]


# -- the consensus -----------------------------------------------------------------------------------------------------
def test_the_sure_client_wins_where_a_plain_mean_would_not() -> None:
    """Variances are as 4 : 1.44 : 1, so class 0 has 8 and class 1 has 2.728 of 6.44; plain sums are 2 and 2.2."""
    logits = said([2.0, 0.0, 0.0], [0.0, 1.2, 0.0], [0.0, 1.0, 0.0])
    labels, diverse, differ = consensus(logits)
    assert logits.mean(dim=0).argmax().item() == 1
    assert labels.tolist() == [0]
    assert differ.tolist() == [True]
    expected = (1.44 * 1.2 + 1.0 * 1.0) / 2.44  # of the two that differ
    torch.testing.assert_close(diverse, torch.tensor([[0.0, expected, 0.0]]))


def test_where_all_agree_nobody_differs() -> None:
    labels, diverse, differ = consensus(said([0.0, 5.0, 1.0], [0.0, 2.0, 0.0]))
    assert (labels.tolist(), differ.tolist()) == ([1], [False])
    assert diverse.tolist() == [[0, 0, 0]]


def test_clients_that_say_nothing_count_alike() -> None:
    flat = said([1.0, 1.0, 1.0], [3.0, 3.0, 3.0])
    assert consensus(flat).labels.tolist() == [0]
    mixed = consensus(said([1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [0.0, 1.0, 0.0]))  # the third alone is sure
    assert mixed.labels.tolist() == [1]
    torch.testing.assert_close(mixed.diverse, torch.full((1, 3), 2.0))  # the mean of two whose weights are 0


# -- the server --------------------------------------------------------------------------------------------------------
def side(task: Task, *, epochs: int = 1, t: int = 0) -> ServerContext:
    public = public_data(vectors((0,) * 3, size=task.input_shape[0]), "none", 1 if task is BARE else 0)
    how = Training(epochs=epochs, batch_size=8, lr=1.0, optimiser=SGD(momentum=0.0))
    return ServerContext(task, 0, public, training=how).at(t)


def up(client: int, bias: list[float], *, num_train: int = 10) -> Upload[GroupWeights]:
    return Upload(ClientInfo(client, (0,), num_train, group="bare"), GroupWeights(module_state(bare_net(ZEROS, bias))))


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_a_step_of_the_large_model_by_hand(lam: float) -> None:
    """Biases are logits; the large model begins with the mean header, and moves by the gradient of both terms."""
    uploads = [up(0, [2.0, 0.0, 0.0], num_train=20), up(1, [0.0, 1.2, 0.0])]
    method = FedET(lam=lam)
    after = method.aggregate(method.server_init(side(BARE)), uploads, side(BARE)).large["header.bias"]
    start = torch.tensor([4 / 3, 0.4, 0.0])
    p, teacher = start.softmax(dim=0), torch.tensor([0.0, 1.2, 0.0]).softmax(dim=0)
    expected = start - (p - torch.tensor([1.0, 0.0, 0.0])) - lam * (p - teacher)
    torch.testing.assert_close(after, expected)


def test_where_all_agree_the_loss_is_cross_entropy() -> None:
    uploads = [up(0, [2.0, 0.0, 0.0]), up(1, [1.0, 0.5, 0.0])]
    one, other = (
        FedET(lam=lam).aggregate(FedET().server_init(side(BARE)), uploads, side(BARE)).large for lam in (0.0, 7.0)
    )
    assert same_bits(one, other)
    alone = [
        FedET(lam=lam).aggregate(FedET().server_init(side(BARE)), uploads[:1], side(BARE)).large for lam in (0.0, 7.0)
    ]
    assert same_bits(*alone)  # K = 1: nobody differs from itself


def sent(client: int, group: str, seed: int, *, num_train: int) -> Upload[GroupWeights]:
    return Upload(ClientInfo(client, (0,), num_train, group=group), GroupWeights(module_state(tiny_net(seed=seed))))


def test_headers_are_averaged_over_all_architectures_and_handed_to_all() -> None:
    start = FedET().server_init(side(TASK))
    uploads = [sent(0, "one", 1, num_train=30), sent(1, "one", 2, num_train=10)]
    after = FedET().aggregate(start, uploads, side(TASK, epochs=0))
    mean = 0.75 * uploads[0].payload.w["header.weight"] + 0.25 * uploads[1].payload.w["header.weight"]
    for model in (after.large, after.prototypes["one"].w, after.prototypes["two"].w):
        torch.testing.assert_close(model["header.weight"], mean)
    idle, extractor = after.prototypes["two"].w, "extractor.0.weight"
    assert torch.equal(idle[extractor], start.prototypes["two"].w[extractor])  # nobody of its group was there
    assert torch.equal(after.large[extractor], start.large[extractor])
    assert not torch.equal(after.prototypes["one"].w[extractor], start.prototypes["one"].w[extractor])


def test_what_is_handed_out_is_the_trained_header_and_the_large_model_goes_on_from_round_to_round() -> None:
    uploads = [sent(0, "one", 1, num_train=1), sent(1, "two", 2, num_train=1)]
    first = FedET().aggregate(FedET().server_init(side(TASK)), uploads, side(TASK))
    for own in first.prototypes.values():
        assert torch.equal(own.w["header.weight"], first.large["header.weight"])
    second = FedET().aggregate(first, uploads, side(TASK, t=1))
    fresh = Models(first.prototypes, module_state(TASK.server_start(0)))
    other = FedET().aggregate(fresh, uploads, side(TASK, t=1))
    assert not same_bits(second.large, other.large)


# -- in a run ----------------------------------------------------------------------------------------------------------
PUBLIC = {"name": "slice", "share": 0.1, "per_round": 40}


def test_a_run_counts_whole_models_each_way_and_the_large_model_alone_at_the_server(tmp_path: Path) -> None:
    table = tiny(
        method={"name": "fed-et"}, public=PUBLIC, rounds={"total": 1}, server={"epochs": 2}, models={"server": "mlp-3"}
    )
    record = fedssa.run(table, out=tmp_path / "run").records[1]
    sizes = [1024 * 256 + 256 + 256 * 128 + 128 + 128 * 16 + 16 + 170, 1024 * 256 + 256 + 256 * 16 + 16 + 170]
    for client in record.clients:
        assert client.params_up == client.params_down == sizes[client.id % 2]
    assert record.server_flops == 2 * 40 * 2 * (2 * 1024 * 256 + 3 * (256 * 128 + 128 * 16 + 160))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"public": PUBLIC}, "method.name = 'fed-et': trains a model at the server; name it as models.server"),
        ({"models": {"server": "mlp-3"}}, "method.name = 'fed-et': needs public data; add to the recipe: "),
    ],
)
def test_what_it_needs_is_asked_for_before_a_run(change: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "fed-et"}, **change))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"method.lam = -1.0: should be greater than or equal to 0"):
        parse_settings(tiny(method={"name": "fed-et", "lam": -1.0}, public=PUBLIC, models={"server": "mlp-3"}))
