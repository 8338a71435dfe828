"""How each method looks, in every figure of every report: colour, dashes and mark, so that no one of them is needed."""

from collections.abc import Iterable
from dataclasses import dataclass

# Okabe and Ito's colours, told apart by colour-blind readers too, with an olive for their yellow, which is lost on
# white, a grey and a purple: (on white, on black)
INKS: dict[str, tuple[str, str]] = {
    "s0": ("#1a1a1a", "#f4f4f4"),
    "s1": ("#8a8a8a", "#9d9d9d"),
    "s2": ("#d55e00", "#f2803a"),
    "s3": ("#c65f98", "#e79ac6"),
    "s4": ("#0072b2", "#4a9be0"),
    "s5": ("#009e73", "#2fc79a"),
    "s6": ("#e69f00", "#f3bd42"),
    "s7": ("#56b4e9", "#93d4fa"),
    "s8": ("#8c8100", "#d6cb3c"),
    "s9": ("#6f4fa8", "#a98be0"),
    "ink": ("#1d1f21", "#e8e6e3"),
    "muted": ("#686c70", "#a2a5a8"),
    "grid": ("#e4e4e1", "#33373b"),
    "paper": ("#ffffff", "#17191c"),
}
NUM_COLOURS = 10
DASHES = ("", "7 3", "2 3", "9 3 2 3")
SHAPES = ("circle", "square", "up", "diamond", "down", "cross", "plus", "star")
KNOWN = (
    "standalone",
    "standalone-scaled",
    "fedssa",
    "fedssa-plus",
    "fedproto",
    "lg-fedavg",
    "fedclassavg",
    "fd",
    "fml",
    "fedkd",
    "fedavg",
    "m1-a",
    "m1-b",
    "m2-a",
    "m2-b",
)


@dataclass(frozen=True)
class Look:
    series: int  # its number on the page
    label: str
    ink: str
    dash: str
    shape: str


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """In a fixed order. Methods that we know always look the same; the first of several variants has their look."""
    once = list(dict.fromkeys(labels))
    known = [label for label in once if label.split(",")[0] in KNOWN]
    ordered = sorted(known, key=lambda label: (KNOWN.index(label.split(",")[0]), label))
    ordered += [label for label in once if label not in known]
    free, taken = len(KNOWN), set[int]()
    found = {}
    for series, label in enumerate(ordered):
        name = label.split(",")[0]
        number = KNOWN.index(name) if name in KNOWN else free
        if number in taken or number == free:
            number, free = free, free + 1
        taken.add(number)
        found[label] = _look(series, label, number)
    return found


def _look(series: int, label: str, number: int) -> Look:
    turn = number // NUM_COLOURS
    shape = SHAPES[(number + turn) % len(SHAPES)]
    return Look(series, label, f"s{(number + 4 * turn) % NUM_COLOURS}", DASHES[(number + turn) % len(DASHES)], shape)
