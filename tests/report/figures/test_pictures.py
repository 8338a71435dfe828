"""Pictures that commands write: what is in them, read from their pixels."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedssa.errors import FedSSAError, SettingsError
from fedssa.records import Outcome
from fedssa.report.figures.colours import colour_of_name
from fedssa.report.figures.partition import FEWEST, MOST
from fedssa.report.figures.pictures import draw_comparison, draw_partition, draw_runs
from fedssa.runs.directory import RunDir
from tests.report.fake_runs import make_run, settings, with_colour

HIGH, LOW = "#d7191c", "#0064ff"


def pixels_of(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert not image.text  # type: ignore[attr-defined]
        return np.array(image.convert("RGB"))


def where(pixels: NDArray[np.uint8], colour: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (pixels == list(bytes.fromhex(colour[1:]))).all(axis=-1)
    return found


def learning_run(path: Path, num_rounds: int, num_clients: int, top: float, method: str = "fedssa") -> RunDir:
    rng = np.random.default_rng(int(1000 * top))
    rounds = [
        {k: float(a) for k, a in enumerate(np.clip(level + rng.normal(0, 0.05, num_clients), 0, 1))}
        for level in top - (top - 0.1) * np.exp(-np.arange(num_rounds + 1) / 5)
    ]
    run_dir = make_run(path, rounds, settings(method, partition__clients=num_clients, rounds__total=num_rounds))
    run_dir.write_outcome(Outcome("finished", t=num_rounds - 1))
    return run_dir


@pytest.fixture
def two_runs(tmp_path: Path) -> list[tuple[str, RunDir]]:
    high = with_colour(learning_run(tmp_path / "high", 30, 20, 0.9), HIGH)
    low = with_colour(learning_run(tmp_path / "low", 30, 20, 0.7, "fedproto"), LOW)
    return [("high", high), ("low", low)]


def test_both_runs_are_in_both_halves(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    path = tmp_path / "new" / "folder" / "runs.png"
    draw_runs(two_runs, path)
    pixels = pixels_of(path)
    assert pixels.shape == (600, 1596, 3)
    for half in (pixels[:, :780], pixels[:, 816:]):
        assert where(half, HIGH).sum() > 40
        assert where(half, LOW).sum() > 40
        assert where(half, colour_of_name("fedssa")).sum() == 0
    assert [file.name for file in path.parent.iterdir()] == ["runs.png"]  # nothing temporary is left


def test_better_run_is_drawn_higher_and_further_right(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    draw_runs(two_runs, tmp_path / "runs.png")
    pixels = pixels_of(tmp_path / "runs.png")
    high, low = (where(pixels, colour) for colour in (HIGH, LOW))
    ends = np.s_[90:470, 650:760]  # the last rounds, on the left
    assert np.argwhere(high[ends])[:, 0].mean() < np.argwhere(low[ends])[:, 0].mean()
    assert np.argwhere(high[:, 816:])[:, 1].mean() > np.argwhere(low[:, 816:])[:, 1].mean()


def test_a_method_has_one_colour_in_show_in_compare_and_in_any_order(
    tmp_path: Path, two_runs: list[tuple[str, RunDir]]
) -> None:
    (_, high), (_, low) = two_runs
    draw_runs(two_runs[::-1], tmp_path / "turned.png")
    draw_runs(two_runs[:1], tmp_path / "alone.png")
    draw_comparison([low, high], tmp_path / "compared.png")
    for name, colours in {"turned": (HIGH, LOW), "alone": (HIGH,), "compared": (HIGH, LOW)}.items():
        pixels = pixels_of(tmp_path / f"{name}.png")
        assert [colour for colour in (HIGH, LOW) if where(pixels, colour).sum() > 40] == list(colours), name
    pixels = pixels_of(tmp_path / "compared.png")
    ends = np.s_[90:470, 650:760]
    tops = [np.argwhere(where(pixels[ends], colour))[:, 0].mean() for colour in (HIGH, LOW)]
    assert tops[0] < tops[1]


def test_equal_input_gives_equal_bytes(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    for name in ("a.png", "b.png"):
        draw_runs(two_runs, tmp_path / name)
        draw_partition(np.arange(12).reshape(4, 3), ["x", "y", "z"], tmp_path / f"partition-{name}")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "partition-a.png").read_bytes() == (tmp_path / "partition-b.png").read_bytes()


def test_runs_of_every_state_are_drawn(tmp_path: Path) -> None:
    diverged = make_run(tmp_path / "diverged", [{0: 0.2, 1: 0.2}, {0: 0.4, 1: 0.3}], settings("fml"))
    diverged.write_outcome(Outcome("diverged", "", 1, 0))
    runs = {
        "nothing yet": make_run(tmp_path / "empty", [], settings("fd")),
        "start not measured": make_run(tmp_path / "unmeasured", [{}, {0: 0.4}, {1: 0.6}], settings("fedkd")),
        "only the start": make_run(tmp_path / "start", [{0: 0.1, 1: 0.3}], settings("fedproto")),
        "_diverged, $\frac$ a name beyond all measure": diverged,
        "constant": make_run(tmp_path / "constant", [{0: 0.5, 1: 0.5}] * 3),
    }
    draw_runs(list(runs.items()), tmp_path / "runs.png")
    pixels = pixels_of(tmp_path / "runs.png")
    for method in ("fedkd", "fedproto", "fml", "fedssa"):
        assert where(pixels, colour_of_name(method)).sum() > 40, method
    assert where(pixels, colour_of_name("fd")).sum() == 0


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(FedSSAError, match="nothing to draw"):
        draw_runs([("empty", make_run(tmp_path / "empty", []))], tmp_path / "runs.png")
    assert not (tmp_path / "runs.png").exists()


def test_many_runs_make_the_picture_taller(tmp_path: Path) -> None:
    run_dir = learning_run(tmp_path / "run", 1, 5, 0.8)
    draw_runs([(f"run {i}", run_dir) for i in range(14)], tmp_path / "runs.png")
    height, width, _ = pixels_of(tmp_path / "runs.png").shape
    assert (height > 850, width) == (True, 1596)


def test_methods_without_any_accuracy_cannot_be_compared_in_a_picture(tmp_path: Path) -> None:
    with pytest.raises(FedSSAError, match="nothing to draw"):
        draw_comparison([make_run(tmp_path / "empty", [])], tmp_path / "curves.png")


@pytest.mark.parametrize(("num_clients", "num_classes"), [(4, 2), (4, 100), (100, 10), (1000, 100), (5000, 10)])
def test_partition(tmp_path: Path, num_clients: int, num_classes: int) -> None:
    counts = np.zeros((num_clients, num_classes), dtype=int)
    counts[: num_clients // 2] = 50
    draw_partition(counts, [f"class ${s}" for s in range(num_classes)], tmp_path / "partition.png")
    pixels = pixels_of(tmp_path / "partition.png")
    height, width, _ = pixels.shape
    assert 300 <= height <= 1100
    assert 600 <= width <= 1900
    full = where(pixels, MOST)
    columns = np.flatnonzero(full.any(axis=0))
    held, scale = columns[:-21], columns[-21:]  # the scale is 14 pixels wide
    assert len(held) == held[-1] - held[0] + 1 > 0.2 * width
    assert scale[0] - held[-1] > len(held)  # the other half of the clients has none


def test_more_samples_are_darker_and_none_is_white(tmp_path: Path) -> None:
    draw_partition(np.array([[0, 1, 20, 32]] * 40), ["a", "b", "c", "d"], tmp_path / "partition.png")
    pixels = pixels_of(tmp_path / "partition.png")
    rows = [pixels[66 + int(1.5 * 30 * (s + 0.5)), 500].astype(int).sum() for s in range(4)]
    assert rows == sorted(rows, reverse=True)
    assert (rows[0], rows[3]) == (3 * 255, sum(bytes.fromhex(MOST[1:])))
    assert rows[1] > 0.9 * sum(bytes.fromhex(FEWEST[1:]))


def test_counts_are_written_in_a_small_partition(tmp_path: Path) -> None:
    draw_partition(np.full((4, 2), 7), ["a", "b"], tmp_path / "small.png")
    draw_partition(np.full((31, 2), 7), ["a", "b"], tmp_path / "large.png")
    inside = np.s_[80:230, 60:380]
    assert (pixels_of(tmp_path / "small.png")[inside] > 200).any()
    assert not (pixels_of(tmp_path / "large.png")[inside] > 200).any()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends", None)
    with pytest.raises(FedSSAError, match=r"figures need matplotlib: pip install 'fedssa\[report\]'"):
        draw_partition(np.ones((2, 2), dtype=int), ["a", "b"], tmp_path / "partition.png")


def test_only_png_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"should end in \.png"):
        draw_partition(np.ones((2, 2), dtype=int), ["a", "b"], tmp_path / "partition.pdf")
    assert not list(tmp_path.iterdir())


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FedSSAError, match="cannot be written"):
        draw_partition(np.ones((2, 2), dtype=int), ["a", "b"], tmp_path / "file" / "partition.png")
