"""Run directories made by hand: what a run would have written, without a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedssa.core.heard import Heard
from fedssa.records import ClassCounts, ClientRecord, Outcome, RoundRecord, Scores, latest_scores
from fedssa.runs.directory import RunDir, fill_run_dir
from tests.tiny import without_digest

Accuracy = float | tuple[float, float | None]  # test, or test and validation (None: no validation samples)


def settings(method: str = "fedssa", **changes: Any) -> dict[str, Any]:
    """A whole table; a change is written section__key=value, or seed=value."""
    table: dict[str, Any] = {
        "seed": 0,
        "data": {"name": "digits"},
        "partition": {"name": "classes", "clients": 3, "classes_per_client": 2},
        "models": {"archs": ["cnn-1", "cnn-2"], "width": 4},
        "local": {"epochs": 1},
        "rounds": {"total": 3, "fraction": 1.0},
        "method": {"name": method},
        "run": {"target": None, "evaluate_start": True},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            table[section][name] = value
        else:
            table[section] = value
    return table


def make_run(
    path: Path,
    rounds: Sequence[Mapping[int, Accuracy]],
    table: dict[str, Any] | None = None,
    digest: str = "data",
    second: str | None = None,
) -> RunDir:
    """rounds[0] is the start (empty: not measured); each gives the accuracies of the clients that took part.

    By the second kind of inference, where a name is given, every client is half as accurate.

    In a round, every client sends 10 numbers (44 bytes) up and, but for round 0, 5 (24 bytes) down.
    """
    run_dir = RunDir(path, table or settings(), digest, ("cat", "dog"), (1, 2, 2))
    fill_run_dir(run_dir, {})
    records: list[RoundRecord] = []
    for t, accuracies in enumerate(rounds, start=-1):
        clients = tuple(_client(t, client, accuracy, second) for client, accuracy in accuracies.items())
        heard = Heard(latest_scores([*records, RoundRecord(t, {}, 0, clients)]))
        records.append(RoundRecord(t, heard.mean_accuracy(), len(heard), clients))
        run_dir.append(records[-1])
        run_dir.append_timing({"t": t, "seconds": 100.0 if t < 0 else 1.0 + t})
    return run_dir


def finished_run(
    path: Path,
    rounds: Sequence[Mapping[int, Accuracy]],
    table: dict[str, Any] | None = None,
    digest: str = "data",
    second: str | None = None,
) -> RunDir:
    run_dir = make_run(path, rounds, table, digest, second)
    run_dir.write_outcome(Outcome("finished", t=len(rounds) - 2))
    return run_dir


def with_flops(run_dir: RunDir, flops: int, *, server: int | None = None, tuning: int | None = None) -> RunDir:
    """As if every client had spent that in every round, and the server what is its own."""
    records = run_dir.records()
    run_dir.rounds_file.write_bytes(b"")
    for record in records:
        if record.t >= 0:
            clients = tuple(replace(client, flops=flops, tuning_flops=tuning) for client in record.clients)
            record = replace(record, clients=clients, server_flops=server)
        run_dir.append(record)
    return run_dir


def without_numbers(run_dir: RunDir) -> RunDir:
    """As if all that was sent were whole numbers, in as many bytes."""
    records = run_dir.records()
    run_dir.rounds_file.write_bytes(b"")
    for record in records:
        run_dir.append(
            replace(record, clients=tuple(replace(client, params_up=0, params_down=0) for client in record.clients))
        )
    return run_dir


def with_counts(run_dir: RunDir, hits: tuple[int, int], **metrics: float) -> RunDir:
    """As if each client had five test samples of both classes, of which it tells so many right."""
    counts = ClassCounts((0, 1), (5, 5), hits, (hits[0] + 5 - hits[1], hits[1] + 5 - hits[0]))
    records = run_dir.records()
    run_dir.rounds_file.write_bytes(b"")
    for record in records:
        measured = (replace(c.scores, per_class=counts, metrics=metrics or None) for c in record.clients)
        clients = tuple(replace(c, scores=s) for c, s in zip(record.clients, measured, strict=True))
        run_dir.append(replace(record, clients=clients))
    return run_dir


def with_colour(run_dir: RunDir, colour: object) -> RunDir:
    return with_about(run_dir, colour=colour)


def with_about(run_dir: RunDir, **about: object) -> RunDir:
    """What a run writes about itself when it starts."""
    head = without_digest(run_dir.path / "settings.json")
    (run_dir.path / "settings.json").write_text(json.dumps(head | {"about": about}))
    return RunDir.open(run_dir.path)


def _client(t: int, client: int, accuracy: Accuracy, second: str | None) -> ClientRecord:
    test, val = accuracy if isinstance(accuracy, tuple) else (accuracy, accuracy)
    tests = {"head": test} | ({second: test / 2} if second else {})
    scores = Scores(tests, 10, {} if val is None else {"head": val}, 0 if val is None else 10)
    if t < 0:
        return ClientRecord(client, scores)
    down = (5, 24) if t > 0 else (0, 0)
    return ClientRecord(
        client,
        scores,
        loss=1.5,
        steps=3,
        header_norm=0.5 + t + client,
        params_up=10,
        params_down=down[0],
        bytes_up=44,
        bytes_down=down[1],
    )
