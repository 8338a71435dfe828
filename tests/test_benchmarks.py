"""What `make bench` compares us with does what it says, and its page has every part that was measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.__main__ import PARTS
from benchmarks.federation import ROOT
from benchmarks.goals import GOALS, ROUND, section
from benchmarks.peers.authors import Authors, Pictures
from benchmarks.peers.htfllib import HtFLlib, area_under_curve
from benchmarks.peers.work import Part, Peer, Work
from benchmarks.report import SECTIONS, report
from benchmarks.synthetic import begin, records, settings_of, write_run
from fedssa.core.seeds import one_thread, seeded
from fedssa.report.read.summary import summarise


def part(labels: list[int]) -> Part:
    rng = np.random.default_rng(0)
    return Part(rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), np.array(labels))


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """Peers draw from torch's generator: nets of two channels that happen to be dead would not move."""
    with one_thread(), seeded(0, "start"):
        yield


@pytest.fixture(scope="module")
def work() -> Work:
    """Two clients, of which the second has twice the samples; both hold class 1."""
    peers = [Peer((2, 2, 4), part([0, 1] * n), part([0, 1]), part([1, 0, 1])) for n in (3, 6)]
    return Work(peers, batch_size=4, lr=0.1, momentum=0.9, mus=[0.5, 0.0])


def test_the_authors_average_rows_class_by_class(work: Work) -> None:
    authors = Authors(work, augment=True)
    assert all(0 <= accuracy <= 1 for accuracy in authors.round())
    weight = authors._header[0]
    own = [state[weight] for state in authors._states]
    assert torch.equal(authors._rows[weight][1], (own[0][1] + own[1][1]) / 2)
    assert not torch.equal(authors._rows[weight][0], authors._rows[weight][1])


def test_the_authors_change_pictures_to_train_on_only() -> None:
    plain, changed = (Pictures(part([0] * 8), augment=augment) for augment in (False, True))
    assert torch.equal(plain[3][0], plain[3][0])
    assert any(not torch.equal(plain[i][0], changed[i][0]) for i in range(8))
    assert changed[0][0].shape == (3, 32, 32)


def test_all_clients_of_htfllib_take_the_mean_header(work: Work, tmp_path: Path) -> None:
    peer = HtFLlib(work, tmp_path)
    before = [peer._load(k, has).state_dict() for k, has in enumerate(work.clients)]
    scores = peer.round()
    first, second = (peer._load(k, has).state_dict() for k, has in enumerate(work.clients))
    assert len(scores) == 2
    assert torch.equal(first["11.weight"], second["11.weight"])
    assert not torch.equal(first["0.weight"], before[0]["0.weight"])
    assert not torch.equal(second["0.weight"], before[1]["0.weight"])


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [([[0.9, 0.1], [0.2, 0.8]], 1.0), ([[0.9, 0.1], [0.95, 0.8]], 0.5), ([[0, 1], [3, 2]], 0.25)],
)
def test_the_area_is_the_share_of_pairs_in_order(outputs: list[list[float]], expected: float) -> None:
    assert area_under_curve(np.eye(2), np.array(outputs)) == expected


def test_a_made_run_is_read_like_any_other(tmp_path: Path) -> None:
    run_dir = begin(tmp_path / "run", settings_of(57, 20, 4))
    write_run(run_dir, records(20, 4))
    summary = summarise(run_dir)
    assert (summary.outcome, summary.rounds_done, summary.num_heard) == ("finished", 4, 20)
    assert (summary.method, summary.seed, summary.traffic.num_participations) == ("fedproto", 1, 40)


def test_every_part_that_is_measured_has_its_place_on_the_page() -> None:
    assert SECTIONS.keys() == PARTS.keys()
    machine = {"cpu": "one", "cores": 2, "torch": "2", "kernel": "c", "created": "2026-11-17T00:00"}
    rows = [{"batch": 64, "ours": 1.0, "htfllib": 3, "authors": 4.5, "ours, augmented": 2.0, "authors, augmented": 7.0}]
    sizes = [
        {"clients": n, "round": 1.0, "memory": 1e9, "disk": 2e9, "start": 0.1, "resume": 1.0} for n in (100, 100_000)
    ]
    page = report({"machine": machine, "peers": {"peak": 8e10, "rows": rows}, "sizes": sizes}, "noise")
    assert "| the authors' loop as published, augmented | 7.00 | **3.50** |" in page
    assert "| 100,000 | 1.00 | 1.00 | 1.00 | 2.00 | 0.1 | 1.0 |" in page
    assert "Flower" not in page


def test_a_goal_that_is_missed_says_what_is_in_the_way() -> None:
    assert {goal.part for goal in GOALS} <= PARTS.keys()
    rows = [
        {"batch": 64, "ours": 1.0, "htfllib": 3.0, "authors": 4.0, "ours, augmented": 2.0, "authors, augmented": 9.0}
    ]
    lines = section({"peers": {"rows": rows}, "report": {"seconds": 10.1}})[1].splitlines()[2:]
    assert lines[0].endswith("| ≥ 4.00 | **4.50** | reached |")
    assert lines[1].endswith("| ≥ 4.00 | **4.00** | reached |")
    assert lines[2] == f"| HtFLlib's loop, times ours | ≥ 4.00 | 3.00 | missed: {ROUND} |"
    assert lines[3].startswith("| a report over 500 runs, CPU seconds | ≤ 10.0 | 10.1 | missed: ")
    assert len(lines) == 4  # others were not measured


def test_the_first_page_says_what_was_measured() -> None:
    page = " ".join((ROOT.parent / "README.md").read_text().split())
    told = _told(json.loads((ROOT / "results.json").read_text()))
    assert (
        f"our training loop takes {told['loops']} times the samples a second of a plain PyTorch loop on the paper's "
        f"CNNs, at {told['share']} of what that core can multiply" in page
    )
    assert f"takes {told['authors']} times as long in the authors' loop, {told['htfllib']} in HtFLlib's" in page
    assert f"and {told['flower']} in Flower's simulation on two cores" in page


def _told(measured: dict[str, Any]) -> dict[str, str]:
    rows = [row for row in measured["loops"]["rows"] if row["batch"] == 64]
    loops, shares = ([row[key] for row in rows] for key in ("c_ratio", "executed_share"))
    *authors, htfllib, flower = [goal.measured(measured[goal.part]) for goal in GOALS][:4]
    low, high = sorted(authors)
    return {
        "loops": f"{min(loops):.2f} to {max(loops):.2f}",
        "share": f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %",
        "authors": f"{low:.1f} to {high:.1f}",
        "htfllib": f"{htfllib:.1f}",
        "flower": f"{flower:.1f}",
    }


def test_the_page_says_what_was_measured() -> None:
    measured = json.loads((ROOT / "results.json").read_text())
    assert (ROOT / "results.md").read_text() == report(measured, "CIFAR-10")


def test_what_grows_is_compared_with_what_it_has_to_do() -> None:
    """Ten times the classes in six times the time, for six times the FLOPs: nothing of it is ours."""
    classes = [{"round": 1.0, "flops": 1.0, "state": 1.0}, {"round": 6.0, "flops": 6.0, "state": 3.0}]
    of_rounds = [{"rounds": n, "write": n * 1e-3, "resume": n * n * 1e-5, "report": 1.0} for n in (100, 10_000)]
    told = {goal.part: goal.measured for goal in GOALS}
    assert told["classes"](classes) == 1.0
    assert told["rounds"](of_rounds) == pytest.approx(100)
