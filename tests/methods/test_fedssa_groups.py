"""FedSSA in groups: three exchanges, each of which can be switched off, and what is left is a method we know."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedssa.core.client import AnyMethod, ClientInfo
from fedssa.core.groups import Flat, flat
from fedssa.core.message import num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.training import Batch
from fedssa.errors import AnswerError
from fedssa.methods import FedPer, FedProto, FedSSA, FedSSAGroups, FedSSAPlus, Standalone
from fedssa.methods.fedssa_groups import Down, Shared, Up
from fedssa.methods.parts.extractors import Extractors
from fedssa.methods.parts.prototypes import Prototypes
from fedssa.settings.recipe import parse_settings
from tests.conftest import TASK, LiveFederation, at, grouped, rows_of, server_at, set_rows, shown, upload_of
from tests.tiny import tiny

RED, BLUE = 40, 41
TRAIN = [(0, 0, 1), (1, 2, 2, 1, 0), (2, 0), (1, 1, 2)]
TWO_GROUPS, ALL_ALONE = (RED, RED, BLUE, BLUE), (1, 2, 3, 4)
GROUP = "0123456789abcdef-1"
MINE = [[2.0, 4.0, 6.0], [1.0, 1.0, 1.0], [7.0, 8.0, 9.0]]


def without(*parts: str) -> FedSSAGroups:
    return FedSSAGroups(**dict.fromkeys(parts, False))  # type: ignore[arg-type]


def models(method: AnyMethod, starts: tuple[int, ...] = TWO_GROUPS, rounds: int = 4) -> list[list[float]]:
    """All weights of the clients' nets in the end; three of four take part in a round."""
    federation = LiveFederation([grouped(k, method, start=start, train=TRAIN[k]) for k, start in enumerate(starts)])
    task = replace(TASK, num_rounds=rounds)
    list(run_rounds(method, federation, server_at(-1, task), Rounds(total=rounds, fraction=0.75)))
    return [flat(client.net).floats.tolist() for client in federation.clients]


# -- switched off, part by part ----------------------------------------------------------------------------------------
def test_nothing_shared_is_standalone() -> None:
    off = FedSSAGroups(extractors=False, rows=False, prototypes=False)
    assert models(off) == models(Standalone())


def test_extractors_alone_are_fedper() -> None:
    assert models(FedSSAGroups(rows=False, prototypes=False)) == models(FedPer()) != models(Standalone())


@pytest.mark.parametrize("fusion", ["sum", "convex", "replace"])
def test_rows_alone_are_fedssa(fusion: Any) -> None:
    ours = FedSSAGroups(extractors=False, prototypes=False, fusion=fusion, mu0=0.3, t_stable=3)
    assert models(ours) == models(FedSSA(fusion=fusion, mu0=0.3, t_stable=3)) != models(Standalone())


def test_prototypes_alone_are_fedproto() -> None:
    assert models(FedSSAGroups(extractors=False, rows=False, lam=2.0)) == models(FedProto(lam=2.0))


@pytest.mark.parametrize("starts", [TWO_GROUPS, ALL_ALONE])
def test_rows_and_prototypes_are_fedssa_plus_and_so_are_groups_of_one(starts: tuple[int, ...]) -> None:
    plus = models(FedSSAPlus(fusion="replace", lam=0.7), starts)
    assert models(FedSSAGroups(extractors=False, lam=0.7), starts) == plus
    assert (models(FedSSAGroups(lam=0.7), starts) == plus) == (starts == ALL_ALONE)


def test_each_part_changes_the_outcome() -> None:
    whole = models(FedSSAGroups())
    for less in ({"extractors": False}, {"rows": False}, {"prototypes": False}, {"lam": 0.0}, {"fusion": "sum"}):
        assert models(FedSSAGroups(**less)) != whole


def test_defaults() -> None:
    assert FedSSAGroups() == FedSSAGroups(
        extractors=True, rows=True, prototypes=True, compress="none", fusion="replace", mu0=0.5, t_stable=2, lam=1.0
    )


def test_headers_start_at_three_times_the_usual_weights_unless_the_recipe_says_other() -> None:
    own = parse_settings(tiny(method={"name": "fedssa-groups"}))
    said = parse_settings(tiny(method={"name": "fedssa-groups"}, models={"header_scale": 1.0}))
    assert (own.models.header_scale, said.models.header_scale) == (3.0, 1.0)


