"""A run directory is examined here, file by file: whether everything in it is what was written."""

from collections.abc import Callable, Iterator
from pathlib import Path

from fedssa.core.message import verify_seal
from fedssa.core.tensors import unpack
from fedssa.errors import AnswerError, FedSSAError, RunDirError
from fedssa.runs.audit import AUDIT, check_audit
from fedssa.runs.directory import RunDir
from fedssa.runs.files import CHECKPOINT, is_across_sites
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import INDEX, PREVIOUS, latest_digests
from fedssa.simulate.population import settings_of
from fedssa.simulate.saved_models import groups_in, read_model

SOUND = "sound"


def examine(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the files of a run and what is wrong with each, or that it is sound; raises if it is no run directory."""
    run_dir = RunDir.open(path)
    yield "settings.json", SOUND
    yield "environment.json", _said(lambda: run_dir.environment())
    if (path / "outcome.json").exists():
        yield "outcome.json", _said(lambda: run_dir.outcome())
    yield "rounds.jsonl", _said(lambda: run_dir.records())
    damaged = run_dir.timing_lines().count(None)
    yield "timings.jsonl", f"{run_dir.timings_file}: {damaged} lines are damaged" if damaged else SOUND
    if is_across_sites(path):
        yield AUDIT, _said(lambda: check_audit(run_dir))
    for file in (run_dir.store / INDEX, run_dir.store / PREVIOUS, path / CHECKPOINT):
        if file.exists():
            yield str(file.relative_to(path)), _said(lambda file=file: _refuse_broken_seal(file))  # type: ignore[misc]
    if (run_dir.store / INDEX).exists():
        yield "store", _said(lambda: _verify_states(run_dir))
    if (path / "models").exists():
        yield "models", _said(lambda: _read_models(run_dir))
    if run_dir.representations_file.exists():
        yield "representations.npz", _said(lambda: run_dir.representations())


def _said(read: Callable[[], object]) -> str:
    try:
        read()
    except FedSSAError as error:
        return str(error)
    return SOUND


def _refuse_broken_seal(file: Path) -> None:
    try:
        verify_seal(file.read_bytes())
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{file}: damaged ({error}); restore it from a copy") from error


def _verify_states(run_dir: RunDir) -> None:
    """Compares every state with the digest in its client's last committed record."""
    index = run_dir.store / INDEX
    _refuse_broken_seal(index)
    meta, tensors = unpack(index.read_bytes())
    slots, groups = Slots(run_dir.store), groups_in(run_dir, settings_of(run_dir))
    for client, told in latest_digests(run_dir.records()[: meta["fields"]["next_round"] + 1]).items():
        slots.verify(groups[client], int(tensors["slots"][client]), client, told, whole=True)


def _read_models(run_dir: RunDir) -> None:
    """Reads the model of every client that trained."""
    for client in latest_digests(run_dir.records()):
        read_model(run_dir.model_file(client), client)
