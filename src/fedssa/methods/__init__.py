"""Methods by name. A new one is a file here and a line in METHODS; from outside, an import path in the recipe."""

from typing import Any

from fedssa.core.method import Method
from fedssa.methods.fd import FD
from fedssa.methods.fedavg import FedAvg
from fedssa.methods.fedclassavg import FedClassAvg
from fedssa.methods.fedkd import FedKD
from fedssa.methods.fedproto import FedProto
from fedssa.methods.fedssa import FedSSA
from fedssa.methods.fedssa_plus import FedSSAPlus
from fedssa.methods.fml import FML
from fedssa.methods.lg_fedavg import LGFedAvg
from fedssa.methods.standalone import Standalone

METHODS: dict[str, type[Method]] = {
    "standalone": Standalone,
    "fedssa": FedSSA,
    "fedssa-plus": FedSSAPlus,
    "fedproto": FedProto,
    "fd": FD,
    "fml": FML,
    "fedkd": FedKD,
    "lg-fedavg": LGFedAvg,
    "fedclassavg": FedClassAvg,
    "fedavg": FedAvg,
}

# name -> (class, settings that make it what it is). m1 and m2 are the ablations of the paper's appendix.
PRESETS: dict[str, tuple[type[Method], dict[str, Any]]] = {
    "standalone-scaled": (Standalone, {"header_scale": 3.0}),
    "m1-a": (FedSSA, {"shared_rows": "all", "scope": "all", "fusion": "replace"}),
    "m1-b": (FedSSA, {"shared_rows": "all", "scope": "all", "fusion": "sum"}),
    "m2-a": (FedSSA, {"shared_rows": "seen", "scope": "all", "fusion": "replace"}),
    "m2-b": (FedSSA, {"shared_rows": "seen", "scope": "seen", "fusion": "replace"}),
}

__all__ = [
    "FD",
    "FML",
    "METHODS",
    "PRESETS",
    "FedAvg",
    "FedClassAvg",
    "FedKD",
    "FedProto",
    "FedSSA",
    "FedSSAPlus",
    "LGFedAvg",
    "Standalone",
]
