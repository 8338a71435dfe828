"""The smallest federation that is one: shared by the tests of runs, runtimes and the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np

TINY: dict[str, Any] = {
    "seed": 7,
    "data": {"name": "digits"},
    "partition": {"name": "classes", "clients": 4, "classes_per_client": 5},
    "models": {"archs": ["mlp-3", "mlp-2"], "width": 16},
    "local": {"batch_size": 128, "lr": 0.05},
    "rounds": {"total": 3, "fraction": 0.75},
    "method": {"name": "fedssa"},
}


FEW = {"name": "tests.tiny:few_samples"}  # data that train in no time


def few_samples() -> tuple[np.ndarray, np.ndarray]:
    """Vectors of ten classes that a small model learns."""
    y = np.arange(400) % 10
    return np.random.default_rng(0).normal(y[:, None], 1.0, (400, 6)).astype(np.float32), y


def tiny(**sections: Any) -> dict[str, Any]:
    """TINY with some settings changed: tiny(rounds={"total": 5})."""
    merged = {
        name: {**TINY[name], **new} if isinstance(new, dict) and isinstance(TINY.get(name), dict) else new
        for name, new in sections.items()
    }
    return {**TINY, **merged}


FEWER_EPOCHS: dict[str, dict[str, Any]] = {  # than methods have by default, for tests
    "fedmd": {"private_epochs": 2},
    "fccl": {"pretrain_epochs": 2},
    "fsfl": {"private_epochs": 2},
    "fedkt": {"teachers": 2, "teacher_epochs": 1, "student_epochs": 1, "public_epochs": 1, "private_epochs": 1},
}
SMALL: dict[str, dict[str, Any]] = {"fedmrl": {"d1": 5}} | FEWER_EPOCHS  # FedMRL's net is narrower than TINY's models


def without_digest(file: Path) -> dict[str, Any]:
    """What a JSON file of a run says, for a test that writes it again as older editions did: without a digest."""
    return {key: value for key, value in json.loads(file.read_text()).items() if key != "digest"}


def method_of(name: str) -> dict[str, Any]:
    """The section of a method or preset."""
    return {"name": name} | SMALL.get(name, {})


def needs_of(name: str) -> dict[str, Any]:
    """The sections that a recipe must have for this method or preset, besides TINY."""
    from fedssa.methods import METHODS, PRESETS

    cls = METHODS[name] if name in METHODS else PRESETS[name][0]
    one_model = {"archs": ["mlp-2"]} if cls.needs_same_models else {}
    server_model = {"server": "mlp-1"} if cls.needs_server_model else {}
    models = {"models": one_model | server_model} if one_model or server_model else {}
    per_round = 0 if cls.fixed_public else 20
    public = {"public": {"name": "slice", "share": 0.1, "per_round": per_round}} if cls.needs_public != "no" else {}
    rounds = {"rounds": {"total": cls.fixed_rounds, "fraction": 1.0}} if cls.fixed_rounds else {}
    return models | public | rounds


def two_rounds_of(name: str) -> dict[str, Any]:
    """The recipe of a method or preset with which runtimes are compared."""
    return tiny(data=FEW, method=method_of(name), **{"rounds": {"total": 2}, **needs_of(name)})


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing was changed."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
