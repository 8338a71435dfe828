"""FedSSA's client half with numbers worked out by hand. A row is (weight, bias): d = 1, S = 3."""

import math

import pytest

from fedssa.core.client import Client
from fedssa.core.method import Upload
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.methods import FedSSA
from tests.conftest import (
    at,
    info,
    make_client,
    numbers_up_and_down,
    rows_message,
    rows_of,
    server_at,
    set_rows,
    shown,
)

TASK = Task(num_classes=3, input_shape=(4,), width=1)
MINE = [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]


def client_with(rows: list[list[float]], method: FedSSA, *, train: tuple[int, ...] = (0, 0, 0, 1)) -> Client:
    client = make_client(train=train, task=TASK, method=method)
    set_rows(client, rows)
    return client


def received(method: FedSSA, theirs: dict[int, list[float]], t: int) -> list[list[float]]:
    """The rows of a client with MINE, which has seen 0 and 1, after receiving `theirs`."""
    client = client_with(MINE, method)
    method.receive(client, rows_message(theirs), at(t, TASK))
    return rows_of(client)


# -- μ(t) ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fusion", ["sum", "convex"])
def test_mu_falls_as_a_quarter_of_a_cosine(fusion: str) -> None:
    method = FedSSA(mu0=0.5, t_stable=2, fusion=fusion)  # type: ignore[arg-type]
    assert method.mu(0) == 0.5
    assert method.mu(1) == pytest.approx(0.3535534)  # 0.5 · cos(π / 4)
    assert [method.mu(t) for t in (2, 3, 100)] == [0.0, 0.0, 0.0]  # cos(π / 2) = 0, then nothing


def test_mu_with_a_longer_stable_time() -> None:
    method = FedSSA(mu0=1.0, t_stable=3)
    # cos 0, cos 30°, cos 60°, cos 90°
    assert [method.mu(t) for t in range(5)] == pytest.approx([1.0, 0.8660254, 0.5, 0.0, 0.0], abs=1e-7)


def test_replace_has_no_mu() -> None:
    method = FedSSA(mu0=0.5, t_stable=2, fusion="replace")
    assert [method.mu(t) for t in range(4)] == [0.0] * 4


def test_defaults_are_the_papers() -> None:
    assert FedSSA() == FedSSA(
        mu0=0.5,
        t_stable=2,
        fusion="sum",
        scope="seen",
        shared_rows="seen",
        participants="round",
        class_weights="equal",
        upload_form="rows",
        unseen_global="skip",
    )


# -- fusion on the client --------------------------------------------------------------------------------------
THEIRS = {0: [1.0, 1.0], 1: [-1.0, 3.0]}


def test_sum_fusion() -> None:
    # 1 + 0.5 · 2, 1 + 0.5 · 4; -1 + 0.5 · 6, 3 + 0.5 · 8; the unseen row 2 stays
    assert received(FedSSA(), THEIRS, t=0) == [[2, 3], [2, 7], [10, 12]]


def test_sum_fusion_in_the_second_round() -> None:
    # μ = 0.3535534: 1 + 0.7071068, 1 + 1.4142136; -1 + 2.1213203, 3 + 2.8284271
    fused = received(FedSSA(), THEIRS, t=1)
    assert fused[0] == pytest.approx([1.7071068, 2.4142136])
    assert fused[1] == pytest.approx([1.1213203, 5.8284271])
    assert fused[2] == [10, 12]


@pytest.mark.parametrize("t", [2, 3, 50])
@pytest.mark.parametrize("fusion", ["sum", "convex"])
def test_after_the_stable_time_rows_are_replaced(fusion: str, t: int) -> None:
    assert received(FedSSA(fusion=fusion), THEIRS, t) == [[1, 1], [-1, 3], [10, 12]]  # type: ignore[arg-type]


@pytest.mark.parametrize("t", [2, 3])
def test_after_the_stable_time_not_a_trace_of_the_own_row_is_left(t: int) -> None:
    assert received(FedSSA(), {0: [0.0, 1e-30]}, t)[0] == [0.0, pytest.approx(1e-30, rel=1e-6, abs=0)]


def test_convex_fusion() -> None:
    # 0.5 · 1 + 0.5 · 2, 0.5 · 1 + 0.5 · 4; 0.5 · -1 + 0.5 · 6, 0.5 · 3 + 0.5 · 8
    assert received(FedSSA(fusion="convex"), THEIRS, t=0) == [[1.5, 2.5], [2.5, 5.5], [10, 12]]


def test_convex_fusion_is_not_the_sum_with_another_mu() -> None:
    # μ0 = 0.25: 0.75 · 1 + 0.25 · 2, 0.75 · 1 + 0.25 · 4; 0.75 · -1 + 0.25 · 6, 0.75 · 3 + 0.25 · 8
    assert received(FedSSA(fusion="convex", mu0=0.25), THEIRS, t=0)[:2] == [[1.25, 1.75], [0.75, 4.25]]


@pytest.mark.parametrize("t", [0, 1, 9])
def test_replace_fusion(t: int) -> None:
    assert received(FedSSA(fusion="replace"), THEIRS, t) == [[1, 1], [-1, 3], [10, 12]]


def test_a_row_that_did_not_come_stays() -> None:
    assert received(FedSSA(), {1: [-1.0, 3.0]}, t=0) == [[2, 4], [2, 7], [10, 12]]


def test_nothing_received_changes_nothing() -> None:
    client = client_with(MINE, FedSSA())
    FedSSA().receive(client, None, at(0, TASK))
    assert rows_of(client) == MINE


