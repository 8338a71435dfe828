"""Run directories as a run would have left them, written by the same code, without training anything."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssa.core.heard import Heard
from fedssa.records import ClassCounts, ClientRecord, Outcome, RoundRecord, Scores
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.runs.seal import Chain
from fedssa.settings.recipe import parse_settings

COHORT = 10
DIGEST = "0123456789abcdef" * 4
METHODS = ("standalone", "fedssa", "fedproto", "lg-fedavg", "fedper")
SEEDS = 10


def settings_of(number: int, num_clients: int, num_rounds: int) -> dict[str, Any]:
    """Fifty runs in a row are one experiment: five methods, ten seeds."""
    experiment, place = divmod(number, len(METHODS) * SEEDS)
    return {
        "seed": place // len(METHODS),
        "partition": {"name": "classes", "clients": num_clients, "classes_per_client": 2},
        "local": {"lr": 0.01 * (1 + experiment)},
        "rounds": {"total": num_rounds, "fraction": COHORT / num_clients},
        "method": {"name": METHODS[place % len(METHODS)]},
    }


def records(num_clients: int, num_rounds: int, seed: int = 0) -> Iterator[RoundRecord]:
    rng, heard = random.Random(seed), Heard({})  # noqa: S311 (nothing is kept secret)
    for t in range(-1, num_rounds):
        cohort = range(num_clients) if t < 0 else sorted(rng.sample(range(num_clients), COHORT))
        clients = tuple(_client(k, t, rng) for k in cohort)
        heard.hear({client.id: client.scores for client in clients})
        metrics: Mapping[str, float] = {"shaking": rng.random()} if t > 0 else {}
        yield RoundRecord(t, heard.mean_accuracy(), len(heard), clients, DIGEST, dict(metrics))


def _client(client: int, t: int, rng: random.Random) -> ClientRecord:
    hits = rng.randint(0, 40)
    counts = ClassCounts((client % 10, 10), (20, 20), (hits // 2, hits - hits // 2), (20, 20))
    scores = Scores({"head": hits / 40}, 40, {"head": rng.randint(0, 40) / 40}, 40, counts)
    if t < 0:
        return ClientRecord(client, scores)
    sent = {"params_up": 1002, "params_down": 1002, "bytes_up": 4024, "bytes_down": 4024}
    trained = {"loss": rng.random(), "steps": 12, "header_norm": 1 + rng.random(), "flops": 123_456_789}
    return ClientRecord(client, scores, upload_digest=DIGEST, state_digest=DIGEST, **trained, **sent)  # type: ignore[arg-type]


def begin(path: Path, table: dict[str, Any]) -> RunDir:
    run_dir = RunDir(path, parse_settings(table).table, DIGEST, tuple(map(str, range(11))), (3, 32, 32))
    fill_run_dir(run_dir, {"fedssa": "0", "torch": "0"})
    return run_dir


def write_run(run_dir: RunDir, rounds: Iterator[RoundRecord]) -> None:
    """Writes rounds one by one, as a journal does, and the end."""
    chain, t = Chain(), -1
    for record in rounds:
        t = record.t
        run_dir.append(record, chain)
        run_dir.append_timing({"t": t, "seconds": 1.0})
    run_dir.write_outcome(Outcome("finished", t=t))
