"""FedGEMS: whom the server believes, what it learns of each sample, and what it asks for; numbers by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.message import num_bytes, num_params, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.public import Public, public_data
from fedssa.core.samples import Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch, Training, outputs
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import PRESETS, FedGEMS
from fedssa.methods.fedgems import Down, Teacher, Up, entropy
from fedssa.settings.recipe import parse_settings
from tests.conftest import TASK, bare_net, info, make_client, server_at, upload_of, vectors
from tests.tiny import tiny

PUBLIC = public_data(vectors((0, 1, 2, 0, 1), seed=99), "own", 3)
FEDGEM = FedGEMS(**PRESETS["fedgem"][1].settings)


def server_with(public: Public = PUBLIC, t: int = 0, task: Task = TASK, **training: Any) -> ServerContext:
    how = Training(**{"batch_size": 2, "lr": 0.1, **training})
    return replace(server_at(t, task, public=public), training=how)


def made(method: FedGEMS | None = None, k: int = 0) -> Client:
    return make_client(k, method=method or FedGEMS(), public=PUBLIC)


def said(*rows: list[float], answered: list[bool] | None = None) -> Up:
    """The logits of these probabilities, each of one public sample."""
    return Up(torch.tensor(answered or [True] * len(rows)), torch.tensor(rows).reshape(-1, 3).log())


# -- whom the server believes ------------------------------------------------------------------------------------------
SURE, LESS_SURE, WRONG = [0.9, 0.05, 0.05], [0.5, 0.25, 0.25], [0.1, 0.8, 0.1]


def shares(mixed: Tensor, *logits: Tensor) -> Tensor:
    """The weights with which these logits make up the mixture."""
    found: Tensor = torch.linalg.lstsq(torch.stack(logits, dim=1), mixed[:, None]).solution[:, 0]
    return found


def test_certain_clients_count_more() -> None:
    """H = 0.394 and 1.040, so 1/H = 2.536 and 0.962: α = softmax = (0.828, 0.172)."""
    sure, less_sure = said(SURE), said(LESS_SURE)
    mixed, taught = FedGEMS().ensemble([sure, less_sure], torch.tensor([0]))
    assert taught.tolist() == [True]
    alpha = shares(mixed[0], sure.logits[0], less_sure.logits[0])
    torch.testing.assert_close(alpha, torch.tensor([0.828, 0.172]), atol=5e-4, rtol=0)


def test_a_client_that_is_wrong_counts_nothing_at_all() -> None:
    sure = said(SURE)
    mixed, _ = FedGEMS().ensemble([said(WRONG), sure], torch.tensor([0]))
    assert torch.equal(mixed, sure.logits)


def test_where_nobody_is_right_or_has_answered_there_is_no_teacher() -> None:
    first, second = said(WRONG, SURE, answered=[True, False, True]), said(SURE, SURE, answered=[True, False, True])
    mixed, taught = FedGEMS().ensemble([first, second], torch.tensor([2, 0, 0]))
    assert taught.tolist() == [False, False, True]
    assert torch.isfinite(mixed).all()
    torch.testing.assert_close(mixed[2], said(SURE).logits[0])


def test_fedgem_takes_the_mean_of_all_who_answered() -> None:
    sure, wrong = said(SURE), said(WRONG)
    mixed, taught = FEDGEM.ensemble([sure, wrong], torch.tensor([0]))
    torch.testing.assert_close(mixed, (sure.logits + wrong.logits) / 2)
    assert taught.tolist() == [True]


def test_certainty_has_a_bound() -> None:
    assert entropy(torch.tensor([[1000.0, 0.0]])).item() == pytest.approx(1e-6)
    assert entropy(torch.tensor([[0.0, 0.0]])).item() == pytest.approx(math.log(2))
    certain = said(SURE, SURE)
    certain.logits[0] = torch.tensor([1000.0, 0.0, 0.0])
    mixed, _ = FedGEMS().ensemble([certain, said(SURE, SURE)], torch.tensor([0, 0]))
    assert torch.equal(mixed[0], certain.logits[0])  # 1/H = 10⁶ leaves nothing for the other


# -- what it learns of each sample -------------------------------------------------------------------------------------
EYE = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


def naming() -> SplitModel:
    """Logits are the input itself."""
    return bare_net(EYE)


FOUR = Task(num_classes=3, input_shape=(3,), width=3, num_rounds=6, build_server=naming)
# sample 0 is predicted right; 1, 2 and 3 wrongly: 1 is in the pool, 2 is known to a client, 3 to nobody
FOUR_X = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
FOUR_PUBLIC = public_data(Samples(FOUR_X, torch.tensor([0, 1, 0, 2])), "own", 0)


def kl(p: list[float], z: Tensor) -> Tensor:
    teacher = torch.tensor(p)
    return (teacher * (teacher.log() - z.log_softmax(dim=0))).sum()


def test_a_sample_of_each_case() -> None:
    pooled, ensembled = [0.2, 0.7, 0.1], [0.8, 0.1, 0.1]
    known, pool = torch.tensor([False, True, False, False]), torch.zeros(4, 3)
    pool[1] = torch.tensor(pooled).log()
    server = Teacher(module_state(naming()), pool, known)
    up = said(WRONG, WRONG, ensembled, WRONG)  # of labels 0, 1, 0, 2: right on sample 1 and on sample 2
    ctx = server_with(FOUR_PUBLIC, task=FOUR, batch_size=4, lr=1.0, optimiser=SGD(momentum=0.0))
    after = FedGEMS().aggregate(server, [Upload(info(0, 0), up)], ctx)

    net = naming()
    z = net(FOUR_X)
    ce = torch.nn.functional.cross_entropy(z, FOUR_PUBLIC.samples.y, reduction="none")
    losses = [ce[0], 0.75 * ce[1] + 0.25 * kl(pooled, z[1]), 0.75 * ce[2] + 0.25 * kl(ensembled, z[2]), ce[3]]
    (sum(losses) / 4).backward()  # type: ignore[union-attr]
    for name, p in net.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(after.model[name], (p - p.grad).detach())
    assert after.known.tolist() == [True, True, False, False]
    torch.testing.assert_close(after.pool[0], FOUR_X[0])
    assert torch.equal(after.pool[1], pool[1])


def test_the_second_pass_learns_from_what_the_first_put_into_the_pool() -> None:
    """At a rate that overthrows the first answers, samples that were right once have their own logits as teachers."""
    server = Teacher(module_state(naming()), torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool))
    ctx = server_with(FOUR_PUBLIC, task=FOUR, batch_size=4, lr=5.0, epochs=2, optimiser=SGD(momentum=0.0))
    after = FedGEMS().aggregate(server, [Upload(info(0, 0), said(WRONG, WRONG, WRONG, WRONG))], ctx)
    assert int(after.known.sum()) > 1
    assert server.known.sum() == 0


# -- what it asks for --------------------------------------------------------------------------------------------------
def test_only_what_it_gets_wrong_and_does_not_have_is_asked_for() -> None:
    known = torch.tensor([False, True, False, False])
    server = Teacher(module_state(naming()), torch.zeros(4, 3), known)
    ctx = server_with(FOUR_PUBLIC, task=FOUR, epochs=0)
    up = Upload(info(0, 0), said(WRONG, WRONG, WRONG, WRONG))
    after = FedGEMS().aggregate(server, [up], ctx)
    assert after.down is not None
    assert after.down.wanted.tolist() == [False, False, True, True]
    torch.testing.assert_close(after.down.logits, FOUR_X)
    assert FedGEMS().metrics(server, after) == {"public samples in the pool": 1, "public samples asked for": 2}
    whole = FEDGEM.aggregate(server, [up], ctx).down
    assert whole is not None
    assert whole.wanted.tolist() == [True] * 4


def test_pool_and_wishes_go_by_the_public_set_and_not_by_the_round() -> None:
    """X_t changes: what is known of a sample is found again under whatever place it has in a round."""
    everything = public_data(Samples(FOUR_X, torch.tensor([0, 1, 0, 2])), "own", 2)
    server = FedGEMS().server_init(server_with(everything, t=-1, task=FOUR))
    for t in range(6):
        ctx = server_with(everything, t=t, task=FOUR, epochs=1, lr=1e-6)
        up = Up(torch.ones(2, dtype=torch.bool), torch.zeros(2, 3))
        server = FedGEMS().aggregate(server, [Upload(info(0, 0), up)], ctx)
        asked = everything.indices(0, t + 2)
        assert server.down is not None
        assert server.down.wanted.tolist() == [place != 0 for place in asked.tolist()]
        torch.testing.assert_close(server.down.logits, FOUR_X[everything.indices(0, t + 1)], atol=1e-4, rtol=0)
    assert server.known.tolist() == [True, False, False, False]


# -- clients -----------------------------------------------------------------------------------------------------------
def test_the_first_round_is_private_and_answers_everything() -> None:
    client = made()
    up = upload_of(client, Up)
    assert up.answered.tolist() == [True] * 3
    torch.testing.assert_close(up.logits, outputs(client, PUBLIC.at(0, 1)))


def test_a_client_answers_what_it_is_asked_for_with_its_final_model() -> None:
    client = made()
    down = Down(torch.zeros(3, 3), torch.tensor([True, False, True]))
    up = upload_of(client, Up, down, t=1)
    assert torch.equal(up.answered, down.wanted)
    torch.testing.assert_close(up.logits, outputs(client, PUBLIC.at(0, 2))[[0, 2]])
    assert (num_params(up), num_bytes(up)) == (6, 6 * 4 + 3)
    nothing = upload_of(client, Up, Down(torch.zeros(3, 3), torch.zeros(3, dtype=torch.bool)), t=2)
    assert nothing.logits.shape == (0, 3)
    FedGEMS().check_upload(nothing, info(0, 0, 1), server_with())


def test_the_loss_on_public_samples_by_hand() -> None:
    """z = 0: CE = ln 3; KL of p = (0.8, 0.1, 0.1) from a uniform student is ln 3 − H(p)."""
    client = make_client(net=bare_net([[0.0] * 4] * 3), method=FedGEMS(), public=PUBLIC, task=replace(TASK, width=4))
    p = torch.tensor([[0.8, 0.1, 0.1]] * 3)
    client.downlink = Down(p.log(), torch.ones(3, dtype=torch.bool))
    loss = FedGEMS().distil(client, Batch(torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([2, 0])))
    divergence = math.log(3) + 0.8 * math.log(0.8) + 0.2 * math.log(0.1)
    assert loss.item() == pytest.approx(0.75 * math.log(3) + 0.25 * divergence, rel=1e-5)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("up", "reason"),
    [
        (Up(torch.ones(3, dtype=torch.bool), torch.zeros(2, 3)), "logits of 2 samples, and 3 are marked"),
        (Up(torch.ones(4, dtype=torch.bool), torch.zeros(4, 3)), r"answered is bool \[4\], not bool \[P\] = \[3\]"),
        (Up(torch.ones(3, dtype=torch.bool), torch.full((3, 3), torch.inf)), "logits holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(up: Up, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        FedGEMS().check_upload(up, info(0, 0, 1), server_with())


def test_what_it_needs_is_said_in_one_line() -> None:
    with pytest.raises(SettingsError, match=r"^method\.name = 'fedgem': trains a model at the server; name it as"):
        parse_settings(tiny(method={"name": "fedgem"}))
    with pytest.raises(SettingsError, match=r"^method\.name = 'fedgems': needs public data; add to the recipe"):
        parse_settings(tiny(method={"name": "fedgems"}, models={"server": "mlp-1"}))


def test_defaults() -> None:
    assert FedGEMS() == FedGEMS(epsilon=0.75, distill_epochs=1, weights="reliable", wanted="wrong")
    table = tiny(method={"name": "fedgems"}, models={"server": "mlp-1"}, public={"per_round": 20})
    assert (parse_settings(table).server.epochs, parse_settings(table).server.batch_size) == (1, 256)


def test_uploads_are_left_alone() -> None:
    up = upload_of(made(), Up)
    before = owned(up)
    FedGEMS().aggregate(FedGEMS().server_init(server_with(t=-1)), [Upload(info(0, 0), up)], server_with())
    assert torch.equal(up.logits, before.logits)
    assert torch.equal(up.answered, before.answered)
