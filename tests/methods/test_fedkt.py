"""FedKT: votes on public samples, counted by hand; teachers, students, noise, and what is dropped."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.message import num_bytes, num_params
from fedssa.core.method import Upload
from fedssa.core.noise import Noise, NoiseFrom
from fedssa.core.public import public_data
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import Batch, Phase, train
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import FedKT
from fedssa.methods.fedkt import Labels, Result, Votes
from fedssa.methods.parts.model import SharedModel
from fedssa.settings.recipe import parse_settings
from tests.conftest import LOCAL, TASK, at, info, make_client, server_at, shown, upload_of, vectors
from tests.tiny import tiny

PUBLIC = public_data(vectors([0] * 4, seed=9), "none", 0)
QUICK = FedKT(teacher_epochs=1, student_epochs=1, public_epochs=1, private_epochs=1)


def made(method: FedKT = QUICK, *, train: tuple[int, ...] = (0, 0, 1, 1, 2, 2), client_id: int = 0) -> Client:
    return make_client(client_id, train=train, method=method, public=PUBLIC)


def said(client: int, *students: list[int]) -> Upload[Votes]:
    return Upload(info(client, 0, 1), Votes(torch.tensor(students, dtype=torch.uint8)))


def ctx(t: int = 0) -> ServerContext:
    return server_at(t, public=PUBLIC)


# -- the vote ------------------------------------------------------------------------------------------------------
def test_the_consistent_vote_by_hand() -> None:
    """(c, c) counts 2, (c, d) counts 0; three clients on four samples.

    Sample 0: 2 votes for 1, 2 for 0, 0: a tie, the lowest wins. 1: only client 2 agrees with itself. 2: nobody does.
    3: client 0 says 2, the others 1.
    """
    uploads = [
        said(0, [1, 0, 0, 2], [1, 1, 1, 2]),
        said(1, [0, 0, 1, 1], [0, 1, 2, 1]),
        said(2, [0, 2, 1, 1], [2, 2, 0, 1]),
    ]
    after = FedKT().aggregate(Result(), uploads, ctx())
    assert shown(after) == {"labels": [0, 2, 3, 1]}
    assert after.unlabelled == 1
    assert FedKT().metrics(Result(), after) == {"unlabelled": 1}
    assert after.labels is not None
    assert after.labels.dtype == torch.uint8


def test_one_consistent_client_outvotes_two_that_waver() -> None:
    uploads = [said(0, [2], [2]), said(1, [0], [1]), said(2, [0], [1])]
    assert shown(FedKT().aggregate(Result(), uploads, ctx())) == {"labels": [2]}
    plain = [said(k, *(([vote],))) for k, vote in enumerate((2, 0, 0))]  # s = 1: nobody can waver
    assert shown(FedKT(partitions=1).aggregate(Result(), plain, ctx())) == {"labels": [0]}


def test_a_round_without_votes_leaves_the_labels() -> None:
    before = Result(torch.tensor([1, 3], dtype=torch.uint8), 1)
    assert FedKT().aggregate(before, [Upload(info(0, 0), Votes())], ctx(1)) is before


# -- noise -----------------------------------------------------------------------------------------------------------
def test_noise_of_scale_one_over_gamma_moves_a_majority_by_hand() -> None:
    """Uniform numbers ⅞ and ⅛ are Laplace ± ln 4 = 1.386; counts (3, 1) become (1.61, 2.39) at γ = 1, stay at γ = 2."""
    eighth = 2**49
    counts = torch.tensor([[3, 1]])
    for gamma, expected in ((1.0, 1), (2.0, 0)):
        noise = Noise(lambda num: torch.tensor([eighth, 7 * eighth])[:num])
        assert FedKT(gamma=gamma).majority(counts, noise).tolist() == [expected]


def test_the_servers_noise_labels_every_sample_and_is_drawn_again_only_in_a_simulation() -> None:
    uploads, method = [said(0, [1] * 4, [2] * 4)], FedKT(gamma=0.1)  # nobody agrees on anything
    simulated = [method.aggregate(Result(), uploads, ctx()) for _ in range(2)]
    assert shown(simulated[0]) == shown(simulated[1])
    assert all(label < 3 for label in shown(simulated[0])["labels"])
    assert simulated[0].unlabelled == 0
    at_sites = replace(ctx(), noise_from="system")
    drawn = {tuple(shown(method.aggregate(Result(), uploads, at_sites))["labels"]) for _ in range(40)}
    assert len(drawn) > 1  # all alike: once in 81^39


def test_a_clients_noise_is_added_to_the_counts_of_its_teachers_alone() -> None:
    plain, server, clients = (
        upload_of(made(method), Votes)
        for method in (
            replace(QUICK, noise="clients"),
            replace(QUICK, gamma=1e-6),
            replace(QUICK, gamma=1e-6, noise="clients"),
        )
    )
    assert shown(plain) == shown(server)
    assert shown(plain) != shown(clients)


def test_a_clients_noise_is_drawn_again_only_in_a_simulation() -> None:
    """It overwhelms all votes, so that students learn labels that are drawn by lot."""
    method = replace(QUICK, gamma=1e-6, noise="clients", student_epochs=20)

    def votes(noise_from: NoiseFrom) -> str:
        client = make_client(train=(0, 0, 1, 1, 2, 2), method=method, public=PUBLIC, noise_from=noise_from)
        return str(shown(upload_of(client, Votes)))

    assert votes("seed") == votes("seed")
    assert len({votes("system") for _ in range(8)}) > 1


def test_advice_says_what_the_noise_is_worth() -> None:
    """2·s·γ·P = 2 · 2 · 0.05 · 4."""
    assert FedKT().advice(ctx()) == []
    (line,) = FedKT(gamma=0.05).advice(ctx())
    assert "ε = 0.8 differentially private for a client" in line
    (line,) = FedKT(gamma=0.05, noise="clients").advice(ctx())
    assert "for a sample" in line


# -- teachers and students -----------------------------------------------------------------------------------------
def test_data_are_dealt_anew_into_disjoint_parts_and_a_client_of_few_samples_has_few_teachers() -> None:
    client, method = made(train=(0,) * 12), FedKT()
    first, second = (method.parts(client, j, at(0)) for j in range(2))
    assert [len(part) for part in first] == [3, 3, 2, 2, 2]
    for parts in (first, second):
        assert torch.cat(list(parts)).sort().values.tolist() == list(range(12))
    assert [part.tolist() for part in first] != [part.tolist() for part in second]
    assert [len(part) for part in method.parts(made(train=(0, 1)), 0, at(0))] == [1, 1]


def test_each_part_has_a_new_teacher_and_each_partition_a_new_student() -> None:
    """The weights before each of the phases differ, and the client's own net stays as it was."""
    method, client = replace(QUICK, teachers=2), made()
    net = {name: tensor.clone() for name, tensor in client.net.state_dict().items()}
    starts, phases = list[Tensor](), list[Phase]()
    for phase in method.studies(client, at(0, public=PUBLIC)):
        starts.append(client[SharedModel].model.header.weight.detach().clone())
        phases.append(phase)
        train(client, [phase], LOCAL, at(0, public=PUBLIC))
    assert [phase.data if isinstance(phase.data, str) else len(phase.data) for phase in phases] == [3, 3, "public"] * 2
    assert not any(torch.equal(a, b) for i, a in enumerate(starts) for b in starts[:i])
    assert all(torch.equal(tensor, net[name]) for name, tensor in client.net.state_dict().items())


