"""The result of a run is read from its records, and is shown, drawn or handed on as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from fedssa.errors import ClientError, FedSSAError, SettingsError
from fedssa.records import RoundRecord, headlines, latest_scores
from fedssa.runs.directory import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedssa.core.split import SplitModel


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result is what a run leaves behind that has ended, or was stopped."""

    path: Path
    records: tuple[RoundRecord, ...]

    @classmethod
    def of(cls, run_dir: RunDir) -> "RunResult":
        return cls(run_dir.path, tuple(run_dir.records()))

    @property
    def accuracy(self) -> float:
        """Returns the headline: the mean over clients of their own models' test accuracy after the last round."""
        headline = self.records[-1].headline if self.records else None
        if headline is None:
            raise ClientError(f"{self.path}: no kind of inference is reported by all clients; see the method's predict")
        return headline

    @property
    def client_accuracies(self) -> dict[int, float]:
        return headlines(latest_scores(self.records))

    def load(self, client: "int | str") -> "SplitModel":
        """Returns a client's own model, ready for inference."""
        from fedssa.simulate.saved_models import load_client

        return load_client(self.path, client)

    def to_pandas(self, rows: Literal["rounds", "clients"] = "rounds") -> "DataFrame":
        """Returns a table with a row for each round, or for each client that took part in it."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise FedSSAError("to_pandas needs pandas: pip install 'fedssa[notebook]'") from error
        if rows not in ("rounds", "clients"):
            raise SettingsError(f"rows = {rows!r}: should be 'rounds' or 'clients'")
        return DataFrame(list(_rounds(self.records) if rows == "rounds" else _clients(self.records, self._run_dir)))

    def plot(self) -> "Figure":
        """Draws mean accuracy over rounds, and every client's accuracy at the end, as a figure of matplotlib."""
        try:
            from fedssa.api.plot import result_figure
        except ImportError as error:
            raise FedSSAError("plot needs matplotlib: pip install 'fedssa[report]'") from error
        return result_figure(self._run_dir)

    @cached_property
    def _run_dir(self) -> RunDir:
        return RunDir.open(self.path)

    @property
    def _method(self) -> str:
        return str(self._run_dir.settings["method"]["name"])

    @property
    def _facts(self) -> dict[str, str]:
        done, total = max(0, len(self.records) - 1), int(self._run_dir.settings["rounds"]["total"])
        accuracies = list(self.client_accuracies.values())
        told = {"method": self._method, "rounds": str(done) if done == total else f"{done} of {total}"}
        if self.records and self.records[-1].headline is not None:
            told |= {"accuracy": f"{self.accuracy:.2%}", "clients": str(len(accuracies))}
            told |= {"worst and best client": f"{min(accuracies):.2%} … {max(accuracies):.2%}"}
        return told | {"path": str(self.path)}

    @override
    def __repr__(self) -> str:
        return f"RunResult({', '.join(f'{name}: {value}' for name, value in self._facts.items())})"

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._facts.items())
        return f"<table>{''.join(cells)}</table>"


def result(path: Path | str) -> RunResult:
    """Returns the result of a run directory, as far as the run has come."""
    return RunResult.of(RunDir.open(Path(path)))


def _rounds(records: tuple[RoundRecord, ...]) -> Iterator[dict[str, Any]]:
    for record in records:
        losses = [client.loss for client in record.clients if client.loss is not None]
        yield {
            "round": record.t + 1,
            **{f"accuracy ({kind})": value for kind, value in list(record.accuracy.items())[1:]},
            "accuracy": record.headline,
            "loss": sum(losses) / len(losses) if losses else None,
            "clients": len(record.clients),
            "params_up": sum(client.params_up for client in record.clients),
            "params_down": sum(client.params_down for client in record.clients),
            **record.metrics,
        }


def _clients(records: tuple[RoundRecord, ...], run_dir: RunDir) -> Iterator[dict[str, Any]]:
    for record in records:
        for client in record.clients:
            val = next(iter(client.scores.val.values()), None)
            yield {
                "round": record.t + 1,
                "client": client.id,
                **({"name": run_dir.client_name(client.id)} if run_dir.has_names else {}),
                "accuracy": client.scores.headline,
                "val_accuracy": val,
                **client.scores.measures,
                "loss": client.loss,
                "steps": client.steps,
                "header_norm": client.header_norm,
                "params_up": client.params_up,
                "params_down": client.params_down,
            }
