"""Pictures of runs and of partitions, as PNG files. matplotlib is imported when it is needed, and never pyplot."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedssa.errors import FedSSAError, SettingsError
from fedssa.report.summary import RunSummary, summarise
from fedssa.runs.directory import RunDir
from fedssa.runs.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 100
# Okabe and Ito's colours, told apart by colour-blind readers too; grey in place of yellow, which is lost on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINE_STYLES = ("-", "--", ":", "-.")  # for runs beyond the colours
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly: jitter without chance
MAX_NAME = 28  # characters
MAX_COLUMNS = 1200  # of a partition's picture: a pixel a client, or a little more


def draw_runs(runs: Sequence[tuple[str, RunDir]], path: Path) -> None:
    """Left: mean accuracy over rounds. Right: every client's accuracy at the end."""
    summaries = [(_shortened(name), summarise(run_dir)) for name, run_dir in runs]
    if all(summary.accuracy is None for _, summary in summaries):
        raise FedSSAError(f"{path}: there is nothing to draw, no run has measured an accuracy yet")
    figure = _figure(16, 7 + max(0.0, 0.5 * (len(runs) - 10)))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_curves(left, summaries)
    _draw_clients(right, summaries)
    _save(figure, path)


def draw_comparison(runs: Sequence[RunDir], path: Path) -> None:
    """Mean accuracy over rounds, a line a method: the mean over seeds, and a band from the lowest to the highest."""
    by_method: dict[str, list[RunSummary]] = {}
    for run in (summarise(run_dir) for run_dir in runs):
        if run.curve:
            by_method.setdefault(run.method, []).append(run)
    figure = _figure(11, 7)
    axes = figure.subplots()
    for index, (method, summaries) in enumerate(by_method.items()):
        num_points = min(len(summary.curve) for summary in summaries)
        rounds = [point[0] for point in summaries[0].curve[:num_points]]
        curves = 100 * np.array([[point[1] for point in summary.curve[:num_points]] for summary in summaries])
        style = LINE_STYLES[index // len(COLOURS) % len(LINE_STYLES)]
        last = f"{curves[:, -1].mean():.1f}"
        axes.plot(rounds, curves.mean(axis=0), color=_colour(index), linestyle=style, label=f"{method} {last}")
        axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=_colour(index), alpha=0.12, linewidth=0)
    axes.set_title("Mean accuracy of the clients' own models (line: mean over seeds, band: all seeds)", loc="left")
    axes.set_xlabel("rounds finished (0: before training)")
    axes.set_ylabel("mean accuracy over clients, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", framealpha=0.85)
    _save(figure, path)


