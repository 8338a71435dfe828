"""A cell is a federation, everything about a run but its method and its seed, at one of several scales of training."""

from dataclasses import dataclass
from typing import Any

Table = dict[str, Any]

SCALES = ("full", "long", "reduced", "smoke")
EPOCHS = {"full": 10, "long": 10, "reduced": 2, "smoke": 1}
SIZES = {
    "full": (100, 50, 10),
    "long": (100, 50, 10),
    "reduced": (100, 50, 10),
    "smoke": (4,),
}  # N of the paper's federations
ROUNDS = {
    "full": {10: 100, 20: 100, 50: 500, 100: 500},
    "long": {10: 50, 20: 50, 50: 100, 100: 100},
    "reduced": {10: 15, 20: 30, 50: 50, 100: 100},
    "smoke": {4: 2},
}
FRACTIONS = {4: 0.5, 10: 1.0, 20: 0.5, 50: 0.2, 100: 0.1}  # share of the clients that are in a round, by their number
CLASSES = {"cifar100": 10, "cifar10": 2, "digits": 3}  # a client
LARGEST = {"full": 100, "long": 100, "reduced": 100, "smoke": 4}  # N of the experiments that have one
ARCHS = {"hetero": ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], "homo": ["cnn-1"]}
SMALL_ARCHS = {"hetero": ["cnn-4", "cnn-5"], "homo": ["cnn-5"]}  # of brief runs and smokes
BRIEF_ROUNDS, BRIEF_EPOCHS = 10, 1
SHARE = 0.2  # of the data, in experiments of many runs at scale `reduced`
STEPS = {"batch_size": 64, "lr": 0.01}
STEPS_ON_A_SHARE = {"batch_size": 16, "lr": 0.02}  # more and larger ones, so that clients get past the start
PUBLIC: dict[str, Table] = {  # about a thousand samples, the same in every round
    "cifar100": {"name": "cifar100", "size": 1000, "per_round": 0},
    "slice": {"name": "slice", "share": 0.02, "per_round": 0},
}
USUAL = 1.0  # the paper's headers: as torch initialises them


@dataclass(frozen=True, kw_only=True)
class Cell:
    scale: str
    data: str
    clients: int
    fraction: float
    classes: int
    gamma: float | None = None  # in place of classes
    models: str = "hetero"
    header_scale: float = USUAL  # of the initial headers, where a method has none of its own
    representations: int = 0
    public: str = ""  # a data set, or "slice" of its own
    attack: str = ""  # of a fifth of the clients
    share: float = 1.0  # of the data
    brief: bool = False  # few rounds and small models, for many runs

    @property
    def name(self) -> str:
        name = f"{self.models}-n{self.clients}-c{self.fraction:g}"
        if self.gamma is not None:
            name += f"-gamma{self.gamma:g}"
        elif self.classes != CLASSES[self.data]:
            name += f"-k{self.classes}"
        if self.share != 1:
            name += f"-share{self.share:g}"
        if self.brief:
            name += "-brief"
        if self.public:
            name += f"-public-{self.public}"
        if self.header_scale != USUAL:
            name += f"-x{self.header_scale:g}"
        if self.attack:
            name += f"-{self.attack}"
        return name + ("-tsne" if self.representations else "")

    @property
    def words(self) -> str:
        dealt = f"k = {self.classes}" if self.gamma is None else f"γ = {self.gamma:g}"
        public = f", public: {self.public}" if self.public else ""
        start = "" if self.header_scale == USUAL else f", header × {self.header_scale:g}"
        share = "" if self.share == 1 else f", {self.share:.0%} of the data"
        attack = f", {self.attack}" if self.attack else ""
        return f"N = {self.clients}, C = {self.fraction:.0%}, {dealt}{share}{public}{start}{attack}"

    @property
    def folder(self) -> str:
        return f"{self.scale}/{self.data}/{self.name}"

    def table(self) -> Table:
        """Returns a recipe without seed and method."""
        by_classes: Table = {"name": "classes", "classes_per_client": self.classes}
        dirichlet: Table = {"name": "dirichlet", "gamma": self.gamma}
        smoke = self.scale == "smoke"
        archs = (SMALL_ARCHS if smoke or self.brief else ARCHS)[self.models]
        models: Table = {"archs": archs} | ({"width": 64} if smoke else {})
        models |= {} if self.header_scale == USUAL else {"header_scale": self.header_scale}
        models |= {"server": archs[0]} if self.public else {}
        return {
            "data": {"name": self.data} | ({} if self.share == 1 else {"share": self.share}),
            "partition": {"clients": self.clients} | (by_classes if self.gamma is None else dirichlet),
            "models": models,
            "local": {"epochs": BRIEF_EPOCHS if self.brief else EPOCHS[self.scale]}
            | (STEPS if self.share == 1 else STEPS_ON_A_SHARE),
            "rounds": {
                "total": BRIEF_ROUNDS if self.brief else ROUNDS[self.scale][self.clients],
                "fraction": self.fraction,
            },
            "run": {"keep_models": False, "representations": self.representations},
            **({"public": PUBLIC[self.public]} if self.public else {}),
            **({"hostile": {"attack": self.attack, "clients": 0.2}} if self.attack else {}),
        }
