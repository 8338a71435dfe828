"""Settings are chosen by the clients' validation parts. The test parts are looked at afterwards, for one choice."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedssa.records import latest_scores
from fedssa.report.read.summary import outcome_in_words
from fedssa.runs.directory import RunDir
from fedssa.settings.toml import inline


@dataclass(frozen=True)
class Candidate:
    """A candidate is one combination of settings, whose runs differ in the seed alone."""

    choice: Mapping[str, Any]
    validation: tuple[float, ...]  # of each seed that finished: mean over clients after the last round
    outcome: str
    runs: tuple[RunDir, ...] = field(repr=False)

    @property
    def mean(self) -> float | None:
        """Returns None unless every seed finished and has validation samples."""
        complete = len(self.validation) == len(self.runs)
        return statistics.fmean(self.validation) if self.validation and complete else None

    @property
    def spread(self) -> float | None:
        return statistics.stdev(self.validation) if len(self.validation) > 1 else None

    def test(self) -> tuple[float, ...]:
        """Returns the test accuracies, which may be asked of the chosen candidate only."""
        headlines = [run.records()[-1].headline for run in self.runs]
        return tuple(headline for headline in headlines if headline is not None)


def candidate(choice: Mapping[str, Any], runs: Sequence[RunDir]) -> Candidate:
    finished = [run for run in runs if (outcome := run.outcome()) and outcome.kind == "finished"]
    known = [mean for run in finished if (mean := validation_accuracy(run)) is not None]
    outcomes = sorted({outcome_in_words(run.outcome()) for run in runs})
    return Candidate(choice, tuple(known), ", ".join(outcomes), tuple(runs))


def validation_accuracy(run: RunDir) -> float | None:
    """Returns the mean over the clients that have validation samples, each with its latest model."""
    scores = latest_scores(run.records()).values()
    known = [next(iter(score.val.values())) for score in scores if score.val]
    return statistics.fmean(known) if known else None


def choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """Returns the candidate with the highest mean, of equal ones the first."""
    able = [(one.mean, one) for one in candidates if one.mean is not None]
    return max(able, key=lambda pair: pair[0])[1] if able else None


def selection_table(candidates: Sequence[Candidate], chosen: Candidate | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for key in candidates[0].choice:
        table.add_column(key, no_wrap=True)
    table.add_column("validation, %\n(± over seeds)", justify="right", no_wrap=True)
    table.add_column("")
    for one in candidates:
        values = [Text(inline(value).strip('"')) for value in one.choice.values()]
        notes = ["chosen"] if one is chosen else []
        notes += [] if one.outcome == "finished" else [one.outcome]
        table.add_row(*values, percent(one.validation) if one.mean is not None else "–", ", ".join(notes))
    return table


def percent(accuracies: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.fmean(accuracies):.1f}{spread}"
