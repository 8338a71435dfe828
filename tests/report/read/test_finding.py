"""The first sentence of a report, for every way in which an experiment can come out."""

from dataclasses import replace

import pytest

from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.finding import finding, findings
from fedssa.report.read.groups import Group
from fedssa.report.read.statistics import Difference, Verdict


def row(method: str, accuracy: float | None, difference: Difference | None = None) -> MethodRow:
    accuracies = () if accuracy is None else (accuracy, accuracy)
    return MethodRow(method, accuracies, (), tuple(range(len(accuracies))), difference, None, None, {}, {}, "finished")


def judged(mean: float, verdict: Verdict, p: float) -> Difference:
    return Difference(mean, 2, 6, mean - 0.01, mean + 0.01, p, verdict)


def group(*rows: MethodRow) -> Group:
    return Group({}, "", (), (), {}, rows, ())


ALONE = row("standalone", 0.5)
HIGHER = row("fedssa", 0.6, judged(0.1, "higher", 0.01))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ((), "Nothing can be told yet: no run has finished."),
        ((row("fedssa", None),), "Nothing can be told yet: no run has finished."),
        ((ALONE,), "standalone (50.0 ± 0.0 %, 2 seeds); no other method has finished, so there is nothing to compare"),
        (
            (ALONE, HIGHER),
            "is the highest of 2 methods: 10.0 points above standalone [+9.0, +11.0], which chance hardly",
        ),
        ((ALONE, HIGHER, row("fd", 0.55)), "for the number of methods); next is fd (55.0 %)."),
        ((ALONE, row("fd", 0.6, judged(0.1, "no difference shown", 0.2))), "which may be chance (p 0.2)."),
        ((ALONE, row("fd", 0.6, Difference(0.1, 1, 3))), "of which one seed cannot tell whether it is chance."),
        ((ALONE, row("fd", 0.6)), "it cannot be compared with standalone, which has no seed in common."),
        ((row("fedssa", 0.6), row("fd", 0.5)), "whether that is chance cannot be told without runs of standalone."),
        ((ALONE, row("fd", 0.4, judged(-0.1, "lower", 0.001))), "10.0 points below, and 1 of 1 shown to be below it."),
        ((ALONE, row("fd", 0.4)), "next is fd, and none of them shown to be below it either."),
    ],
)
def test_what_came_out(rows: tuple[MethodRow, ...], sentence: str) -> None:
    assert sentence in finding(group(*rows))
    assert findings([group(*rows)]) == finding(group(*rows))


def test_over_several_experiments() -> None:
    doubtful = replace(HIGHER, difference=judged(0.1, "no difference shown", 0.3))
    groups = [group(ALONE, HIGHER), group(ALONE, doubtful), group(ALONE, row("fd", 0.4)), group(ALONE)]
    assert findings(groups) == (
        "The highest mean accuracy of 3 experiments: fedssa in 2 (1 of them shown to be above standalone), "
        "standalone in 1."
    )
    assert findings([group(ALONE), group()]).startswith("Nothing can be told yet")
    one = findings([group(ALONE), group(ALONE, HIGHER)])
    assert one == f"One of 2 experiments compares methods. {finding(group(ALONE, HIGHER))}"
