"""The defaults of the settings for those who must not wait for torch. A test keeps them equal to the real ones.

A setting that is None is always at its default: a recipe cannot say None.
"""

from collections.abc import Mapping
from typing import Any

Table = dict[str, Any]

SECTIONS: dict[str, Table] = {
    "data": {"download": True},
    "partition": {"min_samples": 10},
    "models": {"archs": ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], "width": 500},
    "local": {
        "epochs": 1,
        "batch_size": 64,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "clip": 0.0,
        "augment": False,
    },
    "rounds": {"total": 20, "fraction": 1.0},
    "run": {"kernel": "auto", "keep_models": True, "representations": 0, "evaluate_start": True},
}

_FEDSSA = {
    "mu0": 0.5,
    "t_stable": 2,
    "fusion": "sum",
    "scope": "seen",
    "shared_rows": "seen",
    "participants": "round",
    "class_weights": "equal",
    "upload_form": "rows",
    "unseen_global": "skip",
}

METHODS: dict[str, Table] = {
    "standalone": {"header_scale": 1.0},
    "fedssa": _FEDSSA,
    "fedssa-plus": {"mu0": 0.5, "t_stable": 2, "lam": 1.0},
    "fedproto": {"lam": 1.0, "weights": "count"},
    "fd": {"gamma": 0.1},
    "fml": {"alpha": 0.5, "beta": 0.5},
    "fedkd": {"t_start": 0.95, "t_end": 0.98},
    "lg-fedavg": {"weights": "equal"},
    "fedclassavg": {"rho": 0.1, "tau": 0.07, "tau_base": 0.07, "normalised": True},
    "fedavg": {},
}

CONTROL = "standalone-scaled"  # every comparison carries it
PRESETS: dict[str, Table] = {
    CONTROL: {"header_scale": 3.0},
    "m1-a": _FEDSSA | {"shared_rows": "all", "scope": "all", "fusion": "replace"},
    "m1-b": _FEDSSA | {"shared_rows": "all", "scope": "all"},
    "m2-a": _FEDSSA | {"scope": "all", "fusion": "replace"},
    "m2-b": _FEDSSA | {"fusion": "replace"},
}


def without_defaults(table: Mapping[str, Any]) -> Table:
    """What a recipe would have to say: the seed, and of each section what differs from its defaults."""
    left: Table = {"seed": table.get("seed", 0)}
    for section in (*SECTIONS, "method"):
        options = table.get(section, {})
        defaults = SECTIONS.get(section) or (METHODS | PRESETS).get(options.get("name"), {})
        left[section] = {
            key: value for key, value in options.items() if value is not None and defaults.get(key, None) != value
        }
    return left
