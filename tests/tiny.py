"""The smallest federation that is one: shared by the tests of runs, runtimes and the command line."""

from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {
    "seed": 7,
    "data": {"name": "digits"},
    "partition": {"name": "classes", "clients": 4, "classes_per_client": 5},
    "models": {"archs": ["mlp-3", "mlp-2"], "width": 16},
    "local": {"batch_size": 128, "lr": 0.05},
    "rounds": {"total": 3, "fraction": 0.75},
    "method": {"name": "fedssa"},
}


def tiny(**sections: Any) -> dict[str, Any]:
    """TINY with some settings changed: tiny(rounds={"total": 5})."""
    merged = {
        name: {**TINY[name], **new} if isinstance(new, dict) and isinstance(TINY.get(name), dict) else new
        for name, new in sections.items()
    }
    return {**TINY, **merged}


FEWER_EPOCHS = {"fedmd": {"private_epochs": 2}, "fccl": {"pretrain_epochs": 2}}  # of a first round, for tests
SMALL = {"fedmrl": {"d1": 5}} | FEWER_EPOCHS  # FedMRL's small net is narrower than TINY's models


def method_of(name: str) -> dict[str, Any]:
    """The section of a method or preset."""
    return {"name": name} | SMALL.get(name, {})


def needs_of(name: str) -> dict[str, Any]:
    """The sections that a recipe must have for this method or preset, besides TINY."""
    from fedssa.methods import METHODS, PRESETS

    cls = METHODS[name] if name in METHODS else PRESETS[name][0]
    one_model = {"models": {"archs": ["mlp-2"]}} if cls.needs_same_models else {}
    public = {"public": {"name": "slice", "share": 0.1, "per_round": 20}} if cls.needs_public != "no" else {}
    return one_model | public


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing was changed."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
