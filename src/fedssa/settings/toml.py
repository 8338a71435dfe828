"""Settings are read and written as TOML here. Numbers, strings and truth values are the same in TOML as in JSON."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

DEEPEST = 50  # tables and arrays in one another
LARGEST = 10**1000  # Python prints numbers of up to 4300 digits
TOO_MANY_DIGITS = "a number has more than 1000 digits"
MAX_BYTES = 10_000_000  # of a file


def parsed(text: str) -> dict[str, Any]:
    """Reads TOML; whatever is wrong with it, or beyond what TOML promises, ends in TOMLDecodeError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python makes no number of so many digits
        raise tomllib.TOMLDecodeError(TOO_MANY_DIGITS) from error
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(f"nested more than {DEEPEST} deep") from error
    if reason := beyond(table):
        raise tomllib.TOMLDecodeError(reason)
    return table


def beyond(value: Any, depth: int = 0) -> str | None:
    """Says what of a table no setting can be: a number that cannot be printed, or parts nested too deep."""
    if depth > DEEPEST:
        return f"nested more than {DEEPEST} deep"
    if isinstance(value, int) and abs(value) >= LARGEST:
        return TOO_MANY_DIGITS
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return next((reason for part in parts if (reason := beyond(part, depth + 1))), None)


def document(table: Mapping[str, Any]) -> str:
    """Writes a recipe: plain values first, then a section for every table."""
    values = [f"{_key(key)} = {inline(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    sections = [
        "\n".join([f"\n[{_key(name)}]", *(f"{_key(key)} = {inline(value)}" for key, value in section.items())])
        for name, section in table.items()
        if isinstance(section, Mapping)
    ]
    return "\n".join([*values, *sections]) + "\n"


def inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