def test_students_learn_what_the_teachers_say() -> None:
    """Inputs tell their class, so teachers of enough data agree, and so do the students with them."""
    x = torch.eye(4)[:3].repeat(8, 1) * 4
    y = torch.arange(3).repeat(8)
    public = public_data(replace(PUBLIC.samples, x=x[:3], y=torch.zeros(3, dtype=torch.int64)), "none", 0)
    data = make_client().data._replace(train=replace(PUBLIC.samples, x=x, y=y))
    method = FedKT(teachers=2, teacher_epochs=60, student_epochs=60)
    wide = replace(
        TASK, width=8, build_shared=lambda: SplitModel(nn.Linear(4, 8), nn.Linear(8, 3), channels_last=False)
    )
    client = make_client(data=data, task=wide, method=method, public=public)
    assert shown(upload_of(client, Votes)) == {"votes": [[0, 1, 2], [0, 1, 2]]}


def test_samples_without_a_label_teach_nothing() -> None:
    """S = 3 stands for none: the loss is the mean over the others, and 0 where there are no others."""
    client, everything = made(), torch.arange(4)
    z, batch = client.net(PUBLIC.samples.x), Batch(PUBLIC.samples.x, PUBLIC.samples.y, everything)
    expected = nn.functional.cross_entropy(z[[0, 2]], torch.tensor([1, 2]))
    torch.testing.assert_close(QUICK.learn(torch.tensor([1, 3, 2, 3], dtype=torch.uint8), client, batch), expected)
    nothing = QUICK.learn(torch.full((4,), 3, dtype=torch.uint8), client, batch)
    assert nothing.item() == 0
    nothing.backward()  # type: ignore[no-untyped-call]


