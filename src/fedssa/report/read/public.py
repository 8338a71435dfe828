"""How much is sent depends on the public samples of a round, and their labels are data: tables tell both."""

from collections.abc import Mapping
from typing import Any

from fedssa.report.read.known import known_method
from fedssa.runs.directory import RunDir

CONTROL = "standalone-public"  # it trains on public labels, and shares nothing


def num_public(run_dir: RunDir) -> int | None:
    """Returns P, the public samples of a round that a run's numbers are of; None if its method uses none.

    0 stands for all of them where the directory does not say how many there are, as older ones do not.
    """
    table, needs = run_dir.settings.get("public"), _needs(run_dir.settings)
    if not table or (needs is not None and not any("public data" in need for need in needs)):
        return None
    told = table.get("per_round") or run_dir.about.get("public_samples") or table.get("size")
    return told if isinstance(told, int) else 0


def public_text(num: int) -> str:
    return f"{num:,}" if num else "all"


def uses_public_labels(settings: Mapping[str, Any]) -> bool:
    needs = _needs(settings) or []
    return "labelled public data" in needs or bool(settings["method"].get("label_weight"))


def _needs(settings: Mapping[str, Any]) -> list[str] | None:
    """Returns what a method of ours needs; None of another's."""
    method = known_method(settings)
    return None if method is None else method.needs
