"""Methods by name. A new one is a file here and a line in METHODS; from outside, an import path in the recipe."""

from typing import Any

from fedssa.core.method import Method
from fedssa.methods.fedssa import FedSSA
from fedssa.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    "standalone": Standalone,
    "fedssa": FedSSA,
}

# name -> (class, settings that make it what it is). m1 and m2 are the ablations of the paper's appendix.
PRESETS: dict[str, tuple[type[Method], dict[str, Any]]] = {
    "standalone-scaled": (Standalone, {"header_scale": 3.0}),
    "m1-a": (FedSSA, {"shared_rows": "all", "scope": "all", "fusion": "replace"}),
    "m1-b": (FedSSA, {"shared_rows": "all", "scope": "all", "fusion": "sum"}),
    "m2-a": (FedSSA, {"shared_rows": "seen", "scope": "all", "fusion": "replace"}),
    "m2-b": (FedSSA, {"shared_rows": "seen", "scope": "seen", "fusion": "replace"}),
}

__all__ = ["METHODS", "PRESETS", "FedSSA", "Standalone"]
