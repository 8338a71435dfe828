"""FD with numbers worked out by hand: mean softmax outputs, teachers that leave the pupil out, the loss."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedssa
from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.message import num_params
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.samples import LocalData, Samples
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import FD, Standalone
from fedssa.methods.fd import Down, Reports, Up
from tests.conftest import (
    LiveFederation,
    at,
    bare_net,
    info,
    make_client,
    same_bits,
    server_at,
    tiny_net,
    upload_of,
)
from tests.tiny import tiny

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=4)
LN3, LN4 = math.log(3.0), math.log(4.0)
STILL = LocalTraining(batch_size=2, epochs=2, lr=1e-30, optimiser=SGD(momentum=0.0))  # the model stays where it is


def client_with(x: list[list[float]], y: list[int], *, gamma: float = 0.1, local: LocalTraining = STILL) -> Client:
    """Logits are the inputs."""
    samples = Samples(torch.tensor(x), torch.tensor(y))
    data = LocalData(samples, samples, samples)
    return make_client(task=TASK, net=bare_net([[1, 0], [0, 1]]), method=FD(gamma=gamma), data=data, local=local)


def report(outputs: dict[int, list[float]]) -> Up:
    return Up(torch.tensor(list(outputs)), torch.tensor(list(outputs.values())))


def server_with(reports: dict[int, dict[int, list[float]]]) -> Reports:
    uploads = [Upload(info(k, *outputs), report(outputs)) for k, outputs in reports.items()]
    return FD().aggregate(FD().server_init(server_at(-1, TASK)), uploads, server_at(0, TASK))


def teachers(server: Reports, client: int, *seen: int) -> dict[int, list[float]]:
    down = FD().downlink(server, info(client, *seen), server_at(1, TASK))
    return {} if down is None else dict(zip(down.classes.tolist(), down.teachers.tolist(), strict=True))


# -- up --------------------------------------------------------------------------------------------------------
def test_up_go_mean_softmax_outputs_by_label_over_all_steps() -> None:
    # label 0: softmax (3/4, 1/4) and (1/2, 1/2), mean (5/8, 3/8); label 1: softmax (1/5, 4/5); two epochs count twice
    sent = upload_of(client_with([[LN3, 0.0], [0.0, 0.0], [0.0, LN4]], [0, 0, 1]), Up)
    assert sent.classes.tolist() == [0, 1]
    torch.testing.assert_close(sent.outputs, torch.tensor([[0.625, 0.375], [0.2, 0.8]]))


def test_the_mean_is_over_the_steps_as_the_model_moves() -> None:
    """Not the output of the final model, and probabilities, not logits."""
    local = LocalTraining(batch_size=1, epochs=2, lr=1.0, optimiser=SGD(momentum=0.0))
    sent = upload_of(client_with([[0.0, 0.0]], [0], local=local), Up)
    # only the bias moves. Step 1: p = (0.5, 0.5), bias ← -(p - y) = (0.5, -0.5). Step 2: p = 1 / (1 + e⁻¹) = 0.7310586
    torch.testing.assert_close(sent.outputs, torch.tensor([[0.6155293, 0.3844707]]))


def test_a_new_round_starts_a_new_mean() -> None:
    local = LocalTraining(batch_size=1, epochs=2, lr=1.0, optimiser=SGD(momentum=0.0))
    client = client_with([[0.0, 0.0]], [0], local=local)
    assert float(upload_of(client, Up, t=0).outputs[0, 0]) == pytest.approx(0.6155293)
    # the bias goes on from ±(0.5 + 0.2689414): 1 / (1 + e^-1.5378829) = 0.8231, and then further, never back to 0.5
    assert float(upload_of(client, Up, t=1).outputs[0, 0]) > 0.82


def test_classes_without_samples_are_not_reported_as_zeros() -> None:
    sent = upload_of(client_with([[0.0, LN4]], [1]), Up)
    assert sent.classes.tolist() == [1]
    assert sent.outputs.shape == (1, 2)


# -- teachers --------------------------------------------------------------------------------------------------
def test_a_class_with_one_owner_has_no_teacher_for_it() -> None:
    server = server_with({0: {0: [0.9, 0.1]}})
    assert teachers(server, 0, 0) == {}
    assert FD().downlink(server, info(0, 0), server_at(1, TASK)) is None
    assert teachers(server, 1, 0) == {0: pytest.approx([0.9, 0.1])}


def test_two_owners_teach_each_other() -> None:
    server = server_with({0: {0: [0.9, 0.1]}, 1: {0: [0.5, 0.5], 1: [0.2, 0.8]}})
    assert teachers(server, 0, 0) == {0: pytest.approx([0.5, 0.5])}
    assert teachers(server, 1, 0, 1) == {0: pytest.approx([0.9, 0.1])}  # of 1 nobody else has reported


def test_three_owners_and_a_client_that_has_not_reported() -> None:
    server = server_with({0: {0: [0.9, 0.1]}, 1: {0: [0.5, 0.5]}, 2: {0: [0.1, 0.9]}})
    assert teachers(server, 0, 0) == {0: pytest.approx([0.3, 0.7])}  # (0.5 + 0.1) / 2, (0.5 + 0.9) / 2
    assert teachers(server, 1, 0) == {0: pytest.approx([0.5, 0.5])}  # (0.9 + 0.1) / 2, (0.1 + 0.9) / 2
    assert teachers(server, 7, 0, 1) == {0: pytest.approx([0.5, 0.5])}  # all three; nobody owns 1


def test_every_owner_weighs_the_same_however_many_samples_it_has() -> None:
    uploads = [Upload(ClientInfo(k, (0,), num_train=10**k), report({0: [float(k), 0.0]})) for k in (1, 3)]
    server = FD().aggregate(Reports(), uploads, server_at(0, TASK))
    assert teachers(server, 0, 0) == {0: [2.0, 0.0]}  # (1 + 3) / 2


def test_the_server_keeps_each_owners_last_report() -> None:
    server = server_with({0: {0: [0.9, 0.1]}, 1: {0: [0.5, 0.5]}})
    later = FD().aggregate(server, [Upload(info(1, 0), report({0: [0.3, 0.7]}))], server_at(1, TASK))
    assert teachers(later, 2, 0) == {0: pytest.approx([0.6, 0.4])}  # (0.9 + 0.3) / 2, (0.1 + 0.7) / 2


def test_teachers_come_for_seen_classes_only() -> None:
    server = server_with({0: {0: [0.9, 0.1], 1: [0.5, 0.5]}})
    assert set(teachers(server, 1, 1)) == {1}


REPORTS = st.dictionaries(
    st.integers(0, 12),
    st.dictionaries(st.integers(0, 3), st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4), min_size=1),
    max_size=5,
)


@given(reports=REPORTS, pupil=st.integers(0, 12), seen=st.sets(st.integers(0, 3), min_size=1))
def test_leave_one_out_equals_a_plain_loop(
    reports: dict[int, dict[int, list[float]]], pupil: int, seen: set[int]
) -> None:
    expected = {}
    for label in sorted(seen):
        others = [outputs[label] for k, outputs in reports.items() if k != pupil and label in outputs]
        if others:
            expected[label] = [sum(column) / len(others) for column in zip(*others, strict=True)]
    taught = teachers(server_with(reports), pupil, *sorted(seen))
    assert taught.keys() == expected.keys()
    for label, teacher in taught.items():
        assert teacher == pytest.approx(expected[label], rel=1e-5, abs=1e-6)


# -- loss ------------------------------------------------------------------------------------------------------
def down(outputs: dict[int, list[float]]) -> Down:
    return Down(torch.tensor(list(outputs)), torch.tensor(list(outputs.values())))


def batch(*y: int) -> Batch:
    """Of samples whose softmax is (3/4, 1/4)."""
    return Batch(torch.tensor([[LN3, 0.0]] * len(y)), torch.tensor(y), torch.arange(len(y)))


@pytest.mark.parametrize("gamma", [0.0, 0.1, 2.0])
def test_loss_of_one_sample_with_a_teacher(gamma: float) -> None:
    client = client_with([[0.0, 0.0]], [0])
    method = FD(gamma=gamma)
    method.receive(client, down({0: [0.8, 0.2]}), at(1, TASK))
    loss = method.loss(client, batch(0))
    # softmax (3/4, 1/4): CE = -ln 0.75 = 0.2876821; -(0.8 · ln 0.75 + 0.2 · ln 0.25) = 0.2301457 + 0.2772589
    assert loss.item() == pytest.approx(0.2876821 + gamma * 0.5074046, abs=1e-6)


def test_a_label_without_teacher_has_no_second_term() -> None:
    client = client_with([[0.0, 0.0]], [0])
    method = FD(gamma=1.0)
    method.receive(client, down({0: [0.8, 0.2]}), at(1, TASK))
    # CE: (-ln 0.75 - ln 0.25) / 2 = (0.2876821 + 1.3862944) / 2; the second term of the first sample only, over 2
    assert method.loss(client, batch(0, 1)).item() == pytest.approx(0.8369882 + 0.5074046 / 2, abs=1e-6)


def test_teachers_last_one_round() -> None:
    client = client_with([[0.0, 0.0]], [0])
    method = FD(gamma=1.0)
    method.receive(client, down({0: [0.8, 0.2]}), at(1, TASK))
    method.receive(client, None, at(2, TASK))
    loss = method.loss(client, batch(0))
    assert loss.item() == pytest.approx(0.2876821, abs=1e-6)


def test_the_gradient_pulls_towards_the_teacher() -> None:
    client = client_with([[0.0, 0.0]], [0])
    method = FD(gamma=0.5)
    method.receive(client, down({0: [0.8, 0.2]}), at(1, TASK))
    method.loss(client, batch(0)).backward()  # type: ignore[no-untyped-call]
    # p - y + γ · (p - teacher) = (-0.25 + 0.5 · -0.05, 0.25 + 0.5 · 0.05)
    assert client.net.header.bias.grad is not None
    torch.testing.assert_close(client.net.header.bias.grad, torch.tensor([-0.275, 0.275]))


def test_defaults() -> None:
    assert FD() == FD(gamma=0.1)


# -- one owner a class: Standalone -----------------------------------------------------------------------------
def test_with_one_owner_a_class_it_is_standalone_to_the_last_bit() -> None:
    def nets(method: AnyMethod) -> list[Tensors]:
        clients = [make_client(k, train=(k, k, k), method=method) for k in range(3)]
        list(run_rounds(method, LiveFederation(clients), server_at(-1), Rounds(total=3)))
        return [module_state(client.net) for client in clients]

    for mine, alone in zip(nets(FD()), nets(Standalone()), strict=True):
        assert same_bits(mine, alone)


@pytest.mark.filterwarnings("ignore:no class is held by two clients")
def test_with_one_owner_a_class_a_run_is_standalones(tmp_path: Path) -> None:
    """Digits, 2 of 10 classes, 5 clients."""
    results = []
    for name in ("fd", "standalone"):
        table = tiny(partition={"clients": 5, "classes_per_client": 2}, method={"name": name})
        result = fedssa.run(table, out=tmp_path / name)
        results.append([(c.id, c.loss, c.header_norm, c.scores) for r in result.records[1:] for c in r.clients])
    assert results[0] == results[1]


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_classes", "num_seen", "numbers"), [(10, 2, 20), (100, 10, 1_000)])  # seen · S
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    method = FD()
    task = Task(num_classes=num_classes, input_shape=(4,), width=500)
    clients = [
        make_client(k, train=tuple(range(num_seen)), task=task, net=tiny_net(task), method=method) for k in range(2)
    ]
    joined = [client.hello(evaluate_start=False) for client in clients]
    uploads = [Upload(i, upload_of(client, Up)) for i, client in zip(joined, clients, strict=True)]
    assert [num_params(upload.payload) for upload in uploads] == [numbers, numbers]
    server = method.aggregate(method.server_init(server_at(-1, task)), uploads, server_at(0, task))
    assert [num_params(method.downlink(server, i, server_at(1, task))) for i in joined] == [numbers, numbers]


def test_teachers_do_not_depend_on_the_order_in_which_owners_have_reported() -> None:
    outputs = {
        k: {0: [1.0, 0.0]} if k == 1 else {0: [3e-8, 1.0]} for k in range(1, 20)
    }  # 1 + 3e-8 is 1, 18 · 3e-8 counts
    forwards, backwards = (server_with(dict(items)) for items in (outputs.items(), reversed(outputs.items())))
    assert teachers(forwards, 0, 0) == teachers(backwards, 0, 0)  # to the last bit
