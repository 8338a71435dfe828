"""FedAUX: scores that are drawn once, teachers weighted by them, noise that nobody can subtract, and its start."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedssa
from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, owned
from fedssa.core.method import Upload
from fedssa.core.noise import NoiseFrom
from fedssa.core.optim import SGD
from fedssa.core.public import Public, public_data
from fedssa.core.rounds import Round, Rounds, run_rounds
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import Training
from fedssa.errors import AnswerError, Diverged, SettingsError
from fedssa.methods import FedAUX, FedDF
from fedssa.methods.fedaux import Certainty, Down, Models, Up, within
from fedssa.methods.parts.group_models import GroupWeights
from fedssa.settings.recipe import parse_settings
from tests.conftest import LOCAL, LiveFederation, at, bare_net, local_data, same_bits, tiny_net, upload_of, vectors
from tests.deploy.in_process import sites_of
from tests.tiny import FEW, tiny

TASK = Task(
    3, (4,), width=2, num_rounds=4, prototypes={"one": lambda: tiny_net(seed=1), "two": lambda: tiny_net(seed=2)}
)
PUBLIC = public_data(vectors((0,) * 10, seed=9), "none", 4)
HALVES: dict[str, Any] = {"negatives": 0.0, "lam": 1e12, "pretrain_epochs": 0}  # then every score is ½
PLAIN = SGD(momentum=0.0)
LABELS = [(0, 0, 1), (1, 2), (2, 0, 1, 1), (0,)]


def made(
    method: AnyMethod, k: int = 0, *, public: Public = PUBLIC, noise_from: NoiseFrom = "seed", seed: int = 0
) -> Client:
    data = local_data(LABELS[k], seed=k)
    group = ("one", "two")[k % 2]
    return Client(k, tiny_net(), data, TASK, method, LOCAL, seed, public=public, group=group, noise_from=noise_from)


def side(t: int = 0, *, task: Task = TASK, public: Public = PUBLIC, **training: Any) -> ServerContext:
    return ServerContext(task, 0, public, training=Training(**training)).at(t)


# -- equal to FedDF ----------------------------------------------------------------------------------------------------
def played(method: AnyMethod) -> list[Round]:
    clients = LiveFederation([made(method, k) for k in range(4)])
    return list(run_rounds(method, clients, side(batch_size=3, epochs=2), Rounds(total=4, fraction=0.5)))


def test_with_all_scores_one_half_it_is_feddf_to_the_last_bit() -> None:
    ours, theirs = played(FedAUX(**HALVES)), played(FedDF())
    assert all((scores == 0.5).all() for scores in ours[-1].server.scores.values())
    for one, other in zip(ours, theirs, strict=True):
        assert list(one.server.prototypes) == list(other.server.models)
        for group, own in one.server.prototypes.items():
            assert same_bits(own.w, other.server.models[group].w)
        assert [(c.loss, c.scores) for c in one.record.clients] == [(c.loss, c.scores) for c in other.record.clients]


def test_with_other_scores_it_is_not() -> None:
    ours, theirs = played(FedAUX(**HALVES | {"lam": 0.01})), played(FedDF())
    assert digest(ours[-1].server.prototypes) != digest(theirs[-1].server.models)


# -- scores ------------------------------------------------------------------------------------------------------------
def test_the_public_set_is_split_once_and_disjointly_by_the_seed() -> None:
    negatives, rest = FedAUX().parts_of(at(0, public=PUBLIC))
    assert (len(negatives), len(rest)) == (2, 8)
    assert sorted([*negatives.tolist(), *rest.tolist()]) == list(range(10))
    assert (negatives.tolist(), rest.tolist()) == (sorted(negatives.tolist()), sorted(rest.tolist()))
    assert torch.equal(FedAUX().parts_of(at(3, public=PUBLIC))[0], negatives)
    assert not torch.equal(FedAUX().parts_of(at(0, seed=1, public=PUBLIC))[0], negatives)
    assert len(FedAUX(negatives=0.99).parts_of(at(0, public=PUBLIC))[1]) == 1  # something is left to distil on


def bare_client(method: AnyMethod, own: Tensor, public: Tensor) -> tuple[Client, Public]:
    """Its representation is its input."""
    shown = public_data(Samples(public, torch.zeros(len(public), dtype=torch.int64)), "none", 0)
    samples = Samples(own, torch.zeros(len(own), dtype=torch.int64))
    task = Task(2, (2,), width=2, prototypes={"bare": lambda: bare_net([[0.0] * 2] * 2)})
    data, net = LocalData(samples, samples, samples), bare_net([[0.0] * 2] * 2)
    return Client(0, net, data, task, method, LOCAL, 0, public=shown, group="bare"), shown


def test_scores_by_hand() -> None:
    """One own sample (1, 0) and no negatives: λ·w = sigmoid(−w) has the solution ln 3 for λ = ¼ / ln 3."""
    method = FedAUX(negatives=0.0, lam=0.25 / math.log(3))
    public = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # the largest norm is 2
    client, shown = bare_client(method, torch.tensor([[2.0, 0.0]]), public)
    scores = method.scores_of(client, at(0, client.task, public=shown))
    assert scores.tolist() == pytest.approx([0.75, 0.25, 0.5, 1 / (1 + 3**-0.5)], abs=1e-7)


def test_samples_like_the_clients_own_have_the_higher_scores() -> None:
    left, right = torch.tensor([[-1.0, 0.2]]), torch.tensor([[1.0, 0.1]])
    public = torch.cat([left.expand(10, 2), right.expand(10, 2)])
    client, shown = bare_client(FedAUX(), left.expand(5, 2).contiguous(), public)
    ctx = at(0, client.task, public=shown)
    scores, rest = FedAUX().scores_of(client, ctx), FedAUX().parts_of(ctx)[1]
    assert float(scores[rest < 10].min()) > float(scores[rest >= 10].max())


def test_no_representation_is_longer_than_one_and_private_ones_do_not_set_the_scale() -> None:
    found = within(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), torch.tensor(2.0))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.15, 0.2], [0.0, 0.0]]))
    assert within(torch.zeros(1, 2), torch.tensor(0.0)).tolist() == [[0, 0]]


def test_scores_are_sent_once_and_again_only_if_the_server_has_none() -> None:
    method = FedAUX()
    client, server = made(method), method.server_init(side())
    info = client.hello(evaluate_start=False)
    first = upload_of(client, Up, owned(method.downlink(server, info, side())))
    assert first.scores.shape == (8,)
    server = method.aggregate(server, [Upload(info, first)], side())
    assert torch.equal(server.scores[0], first.scores)
    down = method.downlink(server, info, side(1))
    assert down.has_scores
    assert len(upload_of(client, Up, owned(down), t=1).scores) == 0
    again = upload_of(client, Up, Down(down.model, has_scores=False), t=2)
    assert torch.equal(again.scores, first.scores)  # though its extractor is another by now
    kept = method.aggregate(server, [Upload(info, replace(again, scores=again.scores[:0]))], side(1)).scores
    assert torch.equal(kept[0], first.scores)


def test_scores_are_of_the_received_extractor_before_any_training() -> None:
    method = FedAUX()
    client, other = made(method), tiny_net(seed=7)
    sent = upload_of(client, Up, Down(GroupWeights(module_state(other)), has_scores=False))
    twin = made(method)
    twin.net.load_state_dict(other.state_dict())
    assert torch.equal(sent.scores, method.scores_of(twin, at(0, TASK, public=PUBLIC)).float())


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (torch.full((7,), 0.5), "scores are 7, not 8 or none"),
        (torch.tensor([0.5] * 7 + [0.0]), "scores are not greater than 0 and at most 1"),
        (torch.tensor([0.5] * 7 + [1.01]), "scores are not greater than 0 and at most 1"),
        (torch.tensor([0.5] * 7 + [math.nan]), "scores holds NaN or infinity"),
    ],
)
def test_bad_scores_are_refused_in_one_line(scores: Tensor, reason: str) -> None:
    client = made(FedAUX())
    info, model = client.hello(evaluate_start=False), GroupWeights(module_state(client.net))
    for good in (torch.ones(8), torch.zeros(0)):
        FedAUX().check_upload(Up(model, good), info, side())
    with pytest.raises(AnswerError, match=f"^{reason}$"):
        FedAUX().check_upload(Up(model, scores), info, side())


# -- teachers ----------------------------------------------------------------------------------------------------------
def test_teachers_count_by_their_scores_of_each_sample() -> None:
    """Logits (2, 0) and (0, 0): of the one sample with scores ¾ and ¼ the teacher says (1.5, 0)."""
    task = Task(2, (2,), width=2, prototypes={"bare": lambda: bare_net([[0.0] * 2] * 2)})
    public = public_data(vectors((0,), size=2), "none", 0)
    ctx = side(task=task, public=public, lr=1.0, optimiser=PLAIN)
    uploads = [
        Upload(
            ClientInfo(k, (0,), 10, group="bare"),
            Up(GroupWeights(module_state(bare_net([[0.0] * 2] * 2, bias))), torch.tensor([score])),
        )
        for k, (bias, score) in enumerate([([2.0, 0.0], 0.75), ([0.0, 0.0], 0.25)])
    ]
    method = FedAUX()
    after = method.aggregate(method.server_init(ctx), uploads, ctx).prototypes["bare"].w["header.bias"]
    start, teacher = torch.tensor([1.0, 0.0]), torch.tensor([1.5, 0.0])
    torch.testing.assert_close(after, start + teacher.softmax(dim=0) - start.softmax(dim=0))


def first_uploads(method: FedAUX) -> list[Upload[Up]]:
    found = []
    for k in (0, 1):
        client = made(method, k)
        info = client.hello(evaluate_start=False)
        down = owned(method.downlink(method.server_init(side()), info, side()))
        found.append(Upload(info, upload_of(client, Up, down)))
    return found


def test_nobody_distils_on_negatives_or_from_a_client_without_scores() -> None:
    method = FedAUX(negatives=0.5)
    uploads, start = first_uploads(method), method.server_init(side())
    averaged = method.aggregate(start, uploads, side(epochs=0)).prototypes
    assert digest(method.aggregate(start, uploads, side()).prototypes) != digest(averaged)
    negatives = method.parts_of(side())[0]
    alone = next(t for t in range(1000) if set(PUBLIC.indices(0, t).tolist()) <= set(negatives.tolist()))
    late = replace(side(), task=replace(TASK, num_rounds=1000)).at(alone)
    assert digest(method.aggregate(start, uploads, late).prototypes) == digest(averaged)
    silent = [Upload(info, replace(up, scores=up.scores[:0])) for info, up in uploads]
    assert digest(method.aggregate(start, silent, side()).prototypes) == digest(averaged)
    one = [uploads[0], silent[1]]
    assert list(method.aggregate(start, one, side()).scores) == [0]


# -- noise -------------------------------------------------------------------------------------------------------------
def test_sigma_by_hand() -> None:
    """√(2·ln(1.25 / 10⁻⁵)) = 4.84481; an own sample of 100 moves w by 2/(100·0.01) = 2 at most, ε = ½."""
    assert FedAUX(dp_eps=0.5).sigma(100) == pytest.approx(4.84481 * 2 / 0.5, rel=1e-5)


def logits_of_scores(method: FedAUX, k: int = 0, **options: Any) -> Tensor:
    """What the sigmoid was taken of: ⟨w, h(x)⟩."""
    client = made(method, k, **options)
    return torch.logit(method.scores_of(client, client._ctx.at(0)) - 1e-8)


def test_noise_is_added_to_the_weights_with_that_sigma() -> None:
    method = FedAUX(dp_eps=0.9, lam=10.0)
    plain, noisy = logits_of_scores(FedAUX(lam=10.0)), logits_of_scores(method)
    client = made(method)
    noise = client._ctx.at(0).noise(client.id).gaussian(2) * method.sigma(3 + 2)  # three own samples, two negatives
    with torch.no_grad():
        h = client.net.eval().extractor(PUBLIC.samples.x).double()
    rest = within(h, h.norm(dim=1).max())[method.parts_of(side())[1]]
    torch.testing.assert_close(noisy - plain, rest @ noise, rtol=1e-5, atol=1e-6)


def test_a_simulation_draws_the_same_noise_again_and_each_client_its_own() -> None:
    method = FedAUX(dp_eps=0.9, lam=10.0)
    first = logits_of_scores(method)
    assert torch.equal(logits_of_scores(method), first)
    plain = {k: logits_of_scores(FedAUX(lam=10.0), k) for k in (0, 2)}
    assert not torch.allclose(logits_of_scores(method, 2) - plain[2], first - plain[0])


def test_at_a_site_the_noise_is_the_operating_systems_and_is_drawn_once() -> None:
    method = FedAUX(dp_eps=0.9, lam=10.0)
    seeded = logits_of_scores(method)
    first, second = (logits_of_scores(method, noise_from="system") for _ in range(2))
    assert len({tuple(found.tolist()) for found in (seeded, first, second)}) == 3
    client, down = made(method, noise_from="system"), Down(GroupWeights(module_state(tiny_net())), has_scores=False)
    asked = [upload_of(client, Up, down, t=t).scores for t in range(3)]
    assert torch.equal(asked[0], asked[1])
    assert torch.equal(asked[0], asked[2])  # a server that asks again cannot average the noise away
    rebuilt = made(method, noise_from="system")
    rebuilt.load_state({name: tensor.clone() for name, tensor in client.state().items()})
    assert torch.equal(rebuilt[Certainty].scores, asked[0])
    assert torch.equal(upload_of(rebuilt, Up, down, t=3).scores, asked[0])


def test_without_noise_a_site_repeats_bit_by_bit() -> None:
    assert torch.equal(logits_of_scores(FedAUX(), noise_from="system"), logits_of_scores(FedAUX()))


def test_a_private_run_repeats_in_simulation_and_not_across_sites(tmp_path: Path) -> None:
    table = tiny(
        data=FEW,
        method={"name": "fedaux", "dp_eps": 0.5, "pretrain_epochs": 0},
        public={"name": "slice", "share": 0.1, "per_round": 20},
        partition={"clients": 2},
        rounds={"total": 1, "fraction": 1.0},
    )
    one, again = (fedssa.run(table, out=tmp_path / name).records[1] for name in ("one", "again"))
    assert one == again
    sites = sites_of(table, tmp_path)
    deployed = list(sites.run(sites.grid()))[1]
    assert sites.faults() == []
    for client, other in zip(one.clients, deployed.clients, strict=True):
        assert (client.loss, client.scores) == (other.loss, other.scores)  # it is trained alike, in the first round
        assert client.upload_digest != other.upload_digest


def test_what_noise_covers_is_said_before_a_run() -> None:
    (plain,) = FedAUX(pretrain_epochs=0).advice(side())
    assert "with no noise (method.dp_eps = 0)" in plain
    assert "its whole model is uploaded in every round without any" in plain
    noisy, idle = FedAUX(dp_eps=0.1).advice(side())
    assert "with noise (dp_eps = 0.1)" in noisy
    assert idle.endswith("these data have none: method.pretrain_epochs is idle")


# -- the start ---------------------------------------------------------------------------------------------------------
def small_cnn() -> SplitModel:
    extractor = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 3))
    return SplitModel(extractor, nn.Linear(3, 2), channels_last=False)


IMAGES = Task(2, (1, 6, 6), width=3, prototypes={"a": small_cnn, "b": small_cnn, "c": lambda: _flat()})
PICTURES = public_data(
    Samples(torch.randint(256, (6, 6, 6, 1), dtype=torch.uint8, generator=torch.Generator()), torch.zeros(6).long()),
    "none",
    0,
)


def _flat() -> SplitModel:
    """Its extractor has nothing to train."""
    return SplitModel(nn.Flatten(), nn.Linear(36, 2), channels_last=False)


def test_extractors_are_pretrained_on_public_images_and_headers_are_not() -> None:
    ctx = side(-1, task=IMAGES, public=PICTURES, batch_size=4, lr=0.1)
    start, trained, again = (FedAUX(pretrain_epochs=epochs).server_init(ctx).prototypes for epochs in (0, 2, 2))
    assert digest(trained) == digest(again)
    for group in ("a", "b"):
        moved = {name for name, tensor in trained[group].w.items() if not torch.equal(tensor, start[group].w[name])}
        assert moved == {name for name in start[group].w if name.startswith("extractor.")}
    assert same_bits(trained["c"].w, start["c"].w)
    assert not same_bits(trained["a"].w, trained["b"].w)
    assert digest(FedAUX(pretrain_epochs=1).server_init(ctx).prototypes) != digest(trained)
    assert digest(FedAUX(pretrain_epochs=2, tau=0.1).server_init(ctx).prototypes) != digest(trained)


def test_a_rehearsal_does_not_pretrain_and_vectors_are_left_alone() -> None:
    ctx = replace(side(-1, task=IMAGES, public=PICTURES), is_rehearsal=True)
    assert digest(FedAUX().server_init(ctx)) == digest(FedAUX(pretrain_epochs=0).server_init(ctx))
    assert digest(FedAUX().server_init(side(-1))) == digest(FedAUX(pretrain_epochs=0).server_init(side(-1)))


def test_a_pretraining_that_diverges_says_when() -> None:
    with pytest.raises(Diverged, match=r"^the server diverged before the first round: .* try a smaller server\.lr$"):
        FedAUX(pretrain_epochs=20).server_init(side(-1, task=IMAGES, public=PICTURES, lr=1e30))


def test_a_run_counts_scores_once_and_the_pretraining_before_the_first_round(tmp_path: Path) -> None:
    table = tiny(
        method={"name": "fedaux", "pretrain_epochs": 1},
        public={"name": "slice", "share": 0.1, "per_round": 40},
        partition={"clients": 2},
        rounds={"total": 2, "fraction": 1.0},
    )
    start, first, second = fedssa.run(table, out=tmp_path / "run").records
    num = round(0.8 * len(_public(table)))
    for once, later in zip(first.clients, second.clients, strict=True):
        assert once.params_up - once.params_down == num
        assert later.params_up == later.params_down == once.params_down
    models, num = [256 * 128 + 128 * 16, 256 * 16], len(_public(table))
    through = 2 * num * sum(2 * 1024 * 256 + 3 * own for own in models)  # of two views of each sample
    similarities = 2 * 3 * 16 * ((2 * 128) ** 2 + (2 * (num - 128)) ** 2)  # in two batches, of each model's views
    assert start.server_flops == 2 * (through + similarities)


def _public(table: Any) -> Any:
    from fedssa.simulate.clients import SimulatedClients

    found = SimulatedClients.prepared(parse_settings(table)).public
    assert found is not None
    return found.samples


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"pretrain_epochs": -1}, "method.pretrain_epochs = -1: should be greater than or equal to 0"),
        ({"negatives": 1.0}, "method.negatives = 1.0: should be less than 1"),
        ({"lam": 0.0}, "method.lam = 0.0: should be greater than 0"),
        ({"dp_eps": 1.0}, "method.dp_eps = 1.0: should be less than 1"),
        ({"dp_delta": 0.0}, "method.dp_delta = 0.0: should be greater than 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(option: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "fedaux", **option}, public={"name": "slice"}))


def test_the_servers_state_begins_without_scores() -> None:
    assert isinstance(FedAUX().server_init(side(-1)), Models)
    assert FedAUX().server_init(side(-1)).scores == {}
