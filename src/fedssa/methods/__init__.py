"""Methods go by name. A new one is a file here and a line in METHODS; from outside, an import path in the recipe."""

from fedssa.core.client import AnyMethod
from fedssa.core.method import Preset
from fedssa.methods.cfd import CFD
from fedssa.methods.chfl import CHFL
from fedssa.methods.cronus import Cronus
from fedssa.methods.dsfl import DSFL
from fedssa.methods.fccl import FCCL
from fedssa.methods.fd import FD
from fedssa.methods.fed_et import FedET
from fedssa.methods.fedaux import FedAUX
from fedssa.methods.fedavg import FedAvg
from fedssa.methods.fedbabu import FedBABU
from fedssa.methods.fedclassavg import FedClassAvg
from fedssa.methods.feddf import FedDF
from fedssa.methods.fedgems import FedGEMS
from fedssa.methods.fedgen import FedGen
from fedssa.methods.fedgh import FedGH
from fedssa.methods.fedgkt import FedGKT
from fedssa.methods.fedhenn import FedHeNN
from fedssa.methods.fedkd import FedKD
from fedssa.methods.fedkemf import FedKEMF
from fedssa.methods.fedkt import FedKT
from fedssa.methods.fedmatch import FedMatch
from fedssa.methods.fedmd import FedMD
from fedssa.methods.fedmrl import FedMRL
from fedssa.methods.fedper import FedPer
from fedssa.methods.fedproto import FedProto
from fedssa.methods.fedrep import FedRep
from fedssa.methods.fedssa import FedSSA
from fedssa.methods.fedssa_groups import FedSSAGroups
from fedssa.methods.fedssa_plus import FedSSAPlus
from fedssa.methods.fedtgp import FedTGP
from fedssa.methods.fedzkt import FedZKT
from fedssa.methods.fml import FML
from fedssa.methods.fsfl import FSFL
from fedssa.methods.hfd import HFD
from fedssa.methods.kt_pfl import KTpFL
from fedssa.methods.lg_fedavg import LGFedAvg
from fedssa.methods.pfedes import PFedES
from fedssa.methods.standalone import Standalone
from fedssa.methods.standalone_public import StandalonePublic

METHODS: dict[str, type[AnyMethod]] = {
    "standalone": Standalone,
    "standalone-public": StandalonePublic,
    "fedssa": FedSSA,
    "fedssa-plus": FedSSAPlus,
    "fedssa-groups": FedSSAGroups,
    "fedproto": FedProto,
    "fedtgp": FedTGP,
    "fd": FD,
    "hfd": HFD,
    "lg-fedavg": LGFedAvg,
    "fedclassavg": FedClassAvg,
    "chfl": CHFL,
    "fedgh": FedGH,
    "fedgen": FedGen,
    "fml": FML,
    "fedkd": FedKD,
    "fedmrl": FedMRL,
    "pfedes": PFedES,
    "fedavg": FedAvg,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedmatch": FedMatch,
    "fedgkt": FedGKT,
    "fedzkt": FedZKT,
    "ds-fl": DSFL,
    "fedmd": FedMD,
    "kt-pfl": KTpFL,
    "fccl": FCCL,
    "cronus": Cronus,
    "fedhenn": FedHeNN,
    "feddf": FedDF,
    "fedaux": FedAUX,
    "fed-et": FedET,
    "fedkemf": FedKEMF,
    "fedgems": FedGEMS,
    "cfd": CFD,
    "fsfl": FSFL,
    "fedkt": FedKT,
}

PRESETS: dict[str, tuple[type[AnyMethod], Preset]] = {
    name: (method, preset) for method in METHODS.values() for name, preset in method.presets.items()
}


def colour_of(name: str) -> str | None:
    """Returns the colour of a method or preset of ours."""
    return PRESETS[name][1].colour if name in PRESETS else METHODS[name].colour if name in METHODS else None


__all__ = [
    "CFD",
    "CHFL",
    "DSFL",
    "FCCL",
    "FD",
    "FML",
    "FSFL",
    "HFD",
    "METHODS",
    "PRESETS",
    "Cronus",
    "FedAUX",
    "FedAvg",
    "FedBABU",
    "FedClassAvg",
    "FedDF",
    "FedET",
    "FedGEMS",
    "FedGH",
    "FedGKT",
    "FedGen",
    "FedHeNN",
    "FedKD",
    "FedKEMF",
    "FedKT",
    "FedMD",
    "FedMRL",
    "FedMatch",
    "FedPer",
    "FedProto",
    "FedRep",
    "FedSSA",
    "FedSSAGroups",
    "FedSSAPlus",
    "FedTGP",
    "FedZKT",
    "KTpFL",
    "LGFedAvg",
    "PFedES",
    "Standalone",
    "StandalonePublic",
    "colour_of",
]
