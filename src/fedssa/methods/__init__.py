"""Methods go by name. A new one is a file here and a line in METHODS; from outside, an import path in the recipe."""

from fedssa.core.client import AnyMethod
from fedssa.core.method import Preset
from fedssa.methods.chfl import CHFL
from fedssa.methods.dsfl import DSFL
from fedssa.methods.fd import FD
from fedssa.methods.fedavg import FedAvg
from fedssa.methods.fedclassavg import FedClassAvg
from fedssa.methods.fedgh import FedGH
from fedssa.methods.fedkd import FedKD
from fedssa.methods.fedproto import FedProto
from fedssa.methods.fedrep import FedRep
from fedssa.methods.fedssa import FedSSA
from fedssa.methods.fedssa_plus import FedSSAPlus
from fedssa.methods.fml import FML
from fedssa.methods.hfd import HFD
from fedssa.methods.lg_fedavg import LGFedAvg
from fedssa.methods.standalone import Standalone

METHODS: dict[str, type[AnyMethod]] = {
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
    "fedrep": FedRep,
    "fedgh": FedGH,
    "ds-fl": DSFL,
    "hfd": HFD,
    "chfl": CHFL,
}

PRESETS: dict[str, tuple[type[AnyMethod], Preset]] = {
    name: (method, preset) for method in METHODS.values() for name, preset in method.presets.items()
}


def colour_of(name: str) -> str | None:
    """Returns the colour of a method or preset of ours."""
    return PRESETS[name][1].colour if name in PRESETS else METHODS[name].colour if name in METHODS else None


__all__ = [
    "CHFL",
    "DSFL",
    "FD",
    "FML",
    "HFD",
    "METHODS",
    "PRESETS",
    "FedAvg",
    "FedClassAvg",
    "FedGH",
    "FedKD",
    "FedProto",
    "FedRep",
    "FedSSA",
    "FedSSAPlus",
    "LGFedAvg",
    "Standalone",
    "colour_of",
]
