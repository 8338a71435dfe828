"""The whole report from runs made by hand: what it says, what it leaves out, and where it may be written."""

import csv
import io
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from fedssa.errors import SettingsError
from fedssa.records import Outcome
from fedssa.report.page.directory import MARKER, write_report
from fedssa.report.page.report import contents, write
from fedssa.report.read.collection import gather
from tests.cli.test_cli import Command, command, here  # noqa: F401
from tests.report.fake_runs import Accuracy, finished_run, make_run, settings, with_flops
from tests.tiny import without_digest

THREE = "digits-n3-cnn-1-to-cnn-2-k2-c1-e1-r3"  # what files are named by: the settings of fake_runs
NINE = THREE.replace("n3", "n9")
TEN = "cifar10-n10-cnn-1-to-cnn-5-k2-c1-e1-r3"
HOSTILE = "<script>alert(1)</script>"


def rounds(last: float, num: int = 3, clients: int = 3) -> list[dict[int, Accuracy]]:
    """From 0.2 to `last`, client 0 a little lower and the last a little higher."""
    return [{k: 0.2 + (last - 0.2) * t / num + 0.01 * (k - 1) for k in range(clients)} for t in range(num + 1)]


def report(folder: Path) -> dict[str, bytes]:
    return contents(gather([folder]))


def text_of(files: dict[str, bytes]) -> str:
    """The page without its tags."""
    body = files["index.html"].decode().split("<body>")[1].split("<script>")[0]
    return " ".join(re.sub("<[^>]*>", " ", body).split())


