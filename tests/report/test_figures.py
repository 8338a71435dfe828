import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedssa.errors import FedSSAError, SettingsError
from fedssa.records import Outcome
from fedssa.report.figures import COLOURS, draw_partition, draw_runs
from fedssa.runs.directory import RunDir

from .fake_runs import make_run, settings


def pixels_of(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert not image.text  # type: ignore[attr-defined]
        return np.array(image.convert("RGB"))


def num_pixels(pixels: NDArray[np.uint8], colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((pixels == wanted).all(axis=-1).sum())


def learning_run(path: Path, num_rounds: int, num_clients: int, top: float) -> RunDir:
    rng = np.random.default_rng(int(1000 * top))
    rounds = [
        {k: float(a) for k, a in enumerate(np.clip(level + rng.normal(0, 0.05, num_clients), 0, 1))}
        for level in top - (top - 0.1) * np.exp(-np.arange(num_rounds + 1) / 5)
    ]
    run_dir = make_run(path, rounds, settings(partition__clients=num_clients, rounds__total=num_rounds))
    run_dir.write_outcome(Outcome("finished", t=num_rounds - 1))
    return run_dir


@pytest.fixture
def two_runs(tmp_path: Path) -> list[tuple[str, RunDir]]:
    return [(name, learning_run(tmp_path / name, 30, 20, top)) for name, top in (("high", 0.9), ("low", 0.7))]


def test_both_runs_are_in_both_halves(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    path = tmp_path / "new" / "folder" / "runs.png"
    draw_runs(two_runs, path)
    pixels = pixels_of(path)
    assert pixels.shape == (700, 1600, 3)
    for half in (pixels[:, :760], pixels[:, 840:]):
        assert num_pixels(half, COLOURS[0]) > 40
        assert num_pixels(half, COLOURS[1]) > 40
        assert num_pixels(half, COLOURS[2]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["runs.png"]  # nothing temporary is left


def test_better_run_is_drawn_higher_and_further_right(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    draw_runs(two_runs, tmp_path / "runs.png")
    pixels = pixels_of(tmp_path / "runs.png")
    high, low = ((pixels == [int(c[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=-1) for c in COLOURS[:2])
    ends = slice(650, 790)  # the last rounds, on the left
    assert np.argwhere(high[:, ends])[:, 0].mean() < np.argwhere(low[:, ends])[:, 0].mean()
    assert np.argwhere(high[:, 840:])[:, 1].mean() > np.argwhere(low[:, 840:])[:, 1].mean()


def test_equal_input_gives_equal_bytes(tmp_path: Path, two_runs: list[tuple[str, RunDir]]) -> None:
    for name in ("a.png", "b.png"):
        draw_runs(two_runs, tmp_path / name)
        draw_partition(np.arange(12).reshape(4, 3), ["x", "y", "z"], tmp_path / f"partition-{name}")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "partition-a.png").read_bytes() == (tmp_path / "partition-b.png").read_bytes()


def test_runs_of_every_state_are_drawn(tmp_path: Path) -> None:
    diverged = make_run(tmp_path / "diverged", [{0: 0.2, 1: 0.2}, {0: 0.4, 1: 0.3}])
    diverged.write_outcome(Outcome("diverged", "", 1, 0))
    runs = {
        "nothing yet": make_run(tmp_path / "empty", []),
        "start not measured": make_run(tmp_path / "unmeasured", [{}, {0: 0.4}, {1: 0.6}]),
        "only the start": make_run(tmp_path / "start", [{0: 0.1, 1: 0.3}]),
        "_diverged, $\\frac$ a name beyond all measure": diverged,
        "constant": make_run(tmp_path / "constant", [{0: 0.5, 1: 0.5}] * 3),
    }
    draw_runs(list(runs.items()), tmp_path / "runs.png")
    pixels = pixels_of(tmp_path / "runs.png")
    assert all(num_pixels(pixels, COLOURS[run]) > 40 for run in range(5))


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(FedSSAError, match="nothing to draw"):
        draw_runs([("empty", make_run(tmp_path / "empty", []))], tmp_path / "runs.png")
    assert not (tmp_path / "runs.png").exists()


def test_more_runs_than_colours(tmp_path: Path) -> None:
    run_dir = learning_run(tmp_path / "run", 1, 5, 0.8)
    draw_runs([(f"run {i}", run_dir) for i in range(14)], tmp_path / "runs.png")
    assert pixels_of(tmp_path / "runs.png").shape == (900, 1600, 3)


@pytest.mark.parametrize(("num_clients", "num_classes"), [(4, 2), (4, 100), (100, 10), (1000, 100), (5000, 10)])
def test_partition(tmp_path: Path, num_clients: int, num_classes: int) -> None:
    counts = np.zeros((num_clients, num_classes), dtype=int)
    counts[: num_clients // 2] = 50
    draw_partition(counts, [f"class ${s}" for s in range(num_classes)], tmp_path / "partition.png")
    pixels = pixels_of(tmp_path / "partition.png")
    height, width, _ = pixels.shape
    assert 400 <= height <= 1100
    assert 600 <= width <= 1700
    dark = (pixels == [68, 1, 84]).all(axis=-1)  # the end of the colour map
    assert dark.sum() > 0.2 * height * width * 0.5
    assert dark[:, : width // 4].any()
    assert not dark[:, int(0.6 * width) : int(0.8 * width)].any()  # the other half of the clients has none


def test_counts_are_written_in_a_small_partition(tmp_path: Path) -> None:
    draw_partition(np.full((4, 2), 7), ["a", "b"], tmp_path / "small.png")
    draw_partition(np.full((31, 2), 7), ["a", "b"], tmp_path / "large.png")
    inside = np.s_[80:260, 120:480]
    assert (pixels_of(tmp_path / "small.png")[inside] > 200).any()
    assert not (pixels_of(tmp_path / "large.png")[inside] > 200).any()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
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
