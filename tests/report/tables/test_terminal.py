from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from fedssa.records import Outcome
from fedssa.report.read.comparison import compare_methods
from fedssa.report.read.summary import RunSummary, summarise
from fedssa.report.tables.clients import clients_table
from fedssa.report.tables.comparison import comparison_tables
from fedssa.report.tables.fitted import Fitted
from fedssa.report.tables.terminal import partition_table, run_table, runs_table
from tests.report.fake_runs import (
    Accuracy,
    finished_run,
    make_run,
    settings,
    with_about,
    with_counts,
    with_flops,
    without_numbers,
)


def lines_of(table: RenderableType, width: int = 200) -> list[list[str]]:
    """The words of each line, as they would come through a pipe."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    assert "\x1b" not in capture.get()
    return [line.split() for line in capture.get().splitlines() if line.strip()]


def row_of(table: RenderableType, first: str) -> list[str]:
    return next(words for words in lines_of(table) if words[0] == first)


def test_runs(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.5, 1: 0.7, 2: 0.9}])
    second = make_run(tmp_path / "second", [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.4, 1: 0.5, 2: 0.6}], settings("standalone"))
    for run_dir in (first, second):
        run_dir.write_outcome(Outcome("finished", t=0))
    table = runs_table([summarise(first), summarise(second)])
    assert row_of(table, "first")[:6] == ["first", "(fedssa)", "70.0", "first", "70.0", "30"]
    assert row_of(table, "first")[6:] == ["132", "1.50", "1", "finished"]
    assert row_of(table, "second")[1:6] == ["(standalone)", "50.0", "-20.0", "±", "5.8"]


def test_runs_that_cannot_be_compared_have_no_difference(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.5}, {1: 0.5}]
    first = summarise(make_run(tmp_path / "first", rounds))
    other_seed = summarise(make_run(tmp_path / "other", rounds, settings("standalone", seed=1)))
    fewer_rounds = summarise(make_run(tmp_path / "fewer", rounds[:2], settings("standalone")))
    table = runs_table([first, other_seed, fewer_rounds])
    assert row_of(table, "other")[3] == "–"
    assert row_of(table, "fewer")[3] == "–"


def test_outcomes(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "begun", [{}, {0: 0.5}], settings(run__target=0.4))
    empty = make_run(tmp_path / "empty", [])
    diverged = make_run(tmp_path / "diverged", [{0: 0.5, 1: 0.5, 2: 0.5}])
    diverged.write_outcome(Outcome("diverged", "", 0, 1))
    reached = make_run(tmp_path / "reached", [{0: 0.5, 1: 0.5, 2: 0.5}] * 4, settings(run__target=0.4))
    table = runs_table([summarise(run) for run in (begun, empty, diverged, reached)])
    outcome = {words[0]: " ".join(words) for words in lines_of(table)}
    assert outcome["begun"].endswith("not finished, 1/3 rounds, 1/3 clients heard, target not reached")
    assert outcome["empty"].endswith("not finished, 0/3 rounds, 0/3 clients heard")
    assert outcome["diverged"].endswith("diverged, round 0")
    assert outcome["reached"].endswith("target reached in round 0")


def test_names_are_not_markup(tmp_path: Path) -> None:
    summary = summarise(make_run(tmp_path / "[bold]x", [{0: 0.5}]))
    assert row_of(runs_table([summary]), "[bold]x")
    assert any("[bold]x" in word for line in lines_of(run_table(summary)) for word in line)


def test_runs_fit_80_columns(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a-first-run", [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.5, 1: 0.7, 2: 0.9}])
    second = make_run(tmp_path / "another-run", [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 1.0, 1: 0.5, 2: 0.6}])
    words = [word for line in lines_of(runs_table([summarise(first), summarise(second)]), width=80) for word in line]
    assert {"a-first-run", "another-run", "70.0", "+0.0", "30", "1.50", "finished,"} <= set(words)
    assert not any("…" in word for word in words)


def test_names_of_runs_are_whole_on_80_columns(tmp_path: Path) -> None:
    """Where they are long, other columns give way, and a line tells which."""
    rounds: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.5, 1: 0.7, 2: 0.9}]
    names = ["fedssa-t_stable=10-s0", "standalone-scaled-s0", "a-third-run-of-quite-a-long-name"]
    runs = [summarise(finished_run(tmp_path / name, rounds, second="prototype")) for name in names]
    shown = lines_of(runs_table(runs), width=80)
    rows = {words[0]: words for words in shown}
    assert all("70.0" in rows[name] and "35.0" in rows[name] for name in names)
    assert any(words[:5] == ["A", "wider", "terminal", "also", "shows:"] for words in shown)
    assert not any("…" in word for words in shown for word in words)


def test_one_run(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.1, 2: 0.1}, {0: 0.5, 1: 0.7, 2: 0.9}]
    summary = summarise(make_run(tmp_path / "run", rounds, settings(seed=3, run__target=0.95)))
    text = "\n".join(" ".join(words) for words in lines_of(run_table(summary)))
    for fact in (
        "method fedssa, seed 3",
        "accuracy 70.0 % over 3 of 3 clients",
        "before training 10.0 %",
        "worst client 50.0 % (client 0)",
        "best client 90.0 % (client 2)",
        "spread over clients 16.3 points",
        "numbers sent 30 (up 30, down 0)",
        "bytes sent 132 (up 132, down 0)",
        "target 95.0 %, not reached",
    ):
        assert fact in text
    lines_of(run_table(summarise(make_run(tmp_path / "empty", []))))


def test_flops_of_a_run_are_told_by_kind_where_they_were_counted(tmp_path: Path) -> None:
    """Two rounds of two clients."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7}]
    run_dir = make_run(tmp_path / "run", rounds)
    told = {" ".join(words) for words in lines_of(run_table(summarise(run_dir)))}
    assert not any("FLOPs" in line for line in told)
    told = {" ".join(words) for words in lines_of(run_table(summarise(with_flops(run_dir, 1_000))))}
    assert {line for line in told if "FLOPs" in line} == {"training FLOPs 4 k"}
    summary = summarise(with_flops(run_dir, 1_000, server=5_000_000, tuning=30))
    told = {" ".join(words) for words in lines_of(run_table(summary))}
    expected = {"training FLOPs 4 k", "server FLOPs 10 M", "tuning FLOPs 120"}
    assert {line for line in told if "FLOPs" in line} == expected


