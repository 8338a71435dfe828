import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedssa.records import SHAKING, Outcome
from fedssa.report.read.costs import Traffic
from fedssa.report.read.summary import (
    BestRound,
    comparable,
    paired_difference,
    run_names,
    summarise,
    summarise_clients,
)
from fedssa.runs.directory import RunDir
from tests.report.fake_runs import Accuracy, make_run, settings

# three clients, two of them in each round; validation peaks in round 1, and again in round 2
ROUNDS: list[dict[int, Accuracy]] = [
    {0: 0.1, 1: 0.2, 2: 0.3},
    {0: (0.4, 0.5), 1: (0.5, 0.4)},
    {1: (0.9, 0.8), 2: (0.2, 0.5)},
    {0: (0.7, 0.4), 2: (0.5, 0.6)},
]


def test_every_number(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "first", ROUNDS, settings("fedssa", seed=7))
    run_dir.write_outcome(Outcome("finished", t=2))
    summary = summarise(run_dir)
    assert (summary.method, summary.seed) == ("fedssa", 7)
    assert (summary.rounds_done, summary.rounds_total, summary.outcome) == (3, 3, "finished")
    assert (summary.num_heard, summary.num_clients) == (3, 3)
    assert summary.accuracies == {0: 0.7, 1: 0.9, 2: 0.5}
    assert summary.accuracy == pytest.approx(0.7)
    assert summary.start_accuracy == pytest.approx(0.2)
    assert [rounds for rounds, _ in summary.curve] == [0, 1, 2, 3]
    assert [accuracy for _, accuracy in summary.curve] == pytest.approx([0.2, 0.4, 1.5 / 3, 0.7])
    assert summary.std_over_clients == pytest.approx(math.sqrt(0.08 / 3))
    assert summary.worst_client == (2, 0.5)
    assert summary.best_client == (1, 0.9)
    # 6 participations: 60 numbers up; 5 down in all but the two of round 0
    assert summary.traffic == Traffic(60, 20, 6 * 44, 4 * 24, 6)
    assert (summary.traffic.numbers, summary.traffic.bytes) == (80, 360)
    assert summary.traffic.numbers_per_participation == pytest.approx(80 / 6)
    assert summary.seconds_per_round == 2.0  # of 1, 2, 3; the start's 100 is not a round
    assert summary.header_norm == pytest.approx((2.5 + 4.5) / 2)  # clients 0 and 2 in round 2
    assert (summary.target, summary.target_round) == (None, None)
    assert summary.participations == {0: 2, 1: 2, 2: 2}
    assert summary.header_norms == pytest.approx(((0.5 + 1.5) / 2, (2.5 + 3.5) / 2, (2.5 + 4.5) / 2))


