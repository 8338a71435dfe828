"""The accuracies that the paper prints stand beside ours. They are in paper.toml, in percent."""

import tomllib
from functools import cache
from importlib.resources import files

from fedssa.report.read.groups import Group, Settings

Figures = dict[str, dict[str, dict[str, dict[str, float | None]]]]  # table → data → N → method → percent
FAILED = "none"  # the paper's "-": failure to converge


@cache
def paper_figures() -> Figures:
    """Reads `["hetero"]["cifar100"]["100"]["fedssa"]`; None where the paper says that a method failed to converge."""
    text = (files("fedssa.report.read") / "paper.toml").read_text(encoding="utf-8")
    return {
        table: {
            data: {
                clients: {method: None if percent == FAILED else float(percent) for method, percent in methods.items()}
                for clients, methods in by_clients.items()
            }
            for data, by_clients in by_data.items()
        }
        for table, by_data in tomllib.loads(text).items()
    }


def paper_figure(table: str, data: str, clients: int, method: str) -> float | None:
    """Returns percent, or None where the paper has no such cell or says that the method failed to converge."""
    return paper_figures().get(table, {}).get(data, {}).get(str(clients), {}).get(method)


def paper_percent(group: Group, method: str) -> float | None:
    """Returns the paper's figure from its tables, or from its ablations for what only they have."""
    if group.paper_cell is None:
        return None
    scenario, data, clients = group.paper_cell
    name = method.partition(", ")[0]
    if any(_is_another(run.summary.settings) for run in group.by_label.get(method, [])):
        return None
    tables = (scenario, "ablation-m1", "ablation-m2") if scenario == "hetero" else (scenario,)
    return next((found for table in tables if (found := paper_figure(table, data, clients, name)) is not None), None)


def _is_another(settings: Settings) -> bool:
    """Tells what the paper has nothing of: other headers than the usual ones, noise, another rule than the mean."""
    usual = settings["models"].get("header_scale", 1.0) == 1.0
    return not usual or "privacy" in settings or settings.get("aggregation", {}).get("rule", "mean") != "mean"
