"""The result of a run as a figure of matplotlib, whose axes a user may change."""

from io import BytesIO

from matplotlib.figure import Figure

from fedssa.report.figures.rounds import ACCURACY
from fedssa.report.figures.scene import plain_colour
from fedssa.report.figures.style import styles
from fedssa.report.read.summary import summarise
from fedssa.runs.directory import RunDir


class Picture(Figure):
    """A picture shows itself in a notebook, once, and needs no pyplot."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", bbox_inches="tight")
        return content.getvalue()


def result_figure(run_dir: RunDir) -> Picture:
    """Draws mean accuracy over rounds at the left, and every client's accuracy at the end at the right."""
    run, name = summarise(run_dir), str(run_dir.settings["method"]["name"])
    colour = plain_colour(styles([(name, run_dir)])[name].ink)
    figure = Picture(figsize=(9, 3.5), layout="constrained")
    curve, clients = figure.subplots(1, 2)
    curve.plot([t for t, _ in run.curve], [100 * accuracy for _, accuracy in run.curve], color=colour, label=name)
    curve.set(xlabel="rounds finished", ylabel=ACCURACY.replace(" of ", "\nof "), title=name)
    accuracies = sorted(100 * accuracy for accuracy in run.accuracies.values())
    clients.plot(accuracies, "o", color=colour)
    clients.set(xlabel="clients, from worst to best", ylabel="accuracy at the end, %", title="each client’s own model")
    return figure