def draw_partition(counts: NDArray[Any], class_names: Sequence[str], path: Path) -> None:
    """counts [N, S]: training samples by client and class. White: the client has none of the class."""
    num_clients, num_classes = counts.shape
    width, height = np.clip(0.45 * num_clients, 4, 14), np.clip(0.35 * num_classes, 2.5, 9)
    figure = _figure(width + 2.5, height + 1.5)
    axes = figure.subplots()
    per_column = -(-num_clients // MAX_COLUMNS)
    picture = axes.imshow(
        np.ma.masked_equal(_merged(counts, per_column).T, 0),
        extent=(-0.5, num_clients - 0.5, num_classes - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        vmin=0,
    )
    label = "training samples" if per_column == 1 else f"training samples, mean of {per_column} clients"
    figure.colorbar(picture, ax=axes, label=label, pad=0.02, aspect=30)
    axes.set_title(f"Training samples of {_clients(num_clients)} by class (white: none)", loc="left")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    x_ticks, y_ticks = _thinned(num_clients, int(width / 0.4)), _thinned(num_classes, int(height / 0.18))
    axes.set_xticks(x_ticks, [str(client) for client in x_ticks])
    axes.set_yticks(y_ticks, [_shortened(class_names[s]) for s in y_ticks])
    if num_clients <= 30 and num_classes <= 25:
        _write_counts(axes, counts)
    _save(figure, path)


def _draw_curves(axes: "Axes", summaries: Sequence[tuple[str, RunSummary]]) -> None:
    last_round = max([1, *(rounds for _, summary in summaries for rounds, _ in summary.curve)])
    for run, (name, summary) in enumerate(summaries):
        points = np.array(summary.curve, dtype=float).reshape(-1, 2)
        axes.plot(
            points[:, 0],
            100 * points[:, 1],
            color=_colour(run),
            linestyle=LINE_STYLES[run // len(COLOURS) % len(LINE_STYLES)],
            linewidth=2,
            marker="o" if last_round <= 40 else "",
            markersize=4,
            label=_label(name, summary),
        )
    axes.set_title("Mean accuracy of the clients' own models", loc="left")
    axes.set_xlabel("rounds finished (0: before training)")
    axes.set_ylabel("mean accuracy over clients, %")
    axes.set_xlim(-0.02 * last_round, 1.02 * last_round)
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", framealpha=0.85, ncols=1 + len(summaries) // 12)


def _draw_clients(axes: "Axes", summaries: Sequence[tuple[str, RunSummary]]) -> None:
    """A row a run: box, one dot a client, the mean as a diamond with its number at the side."""
    for run, (_, summary) in enumerate(summaries):
        if summary.accuracy is not None:
            _draw_row(axes, run, summary.accuracies, 100 * summary.accuracy)
    axes.set_title("Each client's own model at the end (diamond and number: the mean)", loc="left")
    axes.set_xlabel("accuracy of a client, %")
    labels = [f"{name}\n{_clients(len(summary.accuracies))}" for name, summary in summaries]
    axes.set_yticks(range(len(summaries)), labels)
    middle, half = (len(summaries) - 1) / 2, max(4, len(summaries)) / 2  # few runs do not fill the height
    axes.set_ylim(middle + half, middle - half)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_row(axes: "Axes", row: int, accuracies: dict[int, float], mean: float) -> None:
    clients, fractions = np.array(list(accuracies.items()), dtype=float).T
    jitter = 0.5 * (clients * GOLDEN % 1 - 0.5)
    alpha = 0.7 if len(clients) <= 100 else 0.3
    axes.scatter(100 * fractions, row + jitter, s=20, color=_colour(row), alpha=alpha, linewidths=0, zorder=2)
    axes.boxplot(
        100 * fractions,
        positions=[row],
        orientation="horizontal",
        widths=0.66,
        showfliers=False,  # every client is a dot already
        manage_ticks=False,
        boxprops={"color": "dimgrey"},
        whiskerprops={"color": "dimgrey"},
        capprops={"color": "dimgrey"},
        medianprops={"color": "dimgrey", "linewidth": 2.5},
    )
    axes.plot(mean, row, "D", markersize=10, color=_colour(row), mec="white", mew=1.5, zorder=4)
    axes.text(1.02, row, f"{mean:.1f} %", transform=axes.get_yaxis_transform(), va="center", weight="bold")


def _label(name: str, summary: RunSummary) -> str:
    """With a space in front: matplotlib leaves names that start with _ out of a legend."""
    return f" {name}" if summary.outcome == "finished" else f" {name} ({summary.outcome})"


def _write_counts(axes: "Axes", counts: NDArray[Any]) -> None:
    for client, s in np.argwhere(counts):
        colour = "white" if counts[client, s] > 0.5 * counts.max() else "black"
        axes.text(client, s, str(counts[client, s]), ha="center", va="center", fontsize=8, color=colour)


def _merged(counts: NDArray[Any], per_column: int) -> NDArray[Any]:
    """Means over neighbours, where there are more clients than pixels."""
    starts = np.arange(0, len(counts), per_column)
    sizes = np.diff(np.append(starts, len(counts)))
    return np.add.reduceat(counts, starts, axis=0) / sizes[:, None]


def _thinned(num: int, at_most: int) -> range:
    """Ticks at 0, step, 2·step, …: all of them, or with a round step."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return range(0, num, next(step for step in steps if num <= step * max(1, at_most)))


def _clients(num: int) -> str:
    return f"{num:,} client" if num == 1 else f"{num:,} clients"


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def _shortened(name: str) -> str:
    """`$` is mathematics to matplotlib."""
    return (name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…").replace("$", r"\$")


def _figure(width: float, height: float) -> "Figure":
    """Inches of 100 pixels."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedSSAError("figures need matplotlib: pip install 'fedssa[report]'") from error
    figure = Figure(figsize=(width, height), dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: "Figure", path: Path) -> None:
    """Equal pictures are equal files: nothing in them tells of time or version."""
    if path.suffix.lower() != ".png":
        raise SettingsError(f"{path}: a picture is a PNG file, so its name should end in .png")
    content = BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise FedSSAError(f"{path}: cannot be written ({error.strerror})") from error