def rows_of(files: dict[str, bytes], name: str) -> dict[str, dict[str, str]]:
    table = csv.DictReader(io.StringIO(files[f"tables/{name}.csv"].decode()))
    return {next(iter(row.values())): row for row in table}


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Nine clients, so that a difference of all of them can convince."""
    folder = tmp_path_factory.mktemp("runs")
    for method, last in {"standalone": 0.5, "fedssa": 0.7, "fml": 0.4, "fd": 0.5}.items():
        for seed in (0, 1):
            table = settings(method, seed=seed, partition__clients=9)
            finished_run(folder / f"{method}{seed}", rounds(last + 0.02 * seed, clients=9), table)
    return report(folder)


def test_the_numbers_of_the_table(two_seeds: dict[str, bytes]) -> None:
    table = rows_of(two_seeds, NINE)
    assert list(table) == ["standalone", "fedssa", "fd", "fml"]
    fedssa = table["fedssa"]
    # clients 0.69 … 0.77, mean 0.73; with seed 1 0.02 more
    assert float(fedssa["accuracy, %"]) == pytest.approx(74)
    assert float(fedssa["best by val., %"]) == pytest.approx(74)
    assert float(fedssa["vs standalone, points"]) == pytest.approx(20)
    assert float(rows_of(two_seeds, "runs")["fedssa1"]["accuracy, %"]) == pytest.approx(75)
    assert float(fedssa["seeds"]) == 2
    assert [row["verdict"] for row in table.values()] == ["", "higher", "no difference shown", "lower"]
    # 9 clients send 10 numbers up in every round and get 5 in all but the first
    costs = rows_of(two_seeds, f"{NINE}-costs")["fedssa"]
    assert float(costs["numbers a round"]) == pytest.approx((9 * 10 * 3 + 9 * 5 * 2) / 3)
    assert float(costs["bytes a round"]) == pytest.approx((9 * 44 * 3 + 9 * 24 * 2) / 3)
    assert float(rows_of(two_seeds, "runs")["fedssa1"]["bytes sent"]) == 9 * 44 * 3 + 9 * 24 * 2
    assert not any("server" in column or "tuning" in column for column in costs)  # nobody has such FLOPs here
    assert (
        "With 2 seeds and 3 methods compared, the first verdict takes a difference of 38.2 standard errors"
        in text_of(two_seeds)
    )
    assert "A client took 9 SGD steps (mean over clients and seeds), with every method." in text_of(two_seeds)
    assert "± 1.4" in text_of(two_seeds)  # 0.02 / √2
    assert "+20.0 [+20.0, +20.0]" in text_of(two_seeds)


def test_p_stands_beside_numbers_and_the_missing_control_is_told(tmp_path: Path) -> None:
    public = {"name": "slice", "share": 0.1, "per_round": 20}
    for method in ("standalone", "ds-fl", "fedmd"):
        table = settings(method, public=public, partition__clients=9)
        finished_run(tmp_path / method, rounds(0.5, clients=9), table)
    files = report(tmp_path)
    (costs,) = (name.removesuffix(".csv") for name in files if name.endswith("-costs.csv"))
    name = costs.rpartition("/")[2]
    assert {method: row["P"] for method, row in rows_of(files, name).items()} == {
        "standalone": "–",
        "ds-fl": "20",
        "fedmd": "20",
    }
    assert rows_of(files, "runs")["ds-fl"]["P"] == "20"
    assert "compare fedmd with standalone-public, which shares nothing." in text_of(files)


def test_who_alone_trains_on_augmented_images_is_told(tmp_path: Path) -> None:
    for method in ("standalone", "fedclassavg"):
        finished_run(tmp_path / "one" / method, rounds(0.5), settings(method))
        finished_run(tmp_path / "all" / method, rounds(0.5), settings(method, local__augment=True))
    assert "Augmented images are more to train on: compare fedclassavg with others" in text_of(report(tmp_path / "one"))
    assert "Augmented images" not in text_of(report(tmp_path / "all"))


def test_every_csv_file_holds_what_is_printed_in_the_unit_of_its_column(tmp_path: Path) -> None:
    """A figure in a file and the same figure on the page are equal but for rounding, so no unit can differ."""
    for i, (method, last) in enumerate({"standalone": 0.5, "fedssa": 0.7, "fml": 0.4}.items()):
        for seed in (0, 1):
            for epochs in (1, 2):
                table = settings(method, seed=seed, partition__clients=9, local__epochs=epochs)
                made = finished_run(tmp_path / f"{method}{seed}{epochs}", rounds(last, clients=9), table)
                with_flops(made, 10 ** (6 + i), server=10 ** (7 + i), tuning=10 ** (8 + i))
    files = report(tmp_path)
    printed = _printed(files["tables.md"].decode())
    names = [name for name in files if name.endswith(".csv")]
    assert len(names) == len(printed) == 8  # at a glance, all runs, and of both experiments results, costs, models
    checked = 0
    for name, cells_on_page in zip(names, printed, strict=True):
        cells = list(csv.reader(io.StringIO(files[name].decode())))
        for row, row_on_page in zip(cells[1:], cells_on_page[2:], strict=True):
            for cell, text in zip(row, row_on_page, strict=True):
                if (shown := _quantity(text)) is not None:
                    checked += 1
                    assert float(cell) == pytest.approx(shown, rel=0.006, abs=0.051), (name, row, text)
    assert checked > 100
    assert {"vs standalone, points", "accuracy, %"} <= set(next(csv.reader([files[names[1]].decode().split("\n")[0]])))


def _printed(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown page, as cells."""
    tables = re.findall(r"(?:^\|.*\n)+", text.replace("\\", "").replace("**", ""), flags=re.MULTILINE)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()] for table in tables]


def _quantity(text: str) -> float | None:
    """74.0 ± 1.4 → 74, 193 G → 193e9; None for words."""
    found = re.match(r"([+-]?\d[\d.]*)( ([kMGTP])\b)?", text)
    if found is None or re.fullmatch(r"\d+ of \d+", text):
        return None
    power: int = "kMGTP".index(found[3]) + 1 if found[3] else 0
    return float(found[1]) * float(1000**power)