def test_what_the_last_record_says_of_the_method(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", ROUNDS, second="received")
    metrics: list[dict[str, float]] = [{}, {"moved": 1}, {"moved": 2, SHAKING: 0.5}, {"moved": 4, SHAKING: 0.25}]
    told = [replace(record, metrics=said) for record, said in zip(run_dir.records(), metrics, strict=True)]
    summary = summarise(run_dir, told)
    assert summary.events == {"moved": 4}
    assert summary.shaking == (None, 0.5, 0.25)
    assert summary.kinds == pytest.approx({"head": 0.7, "received": 0.35})


def test_a_client_that_was_heard_before_the_first_round_alone_took_part_in_none(tmp_path: Path) -> None:
    assert summarise(make_run(tmp_path / "run", [{1: 0.2, 0: 0.1}, {1: 0.5}])).participations == {0: 0, 1: 1}


def test_messages_are_summed_over_the_timings_that_count_them(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", ROUNDS[:2])
    assert summarise(run_dir).messages is None
    run_dir.append_timing({"t": 1, "seconds": 1.0, "message_bytes_up": 100, "message_bytes_down": 7})
    run_dir.append_timing({"t": 2, "seconds": 1.0, "message_bytes_up": 20, "message_bytes_down": 4000})
    run_dir.append_timing({"t": 3, "seconds": 1.0, "message_bytes_up": 5000})
    run_dir.append_timing({"t": 4, "seconds": "?", "message_bytes_up": 5000, "message_bytes_down": 1})
    assert summarise(run_dir).messages == (120, 4007)


def test_best_round_is_the_first_of_ties_and_told_by_its_test_accuracy(tmp_path: Path) -> None:
    # validation: (0.5 + 0.4 + 0.3)/3, then (0.5 + 0.8 + 0.5)/3 = 0.6 = (0.4 + 0.8 + 0.6)/3; test is better at the end
    best = summarise(make_run(tmp_path / "run", ROUNDS)).best_round
    assert best is not None
    assert best.t == 1
    assert (best.val, best.test) == pytest.approx((0.6, 0.5))


def test_start_is_not_a_round_to_choose_and_clients_without_validation_do_not_count(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", [{0: 1.0, 1: (1.0, None)}, {0: (0.3, 0.2)}, {1: (0.9, None)}, {0: (0.2, 0.1)}])
    assert summarise(run_dir).best_round == BestRound(0, 0.2, 0.65)
    blind = make_run(tmp_path / "blind", [{}, {0: (0.3, None)}])
    assert summarise(blind).best_round is None


def test_target(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{0: a} for a in (0.1, 0.6, 0.4, 0.5, 0.6, 0.7)]
    table = settings(rounds__total=5, run__target=0.5)
    assert summarise(make_run(tmp_path / "run", rounds, table)).target_round == 2
    assert summarise(make_run(tmp_path / "short", rounds[:-1], table)).target_round is None


def test_best_and_worst_clients_are_the_lowest_ids_of_ties(tmp_path: Path) -> None:
    summary = summarise(make_run(tmp_path / "run", [{2: 0.5, 1: 0.5, 0: 0.5}]))
    assert (summary.worst_client, summary.best_client) == ((0, 0.5), (0, 0.5))


def test_no_records(tmp_path: Path) -> None:
    summary = summarise(make_run(tmp_path / "run", []))
    assert (summary.outcome, summary.rounds_done, summary.num_heard) == ("not finished", 0, 0)
    assert (summary.accuracies, summary.curve) == ({}, ())
    assert summary.traffic == Traffic(0, 0, 0, 0, 0)
    nothing = (summary.accuracy, summary.start_accuracy, summary.best_round, summary.std_over_clients)
    assert nothing == (None,) * 4
    nothing_more = (summary.worst_client, summary.best_client, summary.seconds_per_round, summary.header_norm)
    assert nothing_more == (None,) * 4
    assert summary.traffic.numbers_per_participation is None


def test_start_that_was_not_measured(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", [{}], settings(run__evaluate_start=False))
    summary = summarise(run_dir)
    assert (summary.accuracy, summary.num_heard, summary.rounds_done) == (None, 0, 0)
    one_heard = make_run(tmp_path / "one", [{}, {2: 0.4}], settings(run__evaluate_start=False))
    summary = summarise(one_heard)
    assert (summary.accuracy, summary.start_accuracy, summary.num_heard) == (0.4, None, 1)
    assert summary.curve == ((1, 0.4),)


def test_torn_line_is_a_round_that_has_not_happened(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", ROUNDS)
    for file in (run_dir.rounds_file, run_dir.timings_file):
        file.write_bytes(file.read_bytes()[:-5])
    summary = summarise(RunDir.open(run_dir.path))
    assert (summary.outcome, summary.rounds_done, summary.accuracy) == ("not finished", 2, 0.5)
    assert summary.seconds_per_round == 1.5


def test_diverged(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", ROUNDS[:2])
    run_dir.write_outcome(Outcome("diverged", "client 1 diverged in round 1", 1, 1))
    summary = summarise(run_dir)
    assert (summary.outcome, summary.rounds_done) == ("diverged, round 1", 1)
    assert summary.accuracy == pytest.approx(0.4)


def test_clients(tmp_path: Path) -> None:
    clients = summarise_clients(make_run(tmp_path / "run", ROUNDS).records())
    assert list(clients) == [0, 1, 2]
    assert [client.last_round for client in clients.values()] == [2, 1, 2]
    assert clients[1].last.scores.headline == 0.9
    assert clients[1].traffic == Traffic(20, 5, 88, 24, 2)
    late = make_run(tmp_path / "late", [{}, {2: 0.1}, {1: 0.1, 0: 0.1}])
    assert list(summarise_clients(late.records())) == list(summarise(late).accuracies) == [0, 1, 2]
    assert summarise_clients(make_run(tmp_path / "start", ROUNDS[:1]).records())[0].traffic.num_participations == 0


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / path, []) for path in ("a/fedssa", "b/fedssa", "b/fml")]
    assert run_names(runs) == [str(tmp_path / "a/fedssa"), str(tmp_path / "b/fedssa"), "fml"]


def test_paired_difference(tmp_path: Path) -> None:
    a = summarise(make_run(tmp_path / "a", [{0: 0.5, 1: 0.7, 2: 0.9}]))
    b = summarise(make_run(tmp_path / "b", [{0: 0.4, 1: 0.5, 2: 0.6}], settings("standalone")))
    # 0.1, 0.2, 0.3: their standard deviation is 0.1
    assert paired_difference(a, b) == pytest.approx((0.2, 0.1 / math.sqrt(3), 3))
    assert paired_difference(b, a) == pytest.approx((-0.2, 0.1 / math.sqrt(3), 3))


def test_paired_difference_is_over_the_clients_that_both_have_heard(tmp_path: Path) -> None:
    a = summarise(make_run(tmp_path / "a", [{}, {0: 0.5, 1: 0.7}]))
    b = summarise(make_run(tmp_path / "b", [{}, {1: 0.5, 2: 0.6}]))
    assert paired_difference(a, b) == pytest.approx((0.2, None, 1))
    assert paired_difference(a, summarise(make_run(tmp_path / "c", [{}, {2: 0.6}]))) is None


def test_only_the_method_may_differ(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{0: 0.5, 1: 0.5}]
    a = summarise(make_run(tmp_path / "a", rounds))
    same = settings("fedproto", method__lam=0.1)
    assert comparable(a, summarise(make_run(tmp_path / "same", rounds, same)))
    kept = settings("fedproto", run__keep_models=False)  # as fedssa compare does, and fedssa run does not
    a_kept = summarise(make_run(tmp_path / "kept", rounds, settings(run__keep_models=True)))
    assert comparable(a_kept, summarise(make_run(tmp_path / "not-kept", rounds, kept)))
    others = [
        make_run(tmp_path / "seed", rounds, settings(seed=1)),
        make_run(tmp_path / "epochs", rounds, settings(local__epochs=2)),
        make_run(tmp_path / "data", rounds, digest="other"),
    ]
    for other in map(summarise, others):
        assert not comparable(a, other)
        assert paired_difference(a, other) is None


def test_reports_start_without_heavy_packages() -> None:
    names = ("read.summary", "figures.pictures", "tables.terminal", "page.report")
    modules = ", ".join(f"fedssa.report.{name}" for name in names)
    heavy = "{'torch', 'matplotlib', 'pydantic', 'PIL', 'jinja2', 'sklearn'}"
    code = f"import sys, {modules}; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