def test_scope_seen_ignores_rows_of_unseen_classes() -> None:
    assert received(FedSSA(), {0: [1.0, 1.0], 2: [5.0, -5.0]}, t=0) == [[2, 3], [6, 8], [10, 12]]


def test_scope_all_fuses_rows_of_unseen_classes() -> None:
    # 5 + 0.5 · 10, -5 + 0.5 · 12
    assert received(FedSSA(scope="all"), THEIRS | {2: [5.0, -5.0]}, t=0) == [[2, 3], [2, 7], [10, 1]]


def test_only_the_header_changes() -> None:
    client = client_with(MINE, FedSSA())
    before = digest({name: x for name, x in client.state().items() if "header" not in name})
    FedSSA().receive(client, rows_message(THEIRS), at(0, TASK))
    assert digest({name: x for name, x in client.state().items() if "header" not in name}) == before


# -- what goes up ----------------------------------------------------------------------------------------------
def uploaded(method: FedSSA) -> dict[str, object]:
    return shown(method.uplink(client_with(MINE, method), at(0, TASK)))


def test_rows_of_seen_classes_go_up() -> None:
    assert uploaded(FedSSA()) == {"classes": [0, 1], "rows": [[2, 4], [6, 8]]}


def test_all_rows_go_up_if_all_are_shared() -> None:
    assert uploaded(FedSSA(shared_rows="all")) == {"classes": [0, 1, 2], "rows": MINE}


def test_counts_go_up_if_they_weigh() -> None:
    # training labels 0 0 0 1
    assert uploaded(FedSSA(class_weights="count")) == {"classes": [0, 1], "rows": [[2, 4], [6, 8]], "counts": [3, 1]}


def test_a_masked_header_has_zeros_for_unseen_classes() -> None:
    assert uploaded(FedSSA(upload_form="masked")) == {"rows": [[2, 4], [6, 8], [0, 0]]}


def test_masked_headers_and_counts_exclude_one_another() -> None:
    with pytest.raises(ValueError, match="masked"):
        FedSSA(upload_form="masked", class_weights="count")


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("upload_form", "num_classes", "num_seen", "numbers"),
    [
        ("rows", 10, 2, 1_002),  # 2 · (500 + 1)
        ("rows", 100, 10, 5_010),  # 10 · (500 + 1)
        ("masked", 10, 2, 5_010),  # 10 · (500 + 1)
        ("masked", 100, 10, 50_100),  # 100 · (500 + 1)
    ],
)
def test_numbers_up_and_down(upload_form: str, num_classes: int, num_seen: int, numbers: int) -> None:
    method = FedSSA(upload_form=upload_form)  # type: ignore[arg-type]
    assert numbers_up_and_down(method, num_classes, num_seen) == (numbers, numbers)


# -- advice ----------------------------------------------------------------------------------------------------
def advice(method: FedSSA, num_rounds: int) -> list[str]:
    return method.advice(at(-1, Task(num_classes=3, input_shape=(4,), width=1, num_rounds=num_rounds)))


def test_a_header_that_will_grow_is_warned_of() -> None:
    # ∏ (1 + 0.5 · cos(t · 9°)), t = 0 … 10: 1.5 · 1.49384 · 1.47553 · 1.44550 · 1.40451 · 1.35355 · 1.29389 ·
    # 1.22700 · 1.15451 · 1.07822 · 1 = 17.96
    (warning,) = advice(FedSSA(mu0=0.5, t_stable=10), num_rounds=100)
    assert "by about 18" in warning
    assert "t_stable = 10" in warning
    assert "\n" not in warning


def test_the_warning_looks_no_further_than_the_run() -> None:
    method = FedSSA(mu0=0.5, t_stable=10)
    assert advice(method, num_rounds=6) == []  # up to t = 5: 9.09
    assert len(advice(method, num_rounds=7)) == 1  # up to t = 6: 11.76


def test_twenty_stable_rounds_multiply_by_hundreds() -> None:
    # ln ∏ = Σ ln(1 + 0.5 · cos(t · 4.5°)), t = 0 … 20, is 5.585: 266
    assert "by about 266" in advice(FedSSA(mu0=0.5, t_stable=20), num_rounds=100)[0]


@pytest.mark.parametrize(
    "method",
    [
        FedSSA(),  # 1.5 · 1.35355 · 1 = 2.03
        FedSSA(mu0=0.5, t_stable=10, fusion="convex"),
        FedSSA(mu0=0.5, t_stable=10, fusion="replace"),
        FedSSA(mu0=0.1, t_stable=10),  # at most 1.1 to the 10th = 2.6
    ],
)
def test_no_warning_where_nothing_grows(method: FedSSA) -> None:
    assert advice(method, num_rounds=500) == []


def test_the_growth_the_warning_tells_is_that_of_a_row() -> None:
    """A client that is alone and does not train: its row is fused with its own upload, round after round."""
    method = FedSSA(mu0=0.5, t_stable=2)
    client = client_with([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], method, train=(0,))
    server = method.server_init(server_at(-1, TASK))
    for t in range(5):
        method.receive(client, method.downlink(server, info(0, 0), server_at(t, TASK)), at(t, TASK))
        upload = Upload(info(0, 0), method.uplink(client, at(t, TASK)))
        server = method.aggregate(server, [upload], server_at(t, TASK))
    # nothing is known in round 0; 1 + 0.3535534 in round 1; then replaced by itself
    assert rows_of(client)[0] == pytest.approx([1 + 0.5 * math.cos(math.pi / 4)] * 2)