def test_second_accuracies_are_columns_of_the_tables(tmp_path: Path) -> None:
    for method, second in (("fedavg", "received"), ("fedproto", "prototype"), ("standalone", None)):
        for seed in (0, 1):
            table = settings(method, seed=seed)
            finished_run(tmp_path / f"{method}{seed}", rounds(0.6 + 0.2 * seed), table, second=second)
    files = report(tmp_path)
    table = rows_of(files, THREE)
    shown = {name: [_quantity(row[f"{kind}, %"]) for kind in ("received", "prototype")] for name, row in table.items()}
    half = pytest.approx(35)
    assert shown == {"standalone": [None, None], "fedavg": [half, None], "fedproto": [None, half]}
    runs = rows_of(files, "runs")
    assert [float(runs[f"fedavg{seed}"]["received, %"]) for seed in (0, 1)] == pytest.approx([30, 40])
    assert "received, %" in text_of(files)


def test_flops_of_the_server_and_of_tuning_have_columns_of_their_own_and_are_never_added(tmp_path: Path) -> None:
    """Three clients, three rounds; the seeds differ, so a mean is neither of them."""
    for seed in (0, 1):
        spent: dict[str, tuple[int | None, int | None]] = {
            "standalone": (None, None),
            "fedgh": (7_000 * (seed + 1), None),
            "fedbabu": (None, 20 * (seed + 1)),
        }
        for method, (server, tuning) in spent.items():
            table = settings(method, seed=seed, run__target=0.3)
            made = finished_run(tmp_path / f"{method}{seed}", rounds(0.6), table)
            with_flops(made, 1_000, server=server, tuning=tuning)
    files = report(tmp_path)
    names = ("FLOPs a round", "server FLOPs a round", "tuning FLOPs a round")
    found = rows_of(files, f"{THREE}-costs")
    assert {method: [_quantity(row[name]) for name in names] for method, row in found.items()} == {
        "standalone": [3_000, None, None],
        "fedgh": [3_000, 10_500, None],
        "fedbabu": [3_000, None, 3 * 30],
    }
    assert [float(row["FLOPs to target"]) for row in found.values()] == [3_000] * 3  # the first round
    for name in names:
        assert f"| {name} |" in files["tables.md"].decode()
        assert name in text_of(files)


def test_only_over_the_papers_experiments_a_line_says_that_nothing_was_tuned(two_seeds: dict[str, bytes]) -> None:
    assert "unlike the paper" not in text_of(two_seeds)
    assert "unlike the paper" not in two_seeds["tables.md"].decode()


def test_the_first_sentence_says_what_came_out(two_seeds: dict[str, bytes]) -> None:
    first = "fedssa (74.0 ± 1.4 %, 2 seeds) is the highest of 4 methods: 20.0 points above standalone [+20.0, +20.0], "
    assert first in text_of(two_seeds)


def test_the_table_says_above_how_long_clients_trained_and_below_whether_to_trust_it(tmp_path: Path) -> None:
    """Three clients take three steps in each of three rounds; others take more, most of them, but no two as many."""
    steps = {"standalone": 3, "fedssa": 3, "fml": 4, "fedrep": 6, "fedkd": 8}
    for method, number in steps.items():
        run = finished_run(tmp_path / method, rounds(0.5), settings(method))
        run.rounds_file.write_text(run.rounds_file.read_text().replace('"steps":3', f'"steps":{number}'))
    text = report(tmp_path)["tables.md"].decode()
    above, table, below = re.split(r"((?:^\|.*\n)+)", text, maxsplit=1, flags=re.MULTILINE)
    assert "A client took 9 SGD steps (mean over clients and seeds); with fedkd 24, fedrep 18, fml 12." in above
    assert "| fedrep |" in table
    assert below.startswith("\nOne seed: there are no verdicts, and none should be read into the differences.\n")


def test_the_best_value_of_a_column_is_marked(two_seeds: dict[str, bytes]) -> None:
    page = two_seeds["index.html"].decode()
    (marked,) = re.findall(r'<td class="n best" title="highest of its column" data-sort="([\d.]+)">74.0 ', page)
    assert float(marked) == pytest.approx(74)
    assert "| **74.0 ± 1.4** |" in two_seeds["tables.md"].decode()


