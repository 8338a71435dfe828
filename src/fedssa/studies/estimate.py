"""How long runs will take is estimated from runs that were timed, else from the speed of this machine."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedssa.settings.labels import label

if TYPE_CHECKING:
    from fedssa.studies.plan import Planned

TRAINED = 0.8  # share of the samples; the others are for validation and test


def time_left(
    planned: "Sequence[Planned]", beside: "Sequence[Planned]", num_samples: int, speed: Callable[[str], float]
) -> str:
    """Says how long it takes, from rounds that were timed in these runs, else in others beside them.

    `speed` measures an architecture's samples a second on this machine, and is called if nothing was timed.
    """
    rates = _measured(planned) or _measured(beside)
    left = [(run, rounds) for run in planned if (rounds := run.rounds_left())]
    if not left:
        return "nothing is left to run"
    if rates:
        known = sum(rounds * run.work_a_round * _nearest(run, rates) for run, rounds in left)
        return f"about {duration(known)}: an estimate from the rounds that were timed so far"
    archs = {label(arch): None for run, _ in left for arch in run.settings.models.archs}
    pace = {arch: 1 / speed(arch) for arch in archs}  # seconds a sample
    guess = sum(
        rounds * run.work_a_round * statistics.fmean(pace[label(arch)] for arch in run.settings.models.archs)
        for run, rounds in left
    )
    trains = ", ".join(archs)
    return f"very roughly {duration(guess * TRAINED * num_samples)}: a guess from how fast this machine trains {trains}"


def _measured(planned: "Sequence[Planned]") -> dict[tuple[str, ...], float]:
    """Returns seconds a unit of work, by what runs have in common."""
    seen: dict[tuple[str, ...], list[float]] = {}
    for run in planned:
        seconds = run.seconds_a_round()
        if seconds is not None:
            for key in _likeness(run):
                seen.setdefault(key, []).append(seconds / run.work_a_round)
    return {key: statistics.median(rates) for key, rates in seen.items()}


def _nearest(run: "Planned", rates: dict[tuple[str, ...], float]) -> float:
    return next(rates[key] for key in _likeness(run) if key in rates)


def _likeness(run: "Planned") -> "Iterator[tuple[str, ...]]":
    """Yields keys of ever more distant runs: itself, its other seeds, its method elsewhere, its neighbours, any."""
    folder, method = str(run.path.parent), str(run.settings.table["method"]["name"])
    yield "run", str(run.path)
    yield "cell and method", folder, method
    yield "method", method
    yield "cell", folder
    yield ("anything",)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
