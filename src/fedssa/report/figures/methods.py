"""These figures have one mark a method: accuracy against what it cost, and the ablations."""

from collections.abc import Mapping, Sequence

from fedssa.report.figures.frame import BOTTOM, HEIGHT, LEFT, TICK_SIZE, TOP, WIDTH, frame
from fedssa.report.figures.scene import Figure, Item, Line, Mark, Words, text_width
from fedssa.report.figures.style import Style
from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.costs import Cost
from fedssa.report.read.groups import Group

ABLATIONS = ("m1-a", "m1-b", "m2-a", "m2-b", "fedssa")
LARGEST, SMALLEST = 34.0, 9.0  # pixels across a mark
BAR = 34.0
LINE = 16.0  # from one line of a label to the next

Box = tuple[float, float, float, float]


def trade_off(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    """Draws accuracy against the cost to the target where it was reached, else over all rounds."""
    shown = [(row, cost) for row in group.rows if row.mean is not None and (cost := _spent(group, row)) is not None]
    if len(shown) < 2:
        return None
    shown.sort(key=lambda pair: list(styles).index(pair[0].method))
    accuracies = [100 * (row.mean or 0.0) for row, _ in shown]
    numbers = [cost.numbers for _, cost in shown]
    around = frame(
        numbers, accuracies, x_label="numbers sent until the target", y_label="accuracy at the end, %", log_x=True
    )
    most = max(cost.flops for _, cost in shown) or 1.0
    taken: list[Box] = []
    marks: list[Item] = []
    words: list[Item] = []
    for (row, cost), accuracy in zip(shown, accuracies, strict=True):
        style, x, y = styles[row.method], around.x(cost.numbers), around.y(accuracy)
        size = max(SMALLEST, LARGEST * (cost.flops / most) ** 0.5)
        told = f"{row.method}: {accuracy:.2f} %, {cost.numbers:,.0f} numbers, {cost.flops:.3g} FLOPs"
        hollow = row.to_target is None
        marks.append(Mark(x, y, "circle", style.ink, size, hollow, opacity=0.8, told=told, series=style.series))
        taken.append((x - size / 2, y - size / 2, x + size / 2, y + size / 2))
    for (row, _), box in zip(shown, list(taken), strict=True):
        words.extend(_label(row.method, box, taken, styles[row.method].series))
    reading = (
        "Top left is best: accurate and cheap to send; a mark’s area is its FLOPs until the target, a hollow one did "
        "not reach the target and shows all rounds."
    )
    legend = tuple(styles[row.method] for row, _ in shown)
    items = (*around.items, *marks, *words)
    return Figure("trade-off", "Accuracy, communication and FLOPs", reading, WIDTH, HEIGHT, items, legend)


def _spent(group: Group, row: MethodRow) -> Cost | None:
    if row.to_target is not None or row.per_round is None:
        return row.to_target
    rounds = group.settings["rounds"]["total"]
    return row.per_round.each(lambda amount: rounds * amount)


def _label(text: str, box: Box, taken: list[Box], series: int) -> list[Words]:
    """Places a label at the first free side of the mark, or at the side that covers least of the others."""
    lines, (left, top, right, bottom) = _wrapped(text), box
    width, more = max(text_width(line, 14) for line in lines), LINE * (len(lines) - 1)
    middle = (top + bottom) / 2
    x = min(max((left + right) / 2, LEFT + 1 + width / 2), WIDTH - 1 - width / 2)  # a wide one is pushed inside
    heights = (middle, *(y for away in (4, 18, 24) for y in (top - away - more / 2, bottom + away + more / 2)))
    beside = [(side, y) for y in heights for side in ("start", "end")]
    places = [(right + 4 if side == "start" else left - 4, y + 4.5 - more / 2, side) for side, y in beside]
    places[2:2] = [(x, top - 5 - more, "middle"), (x, bottom + 14, "middle")]
    shift = {"start": 0.0, "end": width, "middle": width / 2}
    areas = [(at - shift[side], y - 11, at - shift[side] + width, y + more + 1) for at, y, side in places]
    chosen = min(range(len(areas)), key=lambda i: (not _inside(areas[i]), _covered(areas[i], taken)))
    taken.append(areas[chosen])
    at_x, at_y, anchor = places[chosen]
    return [Words(at_x, at_y + LINE * i, line, "ink", anchor, 14, series=series) for i, line in enumerate(lines)]


def _wrapped(text: str) -> list[str]:
    """Splits a label behind its commas where it is wider than a third of the figure."""
    lines: list[str] = []
    for part in text.split(", "):
        joined = f"{lines[-1]}, {part}" if lines else part
        fits = text_width(joined, 14) <= WIDTH / 3
        lines = [*lines[:-1], joined] if fits or not lines else [*lines[:-1], f"{lines[-1]},", part]
    return lines


def _inside(area: Box) -> bool:
    return area[0] > LEFT and area[2] < WIDTH and area[1] > TOP - 13 and area[3] < HEIGHT - BOTTOM + 6


def _covered(area: Box, taken: Sequence[Box]) -> float:
    """Returns how much of the area is covered, in square pixels."""
    return sum(
        max(0.0, min(area[2], right) - max(area[0], left)) * max(0.0, min(area[3], bottom) - max(area[1], top))
        for left, top, right, bottom in taken
    )


def ablations(group: Group, styles: Mapping[str, Style], paper: Mapping[str, float]) -> Figure | None:
    """Draws marks on a line with the seeds' spread, and the paper's, since bars from zero would hide what matters."""
    known = [(_place(row.method), row) for row in group.rows if row.mean is not None]
    rows = {row.method: row for place, row in sorted(known, key=lambda one: one[0]) if place < len(ABLATIONS)}
    shown = list(rows)
    if len({_place(method) for method in shown}) < 2:
        return None
    height = 80 + BAR * len(shown)
    ours = [100 * a for method in shown for a in rows[method].accuracies]
    theirs = [paper[method] for method in shown if method in paper]
    left = 16 + max(text_width(method, TICK_SIZE) for method in shown)
    around = frame([*ours, *theirs], [], x_label="accuracy, %", y_label="", height=height, left=left, y_names=shown)
    items: list[Item] = list(around.items)
    for row, method in enumerate(shown):
        style, y = styles[method], around.y(row)
        values = [around.x(100 * a) for a in rows[method].accuracies]
        mean = 100 * (rows[method].mean or 0.0)
        if len(values) > 1:
            items.append(Line(((min(values), y), (max(values), y)), style.ink, 5.0, opacity=0.35, series=style.series))
        told = f"{method}: {mean:.2f} %"
        items.append(Mark(around.x(mean), y, style.shape, style.ink, 12, told=told, series=style.series))
        items.append(Words(around.x(mean), y - 11, f"{mean:.1f}", "ink", size=14, bold=True, series=style.series))
        if method in paper:
            items.append(Mark(around.x(paper[method]), y, "circle", "muted", 9, hollow=True, told="the paper"))
    reading = "A mark is the mean of the seeds, its bar from the lowest to the highest" + (
        "; a hollow circle is the paper’s figure, from tuned runs." if theirs else "."
    )
    legend = tuple(styles[method] for method in shown)
    return Figure("ablations", "Ablations", reading, WIDTH, height, tuple(items), legend)


def _place(method: str) -> int:
    """Returns its place among the ablations, whatever options its label has; behind them if it is none."""
    name = method.partition(", ")[0]
    return ABLATIONS.index(name) if name in ABLATIONS else len(ABLATIONS)
