"""A drawing becomes a PNG file: matplotlib's renderer, called directly, draws shapes, then Pillow draws words.

That is ten times faster than matplotlib's axes and artists, and a report may have a hundred figures.
"""

from functools import cache
from io import BytesIO
from pathlib import Path as File
from typing import Any

import numpy as np

from fedssa.errors import FedSSAError
from fedssa.report.figures.scene import Dots, Figure, Item, Line, Mark, Point, Tiles, Words, outline, plain_colour

SCALE = 1.5  # dots of the file to a pixel of the drawing
DPI = 72.0
MOST_EXACT = 128  # colours of a file that has 256
LETTERS = 0.93  # these are wider than those on the page
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # on the baseline


def png(figure: Figure) -> bytes:
    """Turns equal drawings into equal files: nothing in them tells of time or version."""
    try:
        from matplotlib.backends import backend_agg
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise FedSSAError("figures need matplotlib: pip install 'fedssa[report]'") from error
    whole = figure.with_heading()
    renderer: Any = backend_agg.RendererAgg(SCALE * whole.width, SCALE * whole.height, DPI)  # type: ignore[no-untyped-call]
    pen = _Pen(renderer, SCALE * whole.height)
    pen.paint([(0, 0), (whole.width, 0), (whole.width, whole.height), (0, whole.height)], "paper", 1.0)
    for item in whole.items:
        pen.draw(item)
    image = Image.fromarray(np.asarray(renderer.buffer_rgba())).convert("RGB")
    brush = ImageDraw.Draw(image)
    for item in whole.items:
        if isinstance(item, Words):
            _write(brush, item)
    content = BytesIO()
    inks = dict.fromkeys(["paper", *(item.ink for item in whole.items)])
    _with_palette(image, [plain_colour(ink) for ink in inks]).save(content, format="png", compress_level=6)
    return content.getvalue()


def _write(brush: Any, words: Words) -> None:
    font, colour = _font(SCALE * LETTERS * words.size, words.bold), plain_colour(words.ink)
    place = (SCALE * words.x, SCALE * words.y)
    if not words.turned:
        brush.text(place, words.text, fill=colour, font=font, anchor=ANCHORS[words.anchor])
        return
    from PIL import Image, ImageFont

    _, above, _, _ = font.getbbox(words.text, anchor="ls")
    below = {"start": 1.0, "middle": 0.5, "end": 0.0}[words.anchor] * font.getlength(words.text)
    turned = ImageFont.TransposedFont(font, Image.Transpose.ROTATE_90)
    brush.text((place[0] + above, place[1] - below), words.text, fill=colour, font=turned)


def _with_palette(image: Any, colours: list[str]) -> Any:
    """Makes the file a third as large, and faster to write. The drawing's colours stay exact; edges get near ones."""
    from PIL import Image

    exact = [bytes.fromhex(colour[1:]) for colour in colours[:MOST_EXACT]]
    edges = image.quantize(256 - len(exact), method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    places = np.asarray(edges) + len(exact)
    pixels = np.asarray(image).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    for place, colour in enumerate(exact):
        places[pixels == int.from_bytes(colour)] = place
    few = Image.fromarray(places.astype(np.uint8))
    few.putpalette(b"".join(exact) + bytes(edges.getpalette()))
    return few


@cache
def _font(size: float, bold: bool) -> Any:
    """Loads the font that matplotlib brings along."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    file = File(get_data_path()) / "fonts" / "ttf" / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
    return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)


class _Pen:
    """The pen turns the drawing over, since the origin of the renderer is at the bottom left."""

    def __init__(self, renderer: Any, height: float) -> None:
        from matplotlib.transforms import Affine2D, IdentityTransform

        self.renderer, self.height = renderer, height
        self.place = Affine2D().scale(SCALE, -SCALE).translate(0, height)
        self.as_it_is = IdentityTransform()

    def draw(self, item: Item) -> None:
        if isinstance(item, Mark):
            self.mark(item)
        elif isinstance(item, Dots):
            self.dots(item)
        elif isinstance(item, Tiles):
            self.tiles(item)
        elif isinstance(item, Line) and item.filled:
            self.paint(item.points, item.ink, item.opacity)
        elif isinstance(item, Line):
            self.line(item)

    def line(self, line: Line) -> None:
        from matplotlib.path import Path

        context = self._context(line.ink, line.opacity, line.width)
        if line.dash:
            context.set_dashes(0, [SCALE * float(length) for length in line.dash.split()])
        self.renderer.draw_path(context, Path(line.points), self.place, None)

    def paint(self, corners: Any, ink: str, opacity: float) -> None:
        from matplotlib.path import Path

        shape = Path([*corners, corners[0]], closed=True)
        context = self._context(ink, opacity, 0)
        self.renderer.draw_path(context, shape, self.place, (*_colour(ink), opacity))

    def tiles(self, tiles: Tiles) -> None:
        from matplotlib.path import Path

        corners = [
            corner for x0, y0, x1, y1 in tiles.boxes for corner in ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0))
        ]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(tiles.boxes)
        context = self._context(tiles.ink, tiles.opacity, 0)
        context.set_antialiased(False)
        if corners:
            self.renderer.draw_path(context, Path(corners, codes), self.place, (*_colour(tiles.ink), tiles.opacity))

    def dots(self, dots: Dots) -> None:
        from matplotlib.path import Path

        if dots.points:
            context = self._context(dots.ink, dots.opacity, 0)
            round_dot = Path.unit_circle().transformed(self._sized(dots.size / 2))
            face = (*_colour(dots.ink), dots.opacity)
            self.renderer.draw_markers(context, round_dot, self.as_it_is, Path(dots.points), self.place, face)

    def mark(self, mark: Mark) -> None:
        from matplotlib.path import Path

        fill, edge = ("paper", mark.ink) if mark.hollow else (mark.ink, "paper")
        context = self._context(edge, mark.opacity, 2 if mark.hollow else 1)
        if mark.shape == "circle":
            shape = Path.unit_circle().transformed(self._sized(mark.size / 2))
        else:
            corners: list[Point] = [(SCALE * x, -SCALE * y) for x, y in outline(mark.shape, mark.size)]
            shape = Path([*corners, corners[0]], closed=True)
        place = Path([(mark.x, mark.y)])
        self.renderer.draw_markers(context, shape, self.as_it_is, place, self.place, (*_colour(fill), mark.opacity))

    def _context(self, ink: str, opacity: float, width: float) -> Any:
        context = self.renderer.new_gc()
        context.set_foreground((*_colour(ink), opacity), isRGBA=True)
        context.set_alpha(opacity)
        context.set_linewidth(SCALE * width)
        context.set_joinstyle("round")
        return context

    def _sized(self, radius: float) -> Any:
        from matplotlib.transforms import Affine2D

        return Affine2D().scale(SCALE * radius)


def _colour(ink: str) -> tuple[float, float, float]:
    code = plain_colour(ink)
    return (int(code[1:3], 16) / 255, int(code[3:5], 16) / 255, int(code[5:7], 16) / 255)