def test_a_comparison_has_bytes_and_flops_by_kind_and_fits_80_columns(tmp_path: Path) -> None:
    """Three clients; 30 numbers go up in both rounds and 15 down in the second, 132 and 72 bytes: 37.5 and 168."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.5, 1: 0.7, 2: 0.9}]
    alone = with_flops(finished_run(tmp_path / "alone", rounds, settings("standalone")), 1_000)
    trained = with_flops(finished_run(tmp_path / "fedgh", rounds, settings("fedgh")), 1_000, server=7_000)
    runs = [summarise(alone), summarise(trained)]
    shown = lines_of(comparison_tables(compare_methods(runs[:1], "standalone"), "standalone"), width=80)
    assert shown[-2] == ["standalone", "38", "168", "3", "k", "–", "–", "–"]
    assert " ".join(shown[-1]) == "No method reached the target."
    both = lines_of(comparison_tables(compare_methods(runs, "standalone"), "standalone"), width=81)
    assert ["server"] in both
    assert ["numbers", "bytes", "FLOPs", "FLOPs", "rounds", "numbers", "FLOPs"] in both
    assert both[-3:-1] == [
        ["standalone", "38", "168", "3", "k", "–", "–", "–", "–"],
        ["fedgh", "38", "168", "3", "k", "7", "k", "–", "–", "–"],
    ]
    assert not any("…" in word for words in both for word in words)


def test_a_comparison_of_one_seed_has_a_line_a_method_on_80_columns(tmp_path: Path) -> None:
    """That there is no verdict stands once, below the table."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    runs = [summarise(finished_run(tmp_path / name, rounds, settings(name))) for name in ("standalone", "fedproto")]
    rows = compare_methods(runs, "standalone", lambda run: "standalone" if run is runs[0] else "fedproto:weight=10")
    shown = [" ".join(words) for words in lines_of(comparison_tables(rows, "standalone"), width=80)]
    assert shown[3].startswith("standalone 70.0")
    assert shown[4].startswith("fedproto:weight=10 70.0")
    assert shown[5].startswith("One seed: there are no verdicts")
    assert not any("no interval" in line for line in shown)


