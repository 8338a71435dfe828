"""CFD: few bits both ways, only changes, a server model between; rounds missed, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.message import num_bytes, num_params, owned, tensors_in
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.public import Public, public_data
from fedssa.core.samples import Samples
from fedssa.core.task import Task
from fedssa.core.tensors import digest, module_state
from fedssa.core.training import Batch, LocalTraining, Training, outputs
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import CFD
from fedssa.methods.cfd import Down, Memory, Server
from fedssa.methods.parts.coded_labels import Labels, decoded, quantise, undelta, whole
from fedssa.settings.recipe import parse_settings
from fedssa.sites.agreement import parse_federation
from tests.conftest import LOCAL, TASK, bare_net, copies, info, make_client, server_at, upload_of, vectors
from tests.methods.contract import Tiny, tiny_of
from tests.tiny import tiny

NUM = 40
PUBLIC = public_data(vectors([0] * NUM, seed=99), "none", 0)
STILL = replace(LOCAL, lr=1e-6)  # nobody's labels change


def server_with(t: int = 0, task: Task = TASK, public: Public = PUBLIC, **training: Any) -> ServerContext:
    how = Training(**{"batch_size": 8, "lr": 0.1, **training})
    return replace(server_at(t, task, public=public), training=how)


def made(method: CFD | None = None, k: int = 0, local: LocalTraining = LOCAL) -> Client:
    return make_client(k, method=method or CFD(), public=PUBLIC, local=local)


def upload(client: Client, down: Down | None = None, t: int = 0) -> Upload[Labels]:
    return Upload(client.info(), upload_of(client, Labels, down, t))


def probabilities_of(client: Client) -> torch.Tensor:
    return outputs(client, PUBLIC.samples).softmax(dim=1)


# -- what travels ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("bits", "numbers", "size"), [(1, 0, NUM), (4, 0, 3 * NUM), (32, 3 * NUM, 12 * NUM)])
def test_the_first_message_is_whole_and_has_no_float_unless_asked_for(bits: int, numbers: int, size: int) -> None:
    method = CFD(bits_up=bits, bits_down=bits)
    client = made(method)
    up = upload(client)
    assert up.payload.places is None
    assert torch.equal(up.payload.values, quantise(probabilities_of(client), bits))
    assert (num_params(up.payload), num_bytes(up.payload)) == (numbers, size)
    server = method.aggregate(method.server_init(server_with(-1)), [up], server_with())
    down = method.downlink(server, client.info(), server_with(1))
    assert down is not None
    assert (num_params(down), num_bytes(down)) == (numbers, size + 8)  # eight for the round of its last upload


def test_who_was_here_gets_and_sends_changes_alone() -> None:
    method, client = CFD(), made(local=STILL)
    said = upload(client).payload.values
    before = torch.zeros(NUM, dtype=torch.uint8)
    now = before.clone()
    now[[4, 9, 30]] = 2
    client[Memory].heard.copy_(before)
    down = method.downlink(Server({}, now, before, {0: said}, {0: 0}), client.info(), server_with(1))
    assert down is not None
    assert down.labels.places is not None
    assert (down.labels.places.tolist(), down.labels.values.tolist(), down.last) == ([4, 9, 30], [2, 2, 2], 0)
    assert num_bytes(down) == 3 * 5 + 8
    up = upload(client, down, 1).payload
    assert torch.equal(client[Memory].heard, now)
    assert up.places is not None  # a rate of 1e-6 changes hardly any label
    assert torch.equal(undelta(up, said), client[Memory].said)


def test_all_participants_have_the_servers_codes_and_it_has_theirs() -> None:
    """Half of the clients in each of eight rounds: whoever comes back after a pause gets everything."""
    tiny_federation = tiny_of(CFD())
    for each in tiny_federation.play(total=4, fraction=0.5):
        server: Server = each.server
        for record in each.record.clients if each.record.t >= 0 else ():
            memory = tiny_federation.clients[record.id][Memory]
            assert memory.t.item() == server.last[record.id] == each.record.t
            assert torch.equal(memory.said, server.said[record.id])
            if server.before is not None:
                assert torch.equal(memory.heard, server.before)


def played(
    method: CFD, cohorts: list[list[int]]
) -> Iterator[tuple[int, dict[int, Down | None], list[Upload[Labels]], Server]]:
    clients, server = [made(method, k, STILL) for k in range(3)], method.server_init(server_with(-1))
    for t, cohort in enumerate(cohorts):
        downs = {k: owned(method.downlink(server, clients[k].info(), server_with(t))) for k in cohort}
        ups = [upload(clients[k], downs[k], t) for k in cohort]
        server = owned(method.aggregate(server, ups, server_with(t, lr=1e-6)))
        yield t, downs, ups, server
        assert all(torch.equal(clients[k][Memory].said, server.said[k]) for k in cohort)


def test_a_client_that_missed_a_round_gets_everything_and_still_sends_changes() -> None:
    rounds = list(played(CFD(), [[0, 1], [0, 1], [0], [0, 1, 2]]))
    _, downs, ups, _ = rounds[3]
    by_id = {up.info.id: up.payload for up in ups}
    assert downs[0] is not None
    assert downs[1] is not None
    assert downs[2] is not None
    assert (downs[0].labels.places is None, downs[1].labels.places, downs[2].labels.places) == (False, None, None)
    assert (downs[0].last, downs[1].last, downs[2].last) == (2, 1, None)
    assert by_id[1].places is not None  # the server has what it said in round 1
    assert by_id[2].places is None  # its first


def test_an_upload_that_never_arrived_is_not_built_upon() -> None:
    """The server tells which upload it has; a client that has said more since then says everything."""
    method, client = CFD(), made(local=STILL)
    server = method.aggregate(method.server_init(server_with(-1)), [upload(client)], server_with())
    upload(client, owned(method.downlink(server, client.info(), server_with(1))), 1)  # it is lost
    late = upload(client, owned(method.downlink(server, client.info(), server_with(2))), 2)
    assert late.payload.places is None
    assert torch.equal(method.aggregate(server, [late], server_with(2)).said[0], client[Memory].said)


def test_changes_of_labels_that_the_server_does_not_have_are_left_out() -> None:
    """No honest client sends them, and one that does costs its own answer only."""
    method, client = CFD(), made(local=STILL)
    said = Labels(ids=torch.zeros(1, dtype=torch.uint8), places=torch.tensor([3], dtype=torch.int32))
    method.check_upload(said, info(7, 0), server_with())
    start, hostile = method.server_init(server_with(-1)), Upload(info(7, 0), said)
    nothing = method.aggregate(start, [hostile], server_with())
    assert (nothing is start, method.metrics(start, nothing)) == (True, {})
    honest = upload(client)
    alone, beside = (method.aggregate(start, ups, server_with()) for ups in ([honest], [honest, hostile]))
    assert digest(tensors_in(beside)) == digest(tensors_in(alone))


def test_labels_of_other_bits_are_refused() -> None:
    codes = quantise(torch.full((NUM, 3), 1 / 3), 2)
    nothing = Labels(codes=torch.zeros(0, 3, dtype=torch.uint8), places=torch.zeros(0, dtype=torch.int32))
    with pytest.raises(AnswerError, match=r"^labels of other bits, not of 1$"):
        CFD().check_upload(nothing, info(0, 0), server_with())
    CFD(bits_up=3).check_upload(nothing, info(0, 0), server_with())
    with pytest.raises(AnswerError, match=r"^labels of 2 bits, not of 1$"):
        CFD().check_upload(whole(codes), info(0, 0), server_with())
    CFD(bits_up=2).check_upload(whole(codes), info(0, 0), server_with())


# -- who learns what ---------------------------------------------------------------------------------------------------
def test_the_server_goes_on_from_its_last_model_towards_the_mean_by_hand() -> None:
    """Zero logits, class 0 said twice and class 1 once: the bias moves by (2/3, 1/3) − (1/2, 1/2), and is kept."""
    task = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=2, build_server=lambda: bare_net([[0.0, 0.0]] * 2))
    public = public_data(Samples(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), "none", 0)
    ctx = server_with(task=task, public=public, batch_size=4, lr=1.0, optimiser=SGD(momentum=0.0))
    says = [Upload(info(k, 0), whole(torch.full((4,), label, dtype=torch.uint8))) for k, label in enumerate((0, 0, 1))]
    once = CFD().aggregate(CFD().server_init(ctx), says, ctx)
    torch.testing.assert_close(once.model["header.bias"], torch.tensor([1 / 6, -1 / 6]))
    assert once.codes is not None
    assert once.codes.tolist() == [0] * 4
    twice = CFD().aggregate(once, says, ctx.at(1))
    assert twice.model["header.bias"][0] > 1 / 6
    assert torch.equal(twice.before, once.codes)  # type: ignore[arg-type]


def test_a_client_distils_the_servers_labels_of_the_same_samples() -> None:
    method = CFD(bits_down=2)
    client = made(method)
    codes = quantise(torch.randn(NUM, 3, generator=torch.Generator().manual_seed(5)).softmax(dim=1), 2)
    method.receive(client, Down(whole(codes)), server_with(1))
    index = torch.tensor([7, 3])
    z = client.net(PUBLIC.samples.x[index])
    loss = method.distil(client, Batch(PUBLIC.samples.x[index], torch.zeros(2, dtype=torch.int64), index))
    expected = -(codes[index].float() / 3 * z.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(loss, expected)


def test_first_round_is_private_and_later_ones_distil_first() -> None:
    client, method = made(), CFD(distill_epochs=3)
    assert [phase.data for phase in method.phases(client, server_with())] == ["train"]
    client.downlink = Down(whole(torch.zeros(NUM, dtype=torch.uint8)))
    assert [(phase.data, phase.epochs) for phase in method.phases(client, server_with(1))] == [
        ("public", 3),
        ("train", None),
    ]


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_keeps_its_net_or_starts_from_its_own_start(reset: bool) -> None:
    client = made(CFD(reset=reset))
    start = digest(copies(module_state(client.net)))
    client.run_round(None, 0)
    trained = digest(module_state(client.net))
    assert trained != start
    client.method.receive(client, None, server_with(1))
    assert digest(module_state(client.net)) == (start if reset else trained)


def test_one_client_alone() -> None:
    alone: Tiny = tiny_of(CFD(bits_up=8, bits_down=8), [(0, 1, 2)])
    last = list(alone.play())[-1]
    assert torch.equal(undelta(whole(last.server.codes), last.server.codes), last.server.codes)
    assert decoded(last.server.codes, 3).sum(dim=1).tolist() == pytest.approx([1.0] * 5)


def test_the_record_has_what_a_coder_would_reach() -> None:
    metrics = [each.record.metrics for each in list(tiny_of(CFD(bits_down=32)).play())[1:]]
    assert all(list(one) == ["entropy of changes up, bytes"] for one in metrics)
    ids = torch.tensor([0, 1, 0, 1], dtype=torch.uint8)
    start = Server({})
    first = Server({}, ids, None, {0: ids, 1: ids}, {0: 0, 1: 0})
    assert CFD().metrics(start, first) == {"entropy of changes up, bytes": 1.0, "entropy of changes down, bytes": 0.5}
    second = Server({}, ids, ids, {0: ids, 1: ids}, {0: 1, 1: 0})  # of client 0 alone, and nothing has changed
    assert CFD().metrics(first, second) == {"entropy of changes up, bytes": 0.0, "entropy of changes down, bytes": 0.0}


# -- settings ----------------------------------------------------------------------------------------------------------
def recipe(**public: Any) -> dict[str, Any]:
    return tiny(method={"name": "cfd"}, models={"server": "mlp-1"}, public={"share": 0.1, **public})


def test_public_samples_that_change_are_refused_in_one_line() -> None:
    line = "method.name = 'cfd': speaks of the same public samples in every round; set public.per_round = 0"
    for public in ({}, {"per_round": 20}):
        with pytest.raises(SettingsError) as refused:
            parse_settings(recipe(**public))
        assert str(refused.value) == line
    assert parse_settings(recipe(per_round=0)).server.epochs == 5


def test_a_federation_is_held_to_it_too() -> None:
    table = {
        "clients": ["north", "south"],
        "task": {"classes": ["a", "b"], "input_shape": [4]},
        "models": {"server": "mlp-1"},
        "method": {"name": "cfd"},
        "public": {"file": "public.npz", "digest": "0" * 64, "labels": "none", "per_round": 0},
    }
    assert parse_federation(table).settings.method == CFD()
    table["public"] = {**table["public"], "per_round": 20}  # type: ignore[dict-item]
    with pytest.raises(SettingsError, match=r"set public\.per_round = 0$"):
        parse_federation(table)


@pytest.mark.parametrize("bits", [0, 9, 31, 33])
def test_bits_are_one_to_eight_or_all(bits: int) -> None:
    table = recipe(per_round=0)
    with pytest.raises(SettingsError, match=rf"bits_up = {bits}"):
        parse_settings({**table, "method": {"name": "cfd", "bits_up": bits}})


def test_defaults() -> None:
    assert CFD() == CFD(bits_up=1, bits_down=1, distill_epochs=5, reset=False)