# -- the client --------------------------------------------------------------------------------------------------------
def test_all_three_are_received_and_other_rows_are_left() -> None:
    client = grouped(0, FedSSAGroups())
    set_rows(client, MINE)
    down = Down(
        Flat(torch.arange(10.0)), torch.tensor([1]), torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[8.0, 9.0]])
    )
    client.method.receive(client, down, at(0))
    assert flat(client.net.extractor).floats.tolist() == list(range(10))
    assert rows_of(client) == [MINE[0], [5.0, 6.0, 7.0], MINE[2]]
    assert client[Prototypes].received[1].tolist() == [8, 9]
    assert client[Prototypes].received_known.tolist() == [False, True, False]
    client.method.receive(client, Down(Flat(torch.zeros(10))), at(1))
    assert client[Prototypes].received_known.tolist() == [False] * 3  # none came
    assert rows_of(client) == [MINE[0], [5.0, 6.0, 7.0], MINE[2]]


def test_the_loss_pulls_by_lam_and_not_at_all_without_prototypes() -> None:
    x, y = torch.zeros(2, 4), torch.tensor([0, 1])
    for method, pull in ((FedSSAGroups(lam=2.0), 2 * 1.25), (FedSSAGroups(prototypes=False), 0.0)):
        client = grouped(0, method)
        set_rows(client, [[0.0] * 3] * 3)
        prototypes = torch.tensor([[1.0, 2.0]]) if method.prototypes else None
        down = Down(Flat(torch.zeros(10)), torch.tensor([0]), torch.zeros(1, 3), prototypes)
        method.receive(client, down, at(0))
        # representations are 0: CE of a header of zeros is ln 3, and (1 + 4 + 0 + 0) / (2 samples · 2) is 1.25
        assert method.loss(client, Batch(x, y, torch.arange(2))).item() == pytest.approx(math.log(3) + pull)


@pytest.mark.parametrize(
    ("off", "sent"),
    [
        ((), ["extractor.floats", "classes", "rows", "prototypes", "counts"]),
        (("extractors",), ["classes", "rows", "prototypes", "counts"]),
        (("rows",), ["extractor.floats", "classes", "prototypes", "counts"]),
        (("prototypes",), ["extractor.floats", "classes", "rows"]),
        (("rows", "prototypes"), ["extractor.floats"]),
        (("extractors", "rows", "prototypes"), []),
    ],
)
def test_what_is_off_does_not_travel(off: tuple[str, ...], sent: list[str]) -> None:
    method = without(*off)
    client = grouped(0, method)
    up = upload_of(client, Up)
    assert list(tensors_in(up)) == sent
    server = method.aggregate(method.server_init(server_at(-1)), [Upload(client.info(), up)], server_at(0))
    down = method.downlink(server, client.info(), server_at(1))
    assert list(tensors_in(down)) == [name for name in sent if name != "counts"]
    assert down is not None or not sent
    kinds = {"head"} if "prototypes" in off else {"head", "prototype"}
    assert client.run_round(down, 1).scores.test.keys() == kinds


def test_numbers_each_way() -> None:
    """The extractor, and for each seen class a row of d + 1 and a prototype of d."""
    client = grouped(0, FedSSAGroups())
    up = client.run_round(None, 0).payload
    assert num_params(up) == 10 + 2 * (3 + 2)


# -- compressed --------------------------------------------------------------------------------------------------------
def test_with_all_the_energy_compression_changes_next_to_nothing() -> None:
    exact, whole = (models(FedSSAGroups(compress="svd", energy=1.0)), models(FedSSAGroups()))
    torch.testing.assert_close(torch.tensor(exact), torch.tensor(whole), rtol=0, atol=1e-5)
    assert models(FedSSAGroups(compress="svd", energy=0.3)) != exact


def test_a_change_goes_up_once_an_extractor_came_and_it_is_smaller() -> None:
    """The change of one sample has rank 1; 2 × 4 numbers take 2 + 1 + 4 then, and the bias two more."""
    method = FedSSAGroups(compress="svd")
    client = grouped(0, method, train=(0,))
    first = upload_of(client, Up)
    assert first.extractor is not None
    assert first.change is None
    second = upload_of(client, Up, Down(Flat(torch.ones(10))), t=1)
    assert second.extractor is None
    assert second.change is not None
    assert second.change.floats.sizes.tolist() == [[2, 4, 1], [1, 2, 0]]
    assert len(second.change.floats.numbers) == 7 + 2
    method.check_upload(second, client.info(), server_at(1))
    server = replace(
        method.server_init(server_at(-1)), extractors=Extractors({client.group or "": Flat(torch.ones(10))})
    )
    after = method.aggregate(server, [Upload(client.info(), second)], server_at(1))
    now = flat(client.net.extractor).floats
    torch.testing.assert_close(after.extractors.groups[client.group or ""].floats, now, rtol=0, atol=1e-5)
    assert not torch.allclose(now, torch.ones(10))


