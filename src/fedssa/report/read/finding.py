"""One sentence says what came out of an experiment, and how sure of it one can be."""

from collections.abc import Sequence

from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.groups import REFERENCE, Group
from fedssa.report.read.statistics import Difference, points


def finding(group: Group) -> str:
    """Tells which method is best, by how much over the reference and with what certainty, or that one cannot tell."""
    ranked = sorted((row for row in group.rows if row.mean is not None), key=lambda row: -(row.mean or 0.0))
    if not ranked:
        return "Nothing can be told yet: no run has finished."
    best = ranked[0]
    if len(ranked) == 1:
        return f"{_named(best)}; no other method has finished, so there is nothing to compare it with."
    if not any(row.method == REFERENCE for row in ranked):
        return (
            f"{_named(best)} is the highest of {len(ranked)} methods{_next(ranked)}; whether that is chance cannot be "
            f"told without runs of {REFERENCE}."
        )
    if best.method == REFERENCE:
        return _nothing_above(best, ranked)
    return f"{_named(best)} is the highest of {len(ranked)} methods: {_over_reference(best)}{_next(ranked)}."


def findings(groups: Sequence[Group]) -> str:
    """Sums several experiments up: how often which method is the highest."""
    if len(groups) == 1:
        return finding(groups[0])
    several = [group for group in groups if sum(row.mean is not None for row in group.rows) > 1]
    if len(several) == 1:
        return f"One of {len(groups)} experiments compares methods. {finding(several[0])}"
    told = [[row for row in group.rows if row.mean is not None] for group in several]
    if not told:
        return "Nothing can be told yet: no experiment has two methods that have finished."
    best = [max(rows, key=lambda row: row.mean or 0.0) for rows in told]
    wins = {method: [row for row in best if row.method == method] for method in {row.method: row for row in best}}
    ranked = sorted(wins.items(), key=lambda won: -len(won[1]))
    said = [f"{method} in {len(rows)}{_sure(method, rows)}" for method, rows in ranked[:3]]
    more = f", others in {sum(len(rows) for _, rows in ranked[3:])}" if len(ranked) > 3 else ""
    return f"The highest mean accuracy of {len(told)} experiments: {', '.join(said)}{more}."


def _sure(method: str, rows: Sequence[MethodRow]) -> str:
    shown = sum(row.difference is not None and row.difference.verdict == "higher" for row in rows)
    return "" if method == REFERENCE else f" ({shown or 'none'} of them shown to be above {REFERENCE})"


def _named(row: MethodRow) -> str:
    spread = "" if row.spread is None else f" ± {100 * row.spread:.1f}"
    seeds = "1 seed" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"
    return f"{row.method} ({100 * (row.mean or 0.0):.1f}{spread} %, {seeds})"


def _next(ranked: Sequence[MethodRow]) -> str:
    """Tells of the second, if it is not the reference that the sentence is about anyway."""
    second = next(row for row in ranked[1:])
    if second.method == REFERENCE:
        return ""
    return f"; next is {second.method} ({100 * (second.mean or 0.0):.1f} %)"


def _over_reference(row: MethodRow) -> str:
    found = row.difference
    if found is None:
        return f"it cannot be compared with {REFERENCE}, which has no seed in common"
    return f"{_points(found.mean)} above {REFERENCE}{_interval(found)}, {_certainty(found)}"


def _points(difference: float) -> str:
    return f"{100 * abs(difference):.1f} points"


def _interval(found: Difference) -> str:
    return "" if found.low is None or found.high is None else f" [{points(found.low)}, {points(found.high)}]"


def _certainty(found: Difference) -> str:
    if found.p is None:
        return "of which one seed cannot tell whether it is chance"
    p = f"p {found.p:.2g}" if found.p >= 0.001 else "p < 0.001"
    if found.verdict == "no difference shown":
        return f"which may be chance ({p})"
    return f"which chance hardly explains ({p}, corrected for the number of methods)"


def _nothing_above(reference: MethodRow, ranked: Sequence[MethodRow]) -> str:
    lower = sum(row.difference is not None and row.difference.verdict == "lower" for row in ranked)
    others, second = len(ranked) - 1, ranked[1]
    shown = f"{lower} of {others} shown to be below it" if lower else "none of them shown to be below it either"
    gap = "" if second.difference is None else f", {_points(second.difference.mean)} below"
    return f"No method is above {_named(reference)}; next is {second.method}{gap}, and {shown}."