def test_labels_come_before_own_data_and_without_them_own_data_are_left() -> None:
    """Four public and six own samples in batches of two, an epoch each: 2 + 3 steps. A newcomer without labels: 3."""
    labels = Labels(torch.tensor([0, 1, 2, 3], dtype=torch.uint8))
    assert made().run_round(labels, 1).steps == 2 + 3
    newcomer = made().run_round(None, 1)
    assert (newcomer.steps, shown(newcomer.payload)) == (3, {})


def test_passes_of_teachers_and_students_are_work_of_the_round() -> None:
    """Five teachers and a student pass four samples, twice; the client's own net passes none."""
    client = made(train=(0, 0, 1, 1, 2))
    client.run_round(None, 0)
    assert client.num_passed == {SharedModel: 2 * (5 + 1) * 4}


# -- what travels, and what is refused ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_classes", "size"), [(10, 1), (255, 1), (256, 1), (1000, 2)])
def test_bytes_each_way_and_not_one_float(num_classes: int, size: int) -> None:
    """s·P up and P down, a byte each; two bytes where a byte cannot tell the classes, or the classes and none."""
    task = Task(num_classes, (4,), width=2, num_rounds=2, build_shared=TASK.build_shared)
    public, method = public_data(vectors([0] * 1000), "none", 0), FedKT()
    client = make_client(task=task, method=method, public=public)
    up = method.uplink(client, at(0, task, public=public))
    now = server_at(0, task, public=public)
    method.check_upload(up, client.info(), now)
    down = method.downlink(method.aggregate(Result(), [Upload(client.info(), up)], now), client.info(), now)
    method.check_downlink(down, client.info(), now)
    assert (num_bytes(up), num_params(up), num_params(down)) == (2000 * size, 0, 0)
    assert num_bytes(down) == 1000 * (2 if num_classes > 255 else 1)


GOOD = torch.zeros(2, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("t", "votes", "reason"),
    [
        (0, None, "votes of 0 students, and a client sends those of 2"),
        (1, GOOD, "votes in round 1, and clients vote in round 0 alone"),
        (1, GOOD[:0], "votes in round 1, and clients vote in round 0 alone"),
        (0, GOOD[:1], "votes of 1 students"),
        (0, GOOD[:, :3], r"votes is uint8 \[2, 3\], not uint8 \[s, P\] = \[2, 4\]"),
        (0, GOOD.long(), r"votes is int64 \[2, 4\], not uint8"),
        (0, GOOD + 3, r"votes has ids that are no classes \(0 to 2\)"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(t: int, votes: Tensor | None, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        FedKT().check_upload(Votes(votes), info(0, 0, 1), ctx(t))
    assert "\n" not in str(refused.value)


def test_what_comes_down_may_say_that_there_is_no_label() -> None:
    FedKT().check_downlink(Labels(torch.full((4,), 3, dtype=torch.uint8)), info(0, 0), ctx(1))
    with pytest.raises(AnswerError, match=r"labels has ids that are no classes \(0 to 3\)"):
        FedKT().check_downlink(Labels(torch.full((4,), 4, dtype=torch.uint8)), info(0, 0), ctx(1))


# -- in a run --------------------------------------------------------------------------------------------------------
SLICE = {"name": "slice", "share": 0.1, "per_round": 0}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"rounds": {"total": 3}}, "method.name = 'fedkt': has 2 rounds; set rounds.total = 2"),
        ({"rounds": {"total": 2}, "public": SLICE | {"per_round": 9}}, "in every round; set public.per_round = 0"),
    ],
)
def test_settings_that_do_not_fit_are_one_line_before_anything_starts(sections: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "fedkt"}, **{"public": SLICE, **sections}))