def test_the_page_needs_nothing_but_itself(two_seeds: dict[str, bytes]) -> None:
    page = two_seeds["index.html"].decode()
    assert re.findall(r"""(?:src|href)=["'](?!#|data:,|figures/|tables)""", page) == []
    assert "http" not in page.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("http-equiv", "")
    assert "@import" not in page
    assert "url(" not in page


def test_every_figure_is_on_the_page_and_in_two_files_with_a_sentence(two_seeds: dict[str, bytes]) -> None:
    names = {name.removesuffix(".svg") for name in two_seeds if name.endswith(".svg")}
    assert {name.removesuffix(".png") for name in two_seeds if name.endswith(".png")} == names
    assert {name.removeprefix(f"figures/{NINE}-") for name in names} == {
        "architectures", "clients", "curves", "header-norms", "trade-off"
    }  # fmt: skip
    page = two_seeds["index.html"].decode()
    captions = re.findall(r"<figcaption>(.*?)<span", page, flags=re.DOTALL)
    assert len(captions) == page.count("<figure>") == len(names)
    assert all(len(caption.split()) > 8 for caption in captions)


def test_every_row_has_the_commands_that_repeat_it(two_seeds: dict[str, bytes]) -> None:
    shown = re.findall(r"<dt>(\w+, seed \d)</dt><dd><code>(fedssa run [^<]*)</code>", two_seeds["index.html"].decode())
    assert len(shown) == 8
    assert all(f"seed={what[-1]}" in line for what, line in shown)


def test_names_from_files_are_text(tmp_path: Path) -> None:
    finished_run(tmp_path / "a", rounds(0.5), settings(HOSTILE, data__name=HOSTILE, models__archs=[HOSTILE]))
    finished_run(tmp_path / "b", rounds(0.5), settings("=1+1|x", local__lr=HOSTILE))
    files = report(tmp_path)
    page = files["index.html"].decode()
    assert page.count("<script>") == 1  # ours
    assert "&lt;script&gt;" in page
    tables = re.findall(r"(?:^\|.*\n)+", files["tables.md"].decode(), flags=re.MULTILINE)
    assert len(tables) == 7
    for table in tables:
        assert HOSTILE not in table
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1  # no row is torn
    assert "'=1+1|x" in files["tables/runs.csv"].decode()
    assert all(re.fullmatch(r"(figures|tables)/[\w.-]+|index.html|tables.md", name) for name in files)


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    for method in ("standalone", "fedssa"):
        finished_run(tmp_path / method, rounds(0.5), settings(method))
    files = report(tmp_path)
    assert "One seed: differences are shown without intervals and verdicts" in text_of(files)
    assert "verdict" not in rows_of(files, THREE)["fedssa"]
    assert "[+" not in text_of(files)


def test_what_is_not_whole_is_told(tmp_path: Path) -> None:
    finished_run(tmp_path / "standalone", rounds(0.5), settings("standalone"))
    make_run(tmp_path / "going", rounds(0.5)[:2])
    make_run(tmp_path / "diverged", rounds(0.5)[:2], settings("fml")).write_outcome(Outcome("diverged", "", 1, 0))
    make_run(tmp_path / "broken", rounds(0.5))
    (tmp_path / "broken" / "rounds.jsonl").write_text("x\n")
    finished_run(tmp_path / "elsewhere", rounds(0.5), digest="other")
    text = text_of(report(tmp_path))
    assert "Not finished: going, 1 of 3 rounds" in text
    assert "Left out: broken/rounds.jsonl: damaged" in text
    assert "Runs on 2 different data sets that are all called digits: never averaged together." in text
    assert "Not counted in the table: fml, seed 0 (diverged, round 1, 1 of 3 rounds)" in text


