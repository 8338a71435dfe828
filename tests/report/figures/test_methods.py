"""Accuracy against cost: every mark has its name beside it, whole and inside of the figure."""

from pathlib import Path

from fedssa.report.figures.frame import LEFT, WIDTH
from fedssa.report.figures.methods import ablations, trade_off
from fedssa.report.figures.scene import Figure, Mark, Words, text_width
from fedssa.report.figures.style import styles
from fedssa.report.read.collection import gather
from fedssa.report.read.groups import group_runs
from tests.report.fake_runs import finished_run, settings

SHIFT = {"start": 0.0, "end": 1.0, "middle": 0.5}


def test_a_long_name_is_wrapped_and_stays_inside(tmp_path: Path) -> None:
    names = [
        "fedssa, fusion = convex, mu0 = 0.25",
        "fedssa, fusion = sum, mu0 = 0.25",
        "fedssa, fusion = sum, mu0 = 0.5",
    ]
    for number, (fusion, mu0) in enumerate((("convex", 0.25), ("sum", 0.25), ("sum", 0.5))):
        rounds = [{}, dict.fromkeys(range(3), 0.5 + 0.001 * number)]
        finished_run(tmp_path / str(number), rounds, settings(method__fusion=fusion, method__mu0=mu0))
    (group,) = group_runs(gather([tmp_path]).runs)
    labelled = [(label, runs[0].summary.run_dir) for label, runs in group.by_label.items()]
    figure = trade_off(group, styles(labelled))
    assert figure
    words = [item for item in figure.items if isinstance(item, Words) and item.series is not None]
    assert sum(isinstance(item, Mark) for item in figure.items) == len(names)
    assert sorted(group.by_label) == names
    lines = " ".join(word.text for word in words)
    assert all(name in lines for name in names)
    assert len(words) > len(names)
    for word in words:
        left = word.x - SHIFT[word.anchor] * text_width(word.text, word.size)
        assert LEFT < left < left + text_width(word.text, word.size) < WIDTH


def ablations_of(folder: Path, *runs: tuple[str, dict[str, object]]) -> Figure | None:
    for number, (method, options) in enumerate(runs):
        changes = {f"method__{name}": value for name, value in options.items()}
        finished_run(folder / str(number), [{}, dict.fromkeys(range(3), 0.5)], settings(method, **changes))
    (group,) = group_runs(gather([folder]).runs)
    labelled = [(label, found[0].summary.run_dir) for label, found in group.by_label.items()]
    return ablations(group, styles(labelled), {})


def test_fedssa_stands_among_its_ablations_whatever_options_tell_its_variants_apart(tmp_path: Path) -> None:
    two: dict[str, object] = {"t_stable": 2}
    figure = ablations_of(
        tmp_path, ("fedssa", two), ("standalone", {}), ("m2-b", two), ("fedssa", {"t_stable": 10}), ("m1-a", two)
    )
    assert figure
    names = [style.label for style in figure.legend]
    assert names == ["m1-a", "m2-b", "fedssa, t_stable = 2", "fedssa, t_stable = 10"]
    assert sum(isinstance(item, Mark) for item in figure.items) == len(names)
    ends = [word for word in figure.items if isinstance(word, Words) and word.text in names]
    assert len(ends) == len(names)
    assert all(word.x - text_width(word.text, word.size) > 0 for word in ends)


def test_variants_of_fedssa_alone_are_no_ablation(tmp_path: Path) -> None:
    assert ablations_of(tmp_path, ("fedssa", {"t_stable": 2}), ("fedssa", {"t_stable": 10})) is None
