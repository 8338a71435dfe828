"""FedKEMF with numbers worked out by hand, and beside FML, whose client and server it has in two limits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.public import Public, public_data
from fedssa.core.samples import Samples
from fedssa.core.task import Task
from fedssa.core.training import Batch, Training
from fedssa.errors import SettingsError
from fedssa.methods import FML, FedKEMF
from fedssa.methods.parts.model import SharedModel, Weights, weights_of
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import LOCAL, TASK, bare_net, info, make_client, server_at, upload_of, vectors
from tests.methods.contract import tiny_of
from tests.simulate.test_public import DATA, OTHERS
from tests.tiny import tiny

PUBLIC = public_data(vectors((0, 1, 2, 0, 1), seed=99), "own", 3)
SLICE = {"name": "slice", "share": 0.1, "per_round": 50}
LN3 = math.log(3.0)


def server_with(public: Public = PUBLIC, t: int = 0, task: Task = TASK, **training: Any) -> ServerContext:
    how = Training(**{"batch_size": 2, "lr": 0.1, **training})
    return replace(server_at(t, task, public=public), training=how)


def made(method: FedKEMF | FML, k: int = 0) -> Client:
    return make_client(k, method=method, public=PUBLIC)


def uploads_of(method: FedKEMF | FML, num: int = 3) -> list[Upload[Weights]]:
    start = owned(method.server_init(server_with(t=-1)))
    clients = [made(method, k) for k in range(num)]
    return [Upload(client.info(), upload_of(client, Weights, owned(start))) for client in clients]


def batch_of(client: Client) -> Batch:
    samples = client.data.train
    return Batch(samples.x, samples.y, torch.arange(len(samples)))


# -- clients -----------------------------------------------------------------------------------------------------------
def test_the_loss_is_twice_fmls_with_equal_weights() -> None:
    twice, once = (
        method.loss(made(method), batch_of(made(method))) for method in (FedKEMF(), FML(alpha=0.5, beta=0.5))
    )
    torch.testing.assert_close(twice, 2 * once)


def test_each_model_gets_a_gradient_from_its_own_loss_only() -> None:
    """Logits (ln 3, 0) and (0, 0) of label 0: (p − y) + (p − q) and (q − y) + (q − p), p = (¾, ¼), q = (½, ½)."""
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    task = Task(num_classes=2, input_shape=(2,), width=2, build_shared=lambda: bare_net(zeros))
    client = make_client(net=bare_net(zeros, [LN3, 0.0]), task=task, method=FedKEMF(), train=(0,))
    loss = FedKEMF().loss(client, Batch(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0])))
    loss.backward()  # type: ignore[no-untyped-call]
    own, shared = client.net.header.bias.grad, client[SharedModel].model.header.bias.grad
    assert own is not None
    assert shared is not None
    torch.testing.assert_close(own, torch.tensor([0.0, 0.0]))
    torch.testing.assert_close(shared, torch.tensor([-0.75, 0.75]))


def test_the_shared_models_accuracy_is_told_only_if_asked_for() -> None:
    kinds = [set(made(method).run_round(None, 0).scores.test) for method in (FedKEMF(), FedKEMF(evaluate_shared=True))]
    assert kinds == [{"head"}, {"head", "shared"}]
    client = made(FedKEMF(evaluate_shared=True))
    x = client.data.test.x
    assert torch.equal(FedKEMF(evaluate_shared=True).predict(client, x)["shared"], client[SharedModel].model(x))


# -- the server --------------------------------------------------------------------------------------------------------
def test_without_epochs_the_server_has_fmls_bits() -> None:
    method = FedKEMF()
    uploads = uploads_of(method)
    server = method.server_init(server_with(t=-1))
    fused = method.aggregate(server, uploads, server_with(epochs=0))
    averaged = FML().aggregate(server, uploads, server_with())
    assert digest(owned(fused)) == digest(owned(averaged))
    assert digest(owned(method.aggregate(server, uploads, server_with()))) != digest(owned(averaged))


def test_without_epochs_the_previous_model_stays_if_it_is_the_start() -> None:
    method = FedKEMF(start="previous")
    server = owned(method.server_init(server_with(t=-1)))
    assert digest(owned(method.aggregate(server, uploads_of(method), server_with(epochs=0)))) == digest(server)


def test_one_participant_teaches_itself_nothing() -> None:
    """p̄ is what the mean, which is its model, says: soft CE has its minimum there."""
    method = FedKEMF()
    (upload,) = uploads_of(method, 1)
    fused = method.aggregate(method.server_init(server_with(t=-1)), [upload], server_with(epochs=3))
    for name, tensor in fused.w.items():
        torch.testing.assert_close(tensor, upload.payload.w[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("ensemble", "expected"),
    [  # softmaxes (¾, ¼) and (½, ½); largest logits (ln 3, 0), so (¾, ¼)
        ("mean", [[0.625, 0.375]]),
        ("max", [[0.75, 0.25]]),
    ],
)
def test_what_the_ensemble_teaches(ensemble: Any, expected: list[list[float]]) -> None:
    taught = FedKEMF(ensemble=ensemble).taught([torch.tensor([[LN3, 0.0]]), torch.tensor([[0.0, 0.0]])])
    torch.testing.assert_close(taught, torch.tensor(expected))


def biases(*values: list[float]) -> list[Upload[Weights]]:
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    return [Upload(info(k, 0), weights_of(bare_net(zeros, bias))) for k, bias in enumerate(values)]


@pytest.mark.parametrize(
    ("label_weight", "expected"),
    [  # the mean bias (ln 3 / 2, 0) says r; the step is −(r − target); targets: p̄ = (0.625, 0.375), label (0, 1)
        (0.0, 0.625),
        (0.5, 0.3125),
        (1.0, 0.0),
    ],
)
def test_one_step_of_the_server_by_hand(label_weight: float, expected: float) -> None:
    task = Task(num_classes=2, input_shape=(2,), width=2, build_shared=lambda: bare_net([[0.0, 0.0]] * 2))
    public = public_data(Samples(torch.zeros(2, 2), torch.tensor([1, 1])), "own", 0)
    ctx = server_with(public, task=task, lr=1.0, optimiser=SGD(momentum=0.0))
    method = FedKEMF(label_weight=label_weight)
    fused = method.aggregate(method.server_init(ctx), biases([LN3, 0.0], [0.0, 0.0]), ctx)
    r = math.sqrt(3) / (math.sqrt(3) + 1)
    step = r - expected
    torch.testing.assert_close(fused.w["header.bias"], torch.tensor([LN3 / 2 - step, step]))


def test_it_distils_on_this_rounds_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    method, asked = FedKEMF(), list[int]()

    def at(self: Public, seed: int, t: int) -> Samples:
        asked.append(t)
        return self.samples.take(self.indices(seed, t))

    uploads = uploads_of(method, 2)
    monkeypatch.setattr(Public, "at", at)
    method.aggregate(method.server_init(server_with(t=-1)), uploads, server_with(t=2))
    assert asked == [2]


def test_uploads_and_the_old_model_stay_as_they_were() -> None:
    method, ctx = FedKEMF(start="previous"), server_with()
    server, uploads = owned(method.server_init(server_with(t=-1))), uploads_of(method)
    before = digest(server), [digest(upload.payload) for upload in uploads]
    method.aggregate(server, uploads, ctx)
    assert (digest(server), [digest(upload.payload) for upload in uploads]) == before


# -- in a run ----------------------------------------------------------------------------------------------------------
def test_labels_are_asked_for_only_where_they_are_used() -> None:
    assert not FedKEMF().uses_public_labels
    assert FedKEMF(label_weight=0.5).uses_public_labels


def test_foreign_labels_are_refused_if_the_servers_loss_has_labels() -> None:
    other_names = OTHERS | {"num_classes": 7}
    clients = [
        SimulatedClients.prepared(
            parse_settings(tiny(method={"name": "fedkemf", "label_weight": weight}, data=DATA, public=other_names))
        )
        for weight in (0.0, 0.5)
    ]
    assert clients[0].public is not None
    with pytest.raises(SettingsError, match=r"^method\.name = 'fedkemf': needs public data with the task's own labels"):
        _ = clients[1].public


def test_without_server_epochs_all_rounds_are_fmls_but_for_the_scale_of_the_loss() -> None:
    """At half the rate, FedKEMF's steps are those of FML with α = β = ½."""
    no_epochs = Training(epochs=0)
    ours, theirs = (tiny_of(method, local=replace(LOCAL, lr=lr)) for method, lr in ((FedKEMF(), 0.05), (FML(), 0.1)))
    played = [list(replace(tiny, ctx=replace(tiny.ctx, training=no_epochs)).play()) for tiny in (ours, theirs)]
    for mine, fml in zip(*played, strict=True):
        for name, tensor in mine.server.w.items():
            torch.testing.assert_close(tensor, fml.server.w[name])
        assert [c.params_up for c in mine.record.clients] == [c.params_up for c in fml.record.clients]
    losses = [[client.loss or 0.0 for client in rounds[-1].record.clients] for rounds in played]
    assert losses[0] == pytest.approx([2 * loss for loss in losses[1]], rel=1e-4)


def test_defaults() -> None:
    assert FedKEMF() == FedKEMF(ensemble="mean", start="mean", label_weight=0.0, evaluate_shared=False)
    assert parse_settings(tiny(method={"name": "fedkemf"}, public=SLICE)).server.epochs == 5
