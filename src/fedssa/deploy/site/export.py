"""A site's personal model is exported to a file of its own here, and loaded back."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedssa.core.samples import from_json, written
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task, TaskFacts
from fedssa.core.tensors import copy_in, load_sealed, module_state, own, save_sealed
from fedssa.deploy.site.disk import Saved, StateDir
from fedssa.errors import AnswerError, RunDirError
from fedssa.models.fingerprint import check_unchanged
from fedssa.runs.files import write_durably
from fedssa.sites.site import load_net


def export_model(state_dir: Path, target: Path, run: str | None = None) -> Saved:
    saved = StateDir(state_dir).load(run) if run else StateDir(state_dir).latest()
    if saved is None:
        raise RunDirError(f"{state_dir}: holds no model{f' of run {run}' if run else ''}; has this site taken part?")
    net = {name.removeprefix("net."): own(t) for name, t in saved.state.items() if name.startswith("net.")}
    about = {"task": json.dumps(asdict(saved.task)), "run": saved.run, "round": str(saved.t)}
    about |= {} if saved.model is None else {"model": saved.model}
    try:
        write_durably(target, save_sealed(net, about))
    except OSError as error:
        raise RunDirError(f"{target}: cannot be written ({error.strerror})") from error
    return saved


def load_exported(path: Path, site: str) -> SplitModel:
    """Builds the model with the site's own code, as when it took part, and loads the file's weights into it."""
    try:
        about, weights = load_sealed(path.read_bytes())
        task = _task(json.loads(about["task"]))
    except (OSError, ValueError, KeyError, TypeError, AnswerError) as error:
        raise RunDirError(f"{path}: is not an exported model ({error})") from error
    net = _built(site, task)
    check_unchanged(path, site, net, about.get("model"))
    copy_in(weights, module_state(net))
    return net.eval()


def _task(facts: dict[str, Any]) -> Task:
    shape = tuple(facts["input_shape"])
    inputs = written(from_json(facts.get("inputs") or {}, shape)) or None
    return TaskFacts(**facts | {"input_shape": shape, "inputs": inputs}).task()


def _built(site: str, task: Task) -> SplitModel:
    with one_thread(), seeded(0, "start"):
        return load_net(site, task)