def test_the_papers_figures_stand_beside_ours(tmp_path: Path) -> None:
    archs = [f"cnn-{i}" for i in range(1, 6)]
    changes = {"data__name": "cifar10", "partition__clients": 10, "rounds__fraction": 1.0, "models__archs": archs}
    for method in ("standalone", "fedssa", "m1-a", "m2-a", "m2-b"):
        finished_run(tmp_path / method, rounds(0.9), settings(method, **changes))
    larger = settings("m2-b", **changes, models__header_scale=3.0)
    finished_run(tmp_path / "larger", rounds(0.9), larger)
    files = report(tmp_path)
    table = rows_of(files, TEN)
    assert all(float(row["paper, %"]) > 80 for row in table.values() if row["paper, %"] != "–")
    assert {"standalone", "fedssa", "m2-a"} <= {name for name, row in table.items() if row["paper, %"] != "–"}
    assert table["m2-b"]["paper, %"] != "–"
    assert table["m2-b, header_scale = 3.0"]["paper, %"] == "–"  # the paper's headers are the usual ones
    assert f"figures/{TEN}-ablations.svg" in files
    assert "Not tuned per method, unlike the paper." in text_of(files)
    assert "Not tuned per method, unlike the paper." in files["tables.md"].decode()
    assert "the paper’s figure" in text_of(files)


def test_training_alone_from_the_usual_headers_stays_the_reference_beside_others(tmp_path: Path) -> None:
    finished_run(tmp_path / "alone", rounds(0.8), settings("standalone"))
    finished_run(tmp_path / "larger", rounds(0.85), settings("standalone", models__header_scale=5.0))
    finished_run(tmp_path / "fedssa", rounds(0.9), settings("fedssa"))
    files = report(tmp_path)
    (costs,) = (name for name in files if name.endswith("-costs.csv"))
    table = rows_of(files, costs.removeprefix("tables/").removesuffix("-costs.csv"))
    assert list(table) == ["standalone", "standalone, header_scale = 5.0", "fedssa"]
    assert float(table["fedssa"]["vs standalone, points"]) == pytest.approx(10)
    assert float(table["standalone, header_scale = 5.0"]["vs standalone, points"]) == pytest.approx(5)
    assert "there is nothing to compare with" not in files["tables.md"].decode()


def test_settings_that_differ_are_columns_and_curves(tmp_path: Path) -> None:
    for i, fraction in enumerate((0.3, 0.6, 1.0)):
        finished_run(tmp_path / str(i), rounds(0.5 + 0.1 * i), settings(rounds__fraction=fraction, seed=4))
    files = report(tmp_path)
    assert "figures/participation-digits-n3-cnn-1-to-cnn-2-k2-e1-r3.svg" in files
    table = rows_of(files, "runs")
    assert [float(row["rounds.fraction"]) for row in table.values()] == [0.3, 0.6, 1.0]
    assert "local.epochs" not in table["0"]
    assert [row["experiment"] for row in table.values()] == ["1", "2", "3"]
    assert rows_of(files, "overview")["fedssa"]


def test_gains_and_shaking_are_drawn_where_there_is_something_to_draw(tmp_path: Path) -> None:
    uneven: list[dict[int, Accuracy]] = [{0: 0.2, 1: 0.2, 2: 0.2}, {0: 0.5, 1: 0.4}, {0: 0.6}]
    for method in ("standalone", "fedssa"):
        finished_run(tmp_path / method, uneven, settings(method))
    lines = (tmp_path / "fedssa" / "rounds.jsonl").read_text()
    (tmp_path / "fedssa" / "rounds.jsonl").write_text(lines.replace('"metrics":{}', '"metrics":{"shaking":0.5}'))
    assert {f"figures/{THREE}-gains.svg", f"figures/{THREE}-shaking.svg"} <= report(tmp_path).keys()


def test_representations_become_two_pictures(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", rounds(0.5))
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(40, 6)).astype(np.float16)
    np.savez(run.representations_file, representations=rows, labels=np.arange(40) % 2, clients=np.arange(40) % 3)
    files = report(tmp_path)
    assert {f"figures/{THREE}-tsne-class-fedssa.svg", f"figures/{THREE}-tsne-model-fedssa.svg"} <= files.keys()
    assert files[f"figures/{THREE}-tsne-class-fedssa.svg"].count(b"h0") == 40
    np.savez(run.representations_file, representations=rows, labels=np.arange(40) + 5, clients=np.arange(40))
    assert "No t-SNE of fedssa: run/representations.npz: damaged" in text_of(report(tmp_path)).replace(
        f"{tmp_path}/", ""
    )
    np.savez(run.representations_file, representations=0 * rows, labels=np.arange(40) % 2, clients=np.arange(40))
    assert "No t-SNE of fedssa: all representations are the same" in text_of(report(tmp_path))


