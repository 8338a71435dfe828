"""Recipes that somebody has typed, generated or damaged: each is read, or refused in one line."""

import random
from pathlib import Path

from typing_extensions import override

from fedssa.errors import FedSSAError
from fedssa.settings.recipe import parse_settings, read_recipe
from tests.fuzz.case import Case, Part, raised, scratch
from tests.fuzz.mutate import damaged_bytes

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
VALUES = (
    *(
        "9" * 5000,
        "-" + "1" * 5000,
        "0x" + "f" * 6000,
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-0.0",
        "0.0",
        "1_0",
        "9223372036854775808",
    ),
    *("[" * 1000 + "]" * 1000, "{a=" * 400 + "1" + "}" * 400, "[1, 2]", "[]", "{}", '[{name = "mlp"}]'),
    *(
        '"' + "x" * 100_000 + '"',
        '"\\u0000"',
        '"a\\nb"',
        '"\u2028"',
        '""',
        '"../../etc/passwd"',
        '"json:loads"',
        '"x.py:y"',
    ),
    *("true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '"""\n"""', "'x'"),
)
LINES = (
    "[local]",
    "[[models]]",
    "[a.b.c]",
    "a.b.c = 1",
    "[models]\narchs = 7",
    "\0",
    "\ufeff",
    "= 1",
    "x",
    '"" = 1',
    "[run]\nmetrics = [1]",
)


def damaged_recipe(content: bytes, rng: random.Random) -> bytes:
    """A value replaced, a line more, less or doubled, or bytes that are damaged."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines, kind = content.split(b"\n"), rng.randrange(8)
        at = rng.randrange(len(lines))
        if kind <= 3:
            with_value = [i for i, line in enumerate(lines) if b"=" in line and not line.startswith(b"#")]
            if with_value:
                at = rng.choice(with_value)
                lines[at] = lines[at].split(b"=")[0] + b"= " + rng.choice(VALUES).encode()
        elif kind == 4:
            lines.insert(at, rng.choice(LINES).encode())
        elif kind == 5:
            lines.insert(at, rng.choice(lines))
        elif kind == 6:
            del lines[at]
        else:
            lines = [damaged_bytes(content, rng)]
        content = b"\n".join(lines)
    return content


class Recipes(Part):
    def __init__(self) -> None:
        self._folder = scratch()

    @override
    def case(self, rng: random.Random) -> Case:
        recipe = rng.choice(RECIPES)
        return read(damaged_recipe(recipe.read_bytes(), rng), Path(self._folder.name) / recipe.name)

    @override
    def close(self) -> None:
        self._folder.cleanup()


def read(content: bytes, path: Path) -> Case:
    path.write_bytes(content)
    try:
        parse_settings(read_recipe(path))
    except FedSSAError as error:
        line = str(error)
        return (
            Case("refused") if "\n" not in line and len(line) < 2000 else Case("exception", f"recipe: {line[:200]!r}")
        )
    except Exception as error:  # what the campaign looks for
        return Case("exception", f"recipe: {raised(error)}")
    return Case("legal")
