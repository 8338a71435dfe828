"""Settings are written as TOML here. Numbers, strings and truth values are the same in TOML as in JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any


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
