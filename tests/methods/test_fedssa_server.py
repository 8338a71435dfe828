"""FedSSA's server half with numbers worked out by hand. A row is (weight, bias): d = 1, S = 3."""

import itertools

import pytest
import torch

from fedssa.core.message import digest
from fedssa.core.method import Upload
from fedssa.core.task import Task
from fedssa.methods import FedSSA
from fedssa.methods.fedssa import ClassRows, GlobalRows
from tests.conftest import at, info, make_client, rows_message, server_at, set_rows, shown

TASK = Task(num_classes=3, input_shape=(4,), width=1)


def state(rows: list[list[float]], known: list[bool]) -> GlobalRows:
    return GlobalRows(torch.tensor(rows), torch.tensor(known))


def aggregated(method: FedSSA, server: GlobalRows, *uploads: Upload[ClassRows], t: int = 0) -> GlobalRows:
    return method.aggregate(server, uploads, server_at(t, TASK))


# -- the server's mean -----------------------------------------------------------------------------------------
FIRST = Upload(info(0, 0, 1), rows_message({0: [2.0, 4.0], 1: [6.0, 8.0]}))
SECOND = Upload(info(1, 1), rows_message({1: [0.0, 2.0]}))
EMPTY = state([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [False, False, False])


def test_the_mean_of_a_class_is_over_those_who_have_seen_it() -> None:
    server = aggregated(FedSSA(), EMPTY, FIRST, SECOND)
    # class 1: (6 + 0) / 2, (8 + 2) / 2
    assert server.rows[:2].tolist() == [[2, 4], [3, 5]]
    assert server.known.tolist() == [True, True, False]


def test_shaking_is_the_mean_way_of_the_rows_that_the_server_had() -> None:
    before = state([[0.0, 0.0], [1.0, 1.0], [9.0, 9.0]], [True, True, False])
    after = state([[3.0, 4.0], [1.0, 1.0], [0.0, 0.0]], [True, True, True])
    assert FedSSA().metrics(before, after) == {"shaking": 2.5}  # (5 + 0) / 2; the third row was not there before
    assert FedSSA().metrics(EMPTY, after) == {}


def test_a_class_that_nobody_uploads_keeps_its_row() -> None:
    before = state([[9.0, 9.0], [7.0, 7.0], [5.0, 5.0]], [True, True, True])
    server = aggregated(FedSSA(), before, SECOND, t=1)
    assert server.rows.tolist() == [[9, 9], [0, 2], [5, 5]]
    assert server.known.tolist() == [True, True, True]


def test_aggregate_leaves_the_old_state_alone() -> None:
    before = state([[9.0, 9.0], [7.0, 7.0], [5.0, 5.0]], [True, False, True])
    aggregated(FedSSA(), before, FIRST, SECOND, t=1)
    assert before.rows.tolist() == [[9, 9], [7, 7], [5, 5]]
    assert before.known.tolist() == [True, False, True]


def counted(upload: Upload[ClassRows], *counts: int) -> Upload[ClassRows]:
    return Upload(upload.info, ClassRows(upload.payload.rows, upload.payload.classes, torch.tensor(counts)))


def test_count_weighs_by_samples_of_the_class() -> None:
    server = aggregated(FedSSA(class_weights="count"), EMPTY, counted(FIRST, 9, 1), counted(SECOND, 3))
    # class 0 has one owner; class 1: (1 · 6 + 3 · 0) / 4, (1 · 8 + 3 · 2) / 4
    assert server.rows[:2].tolist() == [[2, 4], [1.5, 3.5]]


def test_counts_of_all_rows_leave_out_those_without_samples() -> None:
    method = FedSSA(class_weights="count", shared_rows="all", scope="all")
    client = make_client(train=(0, 0, 0, 1), task=TASK, method=method)
    set_rows(client, [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]])
    payload = method.uplink(client, at(0, TASK))
    server = aggregated(method, EMPTY, Upload(info(0, 0, 1), payload))
    assert server.rows.tolist() == [[2, 4], [6, 8], [0, 0]]
    assert server.known.tolist() == [True, True, False]


def test_round_forgets_who_is_absent() -> None:
    method = FedSSA(participants="round")
    server = aggregated(method, EMPTY, FIRST)
    server = aggregated(method, server, SECOND, t=1)
    assert server.rows[:2].tolist() == [[2, 4], [0, 2]]
    assert server.uploads == {}