def test_equal_runs_give_equal_reports(tmp_path: Path) -> None:
    for seed in range(3):
        finished_run(tmp_path / f"a{seed}", rounds(0.5), settings(seed=seed))
        finished_run(tmp_path / f"b{seed}", rounds(0.4 + 0.01 * seed), settings("standalone", seed=seed))
    assert report(tmp_path) == report(tmp_path)


def test_only_our_own_files_are_overwritten(tmp_path: Path) -> None:
    finished_run(tmp_path / "runs", rounds(0.5))
    out = tmp_path / "out"
    write([tmp_path / "runs"], out)
    (out / "notes.txt").write_text("mine")
    write_report(out, {"index.html": b"new", "figures/one.svg": b""})
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert left == {"index.html", "figures/one.svg", "notes.txt", MARKER}
    (out / MARKER).write_text(json.dumps(["../runs/settings.json", "/etc/hostname", 5]))
    write_report(out, {"index.html": b"new"})
    assert (tmp_path / "runs" / "settings.json").exists()
    (out / MARKER).unlink()
    with pytest.raises(SettingsError, match="exists and is not a report"):
        write_report(out, {"index.html": b"x"})
    (tmp_path / "empty").mkdir()
    write_report(tmp_path / "empty", {"index.html": b"x"})


def test_the_command(command: Command, tmp_path: Path) -> None:  # noqa: F811
    finished_run(tmp_path / "runs" / "a", rounds(0.5))
    make_run(tmp_path / "runs" / "b", rounds(0.5))
    (tmp_path / "runs" / "b" / "rounds.jsonl").write_text("x\n")
    done = command("report", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "1 run: " in done.out
    assert "left out: b/rounds.jsonl: damaged" in " ".join(done.err.split())
    assert (tmp_path / "out" / "index.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    ("folder", "out", "message"),
    [
        ("empty", "out", "no run directory in there"),
        ("nowhere", "out", "there is no such directory"),
        ("run", "run", "exists and is not a report; choose another"),
    ],
)
def test_mistakes_are_one_line(command: Command, tmp_path: Path, folder: str, out: str, message: str) -> None:  # noqa: F811
    (tmp_path / "empty").mkdir()
    finished_run(tmp_path / "run", rounds(0.5))
    refused = command("report", str(tmp_path / folder), "--out", str(tmp_path / out))
    assert refused.code == 2
    assert message in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_five_hundred_runs_take_few_seconds_and_megabytes(tmp_path: Path) -> None:
    """17 experiments of 10 methods and 3 seeds; the rounds are copied, since making them takes longer than reading."""
    model = finished_run(tmp_path / "model", rounds(0.5, num=10, clients=10))
    head = without_digest(model.path / "settings.json")
    methods = (
        "standalone",
        "standalone-scaled",
        "fedssa",
        "fedssa-plus",
        "fedproto",
        "fd",
        "fml",
        "fedkd",
        "m1-a",
        "m2-b",
    )
    for number in range(500):
        table = settings(methods[number // 3 % 10], seed=number % 3, local__epochs=number // 30, partition__clients=10)
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        for name in ("rounds.jsonl", "environment.json", "outcome.json"):
            (folder / name).hardlink_to(model.path / name)
        (folder / "settings.json").write_text(json.dumps(head | {"settings": table}))
    began = time.process_time()
    files = report(tmp_path / "runs")
    assert time.process_time() - began < 10
    assert sum(map(len, files.values())) < 20_000_000
    assert len(rows_of(files, "runs")) == 500
