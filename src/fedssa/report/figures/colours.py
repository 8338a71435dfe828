"""Colours are compared here, by contrast, turned into those for a dark page, and found for names that have none.

They are compared in OKLab (Björn Ottosson, 2020), where equal distances look about equal.
"""

import math
import re
import zlib

LIGHT, DARK = 0, 1  # places in a pair of colours: on white paper, on a dark page

# these are for what a figure has besides its data: (on white, on a dark page)
THEME: dict[str, tuple[str, str]] = {
    "ink": ("#1d1f21", "#e8e6e3"),
    "muted": ("#686c70", "#a2a5a8"),
    "grid": ("#e4e4e1", "#33373b"),
    "paper": ("#ffffff", "#17191c"),
}
# Okabe and Ito's colours with an olive for their yellow, a grey and a purple: for classes and models, never for methods
CATEGORIES = (
    "#0072b2", "#d55e00", "#009e73", "#c65f98", "#e69f00", "#56b4e9", "#1a1a1a", "#8c8100", "#6f4fa8", "#8a8a8a",
)  # fmt: skip
GREY = 0.03  # chroma below which a colour is a grey

Triple = tuple[float, float, float]


def is_colour(text: object) -> bool:
    """Tells whether this is written #rrggbb; it may come from a file, and goes into a style sheet."""
    return isinstance(text, str) and re.fullmatch("#[0-9a-f]{6}", text) is not None


def colour_of_name(name: str) -> str:
    """Gives a method that declares no colour one that is the same in every picture, whatever else is in it."""
    number = zlib.crc32(name.encode())
    angle, lightness = 2 * math.pi * (number % 360) / 360, (0.42, 0.52, 0.62)[number // 360 % 3]
    return _from_oklab((lightness, 0.13 * math.cos(angle), 0.13 * math.sin(angle)))


def on_dark(colour: str) -> str:
    """Keeps the hue for a dark page: colours get lighter by one rule, so they stay apart, and greys change sides."""
    lightness, a, b = oklab(colour)
    lighter = 1.17 - lightness if math.hypot(a, b) < GREY else 0.60 + 0.6 * (lightness - 0.3)
    return _from_oklab((lighter, a, b))


def on_any_ground(colour: str) -> str:
    """Returns a colour neither too dark nor too light for a terminal, which may be black or white."""
    lightness, a, b = oklab(colour)
    return _from_oklab((min(max(lightness, 0.55), 0.66), a, b))


def shaded(colour: str, step: int) -> str:
    """Returns one of several of the same hue: by turns lighter and darker, the further the larger the step."""
    lightness, a, b = oklab(colour)
    shift = 0.09 * ((step + 1) // 2) * (1 if step % 2 else -1)
    return _from_oklab((min(max(lightness + shift, 0.2), 0.8), a, b))


def mixed(first: str, second: str, share: float) -> str:
    """Mixes this share of the second with the rest of the first, in steps that look even."""
    (l0, a0, b0), (l1, a1, b1) = oklab(first), oklab(second)
    return _from_oklab((l0 + share * (l1 - l0), a0 + share * (a1 - a0), b0 + share * (b1 - b0)))


def contrast(first: str, second: str) -> float:
    """Returns the contrast, from 1 (equal) to 21 (black on white), as the WCAG defines it."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def oklab(colour: str) -> Triple:
    r, g, b = _linear(colour)
    long = math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
    medium = math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
    short = math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _from_oklab(lab: Triple) -> str:
    """Returns the nearest colour that a screen can show."""
    lightness, a, b = lab
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_to_byte(part):02x}" for part in linear)


def _linear(colour: str) -> Triple:
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _from_gamma(r), _from_gamma(g), _from_gamma(b)


def _from_gamma(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _to_byte(part: float) -> int:
    part = min(max(part, 0.0), 1.0)
    return round(255 * (12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055))


def _luminance(colour: str) -> float:
    r, g, b = _linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