def first_left_out(table: Fitted) -> str:
    """The column that goes first as a terminal becomes narrower."""
    shown = (" ".join(lines_of(table, width)[-1]) for width in range(120, 20, -1))
    return next(line.partition(": ")[2] for line in shown if line.startswith("A wider terminal also shows: "))


def test_bytes_are_seen_where_a_method_sends_no_number(tmp_path: Path) -> None:
    """Where a line is short, they stay and the header's norm goes; without them it is the reverse."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}, {0: 0.5, 1: 0.7, 2: 0.9}]
    usual = finished_run(tmp_path / "fedssa", rounds, settings("fedssa"))
    labels = without_numbers(finished_run(tmp_path / "cfd", rounds, settings("cfd")))
    table = runs_table([summarise(usual), summarise(labels)])
    assert lines_of(table, 80)[1][1:] == ["%", "±", "s.e.", "val.", "%", "sent", "sent", "norm", "round", "outcome"]
    assert row_of(table, "fedssa")[4:6] == ["75", "336"]  # 30 numbers up twice and 15 down once, 132 and 72 bytes
    assert row_of(table, "cfd")[-5:-1] == ["0", "336", "2.50", "1.5"]
    assert row_of(clients_table(labels), "0")[-2:] == ["112", "0"]
    assert row_of(clients_table(usual), "0")[-3:] == ["1.50", "112", "25"]
    assert first_left_out(table) == "header norm"
    assert first_left_out(runs_table([summarise(usual)])) == "bytes sent"
    assert first_left_out(clients_table(labels)) == "header norm"
    assert first_left_out(clients_table(usual)) == "bytes sent"
    runs = [summarise(with_flops(run_dir, 1_000, server=7_000)) for run_dir in (usual, labels)]
    compared = lines_of(comparison_tables(compare_methods(runs, "fedssa"), "fedssa"), width=50)
    assert [words[:3] for words in compared if words[0] == "cfd"][-1] == ["cfd", "0", "168"]


def test_p_stands_beside_the_numbers_of_methods_that_use_public_samples(tmp_path: Path) -> None:
    """All of a set whose size an older directory does not tell are "all"."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    twenty, every = {"name": "slice", "share": 0.1, "per_round": 20}, {"name": "slice", "share": 0.1, "per_round": 0}
    alone = finished_run(tmp_path / "alone", rounds, settings("standalone", public=twenty))
    ours = finished_run(tmp_path / "ours", rounds, settings("ds-fl", public=twenty))
    whole = with_about(finished_run(tmp_path / "whole", rounds, settings("cfd", public=every)), public_samples=179)
    older = finished_run(tmp_path / "older", rounds, settings("mine:Own", public=every))
    runs = [summarise(run_dir) for run_dir in (alone, ours, whole, older)]
    compared = lines_of(comparison_tables(compare_methods(runs, "standalone"), "standalone"), width=60)
    costs = {words[0]: words[1] for words in compared if len(words) > 1}  # the second table's rows come last
    assert {name: costs[name] for name in ("standalone", "ds-fl", "cfd", "mine:Own")} == {
        "standalone": "–",
        "ds-fl": "20",
        "cfd": "179",
        "mine:Own": "all",
    }
    shown = {words[0]: words for words in lines_of(runs_table(runs), 120)}
    assert [shown[name][-4] for name in ("alone", "ours", "whole", "older")] == ["–", "20", "179", "all"]
    for run, line in zip(runs, (None, "P = 20 a round", "P = 179 a round", "P = all a round"), strict=True):
        told = [" ".join(words) for words in lines_of(run_table(run))]
        assert [text for text in told if text.startswith("public")] == ([f"public samples {line}"] if line else [])
    plain = lines_of(comparison_tables(compare_methods([summarise(alone)], "standalone"), "standalone"), width=60)
    assert not any("P" in words for words in plain)


