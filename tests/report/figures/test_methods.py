"""Accuracy against cost: every mark has its name beside it, whole and inside of the figure."""

from pathlib import Path

from fedssa.report.figures.frame import LEFT, WIDTH
from fedssa.report.figures.methods import trade_off
from fedssa.report.figures.scene import Mark, Words, text_width
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