def test_a_change_of_what_nobody_was_sent_is_left_out() -> None:
    method = FedSSAGroups(compress="svd")
    client = grouped(0, method)
    up = upload_of(client, Up, Down(Flat(torch.ones(10))))
    after = method.aggregate(method.server_init(server_at(-1)), [Upload(client.info(), up)], server_at(0))
    assert not after.extractors.groups


@pytest.mark.parametrize("judge", [FedSSAGroups(), FedSSAGroups(compress="svd", extractors=False)])
def test_a_change_that_was_not_agreed_on_is_refused(judge: FedSSAGroups) -> None:
    client = grouped(0, FedSSAGroups(compress="svd"))
    up = upload_of(client, Up, Down(Flat(torch.ones(10))))
    with pytest.raises(AnswerError, match="was not agreed on"):
        judge.check_upload(up, client.info(), server_at(0))


# -- the server --------------------------------------------------------------------------------------------------------
def test_extractors_by_samples_prototypes_by_count_and_rows_equally() -> None:
    server = Shared(torch.full((3, 3), 5.0), torch.full((3, 2), 6.0), torch.tensor([False, False, True]))
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n, group=GROUP), _up(extractor, row, prototype, n))
        for k, n, extractor, row, prototype in ((0, 1, 1.0, 2.0, 2.0), (1, 3, 5.0, 4.0, 6.0))
    ]
    after = FedSSAGroups().aggregate(server, uploads, server_at(0))
    assert after.extractors.groups[GROUP].floats.tolist() == [4]  # (1 + 3 · 5) / 4
    assert after.rows[:, 0].tolist() == [3, 5, 5]  # (2 + 4) / 2
    assert after.prototypes[:, 0].tolist() == [5, 6, 6]  # (2 + 3 · 6) / 4
    assert after.known.tolist() == [True, False, True]
    other = ClientInfo(9, (0, 1), num_train=2, group="fedcba9876543210-1")
    down = FedSSAGroups().downlink(after, other, server_at(1))
    assert shown(down) == {"classes": [0], "rows": [[3, 3, 3]], "prototypes": [[5, 5]]}  # no extractor of its group


def _up(extractor: float, row: float, prototype: float, count: int) -> Up:
    """Of class 0."""
    return Up(
        Flat(torch.tensor([extractor])),
        None,
        torch.tensor([0]),
        torch.full((1, 3), row),
        torch.full((1, 2), prototype),
        torch.tensor([count]),
    )


def test_a_client_of_classes_that_nobody_had_gets_its_extractor_alone() -> None:
    server = replace(
        FedSSAGroups().server_init(server_at(-1)), extractors=Extractors({GROUP: Flat(torch.tensor([1.0]))})
    )
    down = FedSSAGroups().downlink(server, ClientInfo(0, (0,), 2, group=GROUP), server_at(1))
    assert shown(down) == {"extractor.floats": [1]}


@pytest.mark.parametrize("off", ["extractors", "rows", "prototypes"])
def test_an_upload_of_other_parts_than_agreed_on_is_refused(off: str) -> None:
    whole, less = grouped(0, FedSSAGroups()), grouped(0, without(off))
    for sender, judge, word in ((whole, less, "was not agreed on"), (less, whole, "missing")):
        up = sender.run_round(None, 0).payload
        with pytest.raises(AnswerError, match=rf"{off.removesuffix('s') if off != 'rows' else off}s?: {word}"):
            judge.method.check_upload(up, judge.info(), server_at(0))
        sender.method.check_upload(up, sender.info(), server_at(0))


def test_the_record_says_how_far_rows_moved() -> None:
    before = Shared(torch.zeros(3, 3), torch.zeros(3, 2), torch.tensor([True, False, False]))
    after = replace(before, rows=torch.tensor([[3.0, 4.0, 0.0]] * 3))
    assert FedSSAGroups().metrics(before, after) == {"shaking": 5.0}
    assert FedSSAGroups(rows=False).metrics(before, after) == {}