def test_who_trains_on_public_labels_is_told_from_the_control_that_does_so_alone(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    public = {"name": "slice", "share": 0.1, "per_round": 20}
    names = ("standalone", "fedmd", "fedgem", "ds-fl", "fedkemf", "standalone-public")
    runs = [summarise(finished_run(tmp_path / name, rounds, settings(name, public=public))) for name in names]
    told = "Public labels are more data to train on: compare fedmd, fedgem with standalone-public"

    def shown(chosen: list[RunSummary]) -> str:
        lines = lines_of(comparison_tables(compare_methods(chosen, "standalone"), "standalone"), width=150)
        return "\n".join(" ".join(words) for words in lines)

    assert told in shown(runs[:-1])
    assert "Public labels" not in shown(runs)
    assert "Public labels" not in shown([runs[0], runs[3], runs[4]])
    mixed = settings("fedkemf", public=public, method__label_weight=0.5)
    assert "compare fedkemf with" in shown([runs[0], summarise(finished_run(tmp_path / "mixed", rounds, mixed))])


def test_a_method_without_a_finished_run_has_dashes_for_its_costs(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    trained = with_flops(finished_run(tmp_path / "fedgh", rounds, settings("fedgh")), 1_000, server=7_000)
    going = make_run(tmp_path / "going", rounds, settings("fml"))
    rows = compare_methods([summarise(trained), summarise(going)], "fedgh")
    shown = lines_of(comparison_tables(rows, "fedgh"))
    assert " ".join(shown[-1]) == "Did not reach the target: fedgh."
    assert shown[-2] == [
        "fml",
        *["–"] * 7,
    ]  # numbers, bytes and two kinds of FLOPs a round, three columns to the target
    assert ["fml", "–", "–", "–", "not", "finished"] in shown


def test_the_longest_name_of_a_comparison_is_whole_where_the_line_is_short(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    names = ["fd", "seventeen-letters"]
    made = [finished_run(tmp_path / name, rounds, settings(name), second="received") for name in names]
    runs = [summarise(with_flops(run_dir, 1_000, server=7_000)) for run_dir in made]
    shown = lines_of(comparison_tables(compare_methods(runs, "fd"), "fd"), width=80)
    assert [words[0] for words in shown if words[0] in names] == names * 2


def test_at_80_columns_a_comparison_leaves_columns_out_and_cuts_no_word(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    names = ["standalone", "fedssa-with-a-name-of-32-letters"]
    runs = []
    for name in names:
        for seed in (0, 1):
            made = finished_run(tmp_path / f"{name}{seed}", rounds, settings(name, seed=seed), second="prototype")
            runs.append(summarise(with_counts(with_flops(made, 1_000, server=7_000), (3, 4))))
    table = comparison_tables(compare_methods(runs, "standalone"), "standalone")
    for width in (80, 100):
        shown = lines_of(table, width)
        for name in names:
            assert next(words[:4] for words in shown if words[0] == name) == [name, "70.0", "±", "0.0"]
        assert not any("…" in word for words in shown for word in words)
        assert "standalone" in shown[0]  # the difference
        assert any(
            words[:5] == ["A", "wider", "terminal", "also", "shows:"] and "prototype" in words for words in shown
        )
    assert {"prototype", "macro"} < set(lines_of(table, 200)[0])


def test_second_accuracies_are_columns_of_their_own(tmp_path: Path) -> None:
    """A method may predict in two ways; a run that has only one has a dash in the column of the other."""
    rounds: list[dict[int, Accuracy]] = [{}, {0: 0.5, 1: 0.7, 2: 0.9}]
    averaged = finished_run(tmp_path / "averaged", rounds, settings("fedavg"), second="[received]")
    alone = finished_run(tmp_path / "alone", rounds, settings("standalone"))
    table = runs_table([summarise(averaged), summarise(alone)])
    assert "[received]" in lines_of(table)[0]
    assert row_of(table, "averaged")[:5] == ["averaged", "(fedavg)", "70.0", "35.0", "first"]
    assert row_of(table, "alone")[:4] == ["alone", "(standalone)", "70.0", "–"]
    assert len(lines_of(runs_table([summarise(alone)]))[0]) == len(lines_of(table)[0]) - 1
    assert ["accuracy,", "[received]", "35.0", "%"] in lines_of(run_table(summarise(averaged)))
    assert not any("received" in line for line in map(str, lines_of(run_table(summarise(alone)))))
    clients = clients_table(averaged)
    assert "[received]" in lines_of(clients)[0]
    assert row_of(clients, "1")[:5] == ["1", "cnn-2", "70.0", "35.0", "10"]
    compared = comparison_tables(compare_methods([summarise(averaged), summarise(alone)], "standalone"), "standalone")
    assert "[received]" in lines_of(compared)[0]
    assert row_of(compared, "fedavg")[:3] == ["fedavg", "70.0", "35.0"]
    assert row_of(compared, "standalone")[:3] == ["standalone", "70.0", "–"]


def test_clients(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", [{}, {0: (0.5, 0.25)}, {0: (0.7, None)}, {1: 0.4}])
    table = clients_table(run_dir)
    assert row_of(table, "0") == ["0", "cnn-1", "70.0", "10", "–", "2", "1", "1.500", "1.50", "112", "25"]
    assert row_of(table, "1") == ["1", "cnn-2", "40.0", "10", "40.0", "1", "2", "1.500", "3.50", "68", "15"]
    assert row_of(table, "2") == ["2", "cnn-1", *["–"] * 9]
    started = clients_table(make_run(tmp_path / "start", [{0: 0.5}]))
    assert row_of(started, "0") == ["0", "cnn-1", "50.0", "10", "50.0", "0", "start", "–", "–", "0", "0"]


def test_a_narrow_terminal_shows_fewer_columns_of_clients_and_cuts_no_name(tmp_path: Path) -> None:
    run_dir = with_counts(make_run(tmp_path / "run", [{}, {0: 0.5, 1: 0.5, 2: 0.5}]), (4, 1), auc=0.75)
    names = ("[red]a very long name of a hospital in the land, ward $1_2$", ":smile:", "c")
    table = clients_table(replace(run_dir, client_names=names))
    narrow = lines_of(table, 80)
    # of both classes 5 samples: recall 0.8 and 0.2, F1 8/13 and 2/7
    assert " ".join(row_of(table, "c")).startswith("c cnn-1 50.0 10 50.0 50.0 % 45.1 % 0.75 1 0 1.500 ")
    assert " ".join(narrow[3]) == f"{names[0]} 50.0 10"
    assert narrow[4] == [":smile:", "50.0", "10"]
    told = "A wider terminal also shows: model, val. %, balanced accuracy, macro F1, auc,"
    assert " ".join(narrow[-2]).startswith(told)


def test_many_clients_are_cut_and_the_rest_summed_up(tmp_path: Path) -> None:
    rounds: list[dict[int, Accuracy]] = [{}, {k: 1.0 if k < 39 else 0.5 for k in range(60)}]
    run_dir = make_run(tmp_path / "run", rounds, settings(partition__clients=60))
    table = clients_table(run_dir)
    assert table.num_rows == 40
    assert row_of(table, "…") == ["…", "21", "more", "50.0", "210", "21", "924", "210"]
    assert clients_table(run_dir, show_all=True).num_rows == 60
    second = make_run(tmp_path / "second", rounds, settings(partition__clients=60), second="prototype")
    assert row_of(clients_table(second), "…")[3:5] == ["50.0", "25.0"]
    unheard = make_run(tmp_path / "unheard", [{}], settings(partition__clients=60))
    assert row_of(clients_table(unheard), "…") == ["…", "21", "more", *["–"] * 9]


def test_partition() -> None:
    counts = np.array([[8, 0, 16], [0, 1000, 4]])
    splits = np.array([[24, 3, 3], [1004, 125, 126]])
    table = partition_table(counts, splits, ["cnn-1"], ["cat", "[dog]", "owl"])
    assert row_of(table, "0") == ["0", "cnn-1", "24", "3", "3", "2", "cat:", "8,", "owl:", "16"]
    assert row_of(table, "1") == ["1", "cnn-1", "1,004", "125", "126", "2", "[dog]:", "1,000,", "owl:", "4"]
    assert row_of(table, "all")[:6] == ["all", "2", "1,028", "128", "129", "3"]


@pytest.mark.parametrize(("num_clients", "shown"), [(40, 40), (41, 39), (1000, 39)])
def test_large_partition(num_clients: int, shown: int) -> None:
    counts = np.ones((num_clients, 100), dtype=int)
    splits = np.tile([100, 10, 10], (num_clients, 1))
    names = [f"class {s}" for s in range(100)]
    lines = lines_of(partition_table(counts, splits, ["mlp"], names), width=80)
    assert sum(words[0].isdigit() for words in lines) == shown  # a line each, however many classes
    more = [words for words in lines if words[:1] == ["…"]]
    rest = num_clients - shown
    assert [words[1:6] for words in more] == (
        [[str(rest), "more", f"{100 * rest:,}", *[f"{10 * rest:,}"] * 2]] * (rest > 0)
    )
    assert partition_table(counts, splits, ["mlp"], names, show_all=True).row_count == num_clients + 1
