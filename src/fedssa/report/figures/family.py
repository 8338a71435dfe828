"""The family of methods in one picture: a line a method, with a mark for each thing that travels, by who trains."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedssa.report.figures.scene import Figure, Item, Line, Mark, Words, text_width

NAMES, LANE, ROW = 178.0, 80.0, 25.0  # pixels: of the names, from one column to the next, and from line to line
TOP, BAND = 52.0, 40.0  # above the first band, and for the heading of a band
TEXT = 14.0
NOTHING = "nothing"
SHAPES = {"any": "circle", "groups": "square", "one": "diamond"}  # by the models among which it travels
MEANING = {"any": "among any models", "groups": "within groups of equal models", "one": "if all models are equal"}
BANDS = {False: "The clients train", True: "The clients and the server train"}


@dataclass(frozen=True)
class Member:
    name: str
    ink: str  # #rrggbb
    shares: tuple[str, ...]  # the main thing first
    models: str  # one of SHAPES
    server_trains: bool


def family_figure(members: Sequence[Member], kinds: Sequence[str]) -> Figure:
    """Draws the methods, band by band, in the order of the main thing that they share."""
    lanes = {kind: NAMES + LANE * (place + 0.5) for place, kind in enumerate([NOTHING, *kinds])}
    rows: list[Item] = []
    y = TOP
    for server_trains, heading in BANDS.items():
        band = sorted((m for m in members if m.server_trains == server_trains), key=lambda m: _place(m, lanes))
        if band:
            rows += _band(heading, band, lanes, y)
            y += BAND + ROW * len(band)
    width = NAMES + LANE * len(lanes)
    items = (*_headings(lanes), *rows, *_key(y + 26))
    reading = "A mark is something that clients and server send each other; its shape says among which models."
    return Figure("methods", "What travels, and who trains", reading, width, y + 36, items)


def _place(member: Member, lanes: dict[str, float]) -> tuple[list[float], str]:
    return [lanes[kind] for kind in member.shares or (NOTHING,)], member.name


def _headings(lanes: dict[str, float]) -> list[Item]:
    return [
        Words(x, TOP - 12 - 17 * up, word, size=TEXT)
        for kind, x in lanes.items()
        for up, word in enumerate(reversed(kind.split()))
    ]


def _band(heading: str, band: Sequence[Member], lanes: dict[str, float], top: float) -> list[Item]:
    """Draws a heading from which a stem goes down, with a branch to each method."""
    first = top + BAND
    last = first + ROW * (len(band) - 1)
    items: list[Item] = [Words(12, top + 18, heading, "ink", "start", TEXT, bold=True)]
    items += [Line(((x, first - 12), (x, last + 12)), "grid", 1.0) for x in lanes.values()]
    items.append(Line(((18, top + 26), (18, last)), "muted", 1.2))
    for row, member in enumerate(band):
        items += _method(member, lanes, first + ROW * row)
    return items


def _method(member: Member, lanes: dict[str, float], y: float) -> list[Item]:
    places = {kind: lanes[kind] for kind in member.shares or (NOTHING,)}
    first, last = min(places.values()), max(places.values())
    items: list[Item] = [Line(((18, y), (32, y)), "muted", 1.2)]
    items.append(Words(38, y + 5, member.name, "ink", "start", TEXT))
    items.append(Line(((NAMES - 6, y), (last, y)), "grid", 1.0))
    if first < last:
        items.append(Line(((first, y), (last, y)), member.ink, 2.6))
    for kind, x in places.items():
        among = "groups" if kind == "extractors" and member.models == "any" else member.models
        told = f"{member.name}: {kind}, {MEANING[among]}"
        items.append(Mark(x, y, SHAPES[among], member.ink, 13, told=told))
    return items


def _key(y: float) -> list[Item]:
    items: list[Item] = []
    x = NAMES + LANE / 2
    for models, shape in SHAPES.items():
        items += [Mark(x, y - 5, shape, "muted", 12), Words(x + 14, y, MEANING[models], anchor="start", size=TEXT)]
        x += 44 + text_width(MEANING[models], TEXT)
    return items