def test_memory_keeps_the_latest_upload_of_everyone() -> None:
    method = FedSSA(participants="memory")
    server = aggregated(method, EMPTY, FIRST)
    assert server.rows[:2].tolist() == [[2, 4], [6, 8]]
    server = aggregated(method, server, SECOND, t=1)
    assert server.rows[:2].tolist() == [[2, 4], [3, 5]]  # class 1: (6 + 0) / 2, (8 + 2) / 2
    newer = Upload(info(0, 0, 1), rows_message({0: [4.0, 4.0], 1: [10.0, 10.0]}))
    server = aggregated(method, server, newer, t=2)
    assert server.rows[:2].tolist() == [[4, 4], [5, 6]]  # class 1: (10 + 0) / 2, (10 + 2) / 2
    assert server.known.tolist() == [True, True, False]


def test_memory_weighs_by_count_too() -> None:
    method = FedSSA(participants="memory", class_weights="count")
    server = aggregated(method, EMPTY, counted(FIRST, 9, 1))
    server = aggregated(method, server, counted(SECOND, 3), t=1)
    assert server.rows[1].tolist() == [1.5, 3.5]


def masked(upload: Upload[ClassRows]) -> Upload[ClassRows]:
    rows = torch.zeros(3, 2)
    rows[list(upload.info.seen_classes)] = upload.payload.rows
    return Upload(upload.info, ClassRows(rows))


def test_masked_headers_give_the_mean_of_rows() -> None:
    server = aggregated(FedSSA(upload_form="masked"), EMPTY, masked(FIRST), masked(SECOND))
    assert server.rows[:2].tolist() == [[2, 4], [3, 5]]  # the zeros of client 1 for class 0 do not count
    assert server.known.tolist() == [True, True, False]


@pytest.mark.parametrize("participants", ["round", "memory"])
@pytest.mark.parametrize("class_weights", ["equal", "count"])
def test_the_mean_does_not_depend_on_the_order_of_uploads(participants: str, class_weights: str) -> None:
    method = FedSSA(participants=participants, class_weights=class_weights)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    uploads = [
        Upload(
            info(k, 0, 1, 2),
            ClassRows(
                classes=torch.arange(3),
                rows=torch.randn(3, 2, generator=generator),
                counts=torch.tensor([k + 1, 2 * k + 1, 7]),
            ),
        )
        for k in range(4)
    ]
    results = {digest(aggregated(method, EMPTY, *order)) for order in itertools.permutations(uploads)}
    assert len(results) == 1


# -- what comes down -------------------------------------------------------------------------------------------
KNOWN = state([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [True, False, True])


def down(method: FedSSA, *seen: int) -> dict[str, object]:
    return shown(method.downlink(KNOWN, info(0, *seen), server_at(1, TASK)))


def test_only_rows_that_are_seen_and_known_come_down() -> None:
    assert down(FedSSA(), 1, 2) == {"classes": [2], "rows": [[5, 6]]}
    assert down(FedSSA(), 0, 2) == {"classes": [0, 2], "rows": [[1, 2], [5, 6]]}


def test_nothing_known_means_nothing_sent() -> None:
    for method in (FedSSA(), FedSSA(upload_form="masked")):
        assert method.downlink(KNOWN, info(0, 1), server_at(1, TASK)) is None


def test_scope_all_sends_every_known_row() -> None:
    assert down(FedSSA(scope="all"), 1) == {"classes": [0, 2], "rows": [[1, 2], [5, 6]]}


def test_a_masked_header_comes_down_whole() -> None:
    assert down(FedSSA(upload_form="masked"), 1, 2) == {"rows": [[0, 0], [0, 0], [5, 6]]}


def test_skip_starts_from_nothing() -> None:
    server = FedSSA().server_init(server_at(-1, TASK))
    assert server.rows.shape == (3, 2)
    assert server.known.tolist() == [False, False, False]
    assert FedSSA().downlink(server, info(0, 0, 1, 2), server_at(0, TASK)) is None


def test_random_starts_from_random_rows_of_the_seed() -> None:
    method = FedSSA(unseen_global="random")
    server = method.server_init(server_at(-1, TASK))
    assert server.known.tolist() == [True, True, True]
    assert (server.rows != 0).all()
    assert (server.rows.abs() <= 1).all()  # nn.Linear's start: at most 1 / sqrt(d), and d = 1
    assert digest(method.server_init(server_at(-1, TASK))) == digest(server)
    assert not server.rows.requires_grad
    assert digest(method.server_init(server_at(-1, TASK, seed=1))) != digest(server)
    sent_down = method.downlink(server, info(0, 0, 2), server_at(0, TASK))
    assert shown(sent_down) == {"classes": [0, 2], "rows": server.rows[[0, 2]].tolist()}


def test_a_random_row_that_nobody_uploads_stays() -> None:
    method = FedSSA(unseen_global="random")
    server = method.server_init(server_at(-1, TASK))
    after = aggregated(method, server, FIRST)
    assert torch.equal(after.rows[2], server.rows[2])
    assert after.rows[:2].tolist() == [[2, 4], [6, 8]]
