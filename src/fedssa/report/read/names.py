"""Files of a report are named by what is in them, so that a name stays when runs of something else are added."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from fedssa.report.read.groups import Group
from fedssa.settings.labels import entries_of, label

LONGEST = 20  # characters of a part


def file_names(groups: Sequence[Group], without: str = "") -> list[str]:
    """Returns a name for each group, of all parts but one; where others have the same, only the first has it alone."""
    found: list[str] = []
    for group in groups:
        plain = "-".join(part for name, part in _parts(group).items() if part and name != without)
        digest = hashlib.sha256(json.dumps(group.settings, sort_keys=True).encode()).hexdigest()[:8]
        found.append(plain if plain not in found else f"{plain}-{digest}")
    return found


def slug(value: Any, longest: int = LONGEST) -> str:
    """Makes a part of a file's name of anything that a run's settings may say."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:longest]


def _parts(group: Group) -> dict[str, str]:
    """Returns the parts by the settings that they say."""
    settings = group.settings
    partition, local, rounds = (settings[section] for section in ("partition", "local", "rounds"))
    archs = [slug(label(entry)) for entry in entries_of(settings["models"])]
    return {
        "data": slug(settings["data"]) or "data",
        "share": f"share{slug(settings['share'])}" if "share" in settings else "",
        "clients": f"n{slug(partition['clients'])}",
        "archs": archs[0] if len(set(archs)) == 1 else f"{archs[0]}-to-{archs[-1]}",
        "classes_per_client": f"k{slug(partition['classes_per_client'])}" if "classes_per_client" in partition else "",
        "gamma": f"gamma{slug(partition['gamma'])}" if "gamma" in partition else "",
        "fraction": f"c{slug(rounds.get('fraction', ''))}",
        "epochs": f"e{slug(local.get('epochs', ''))}",
        "total": f"r{slug(rounds.get('total', ''))}",
        "augment": "augmented" if local.get("augment") else "",
        "public": f"public-{slug(settings['public'].get('name', ''))}" if "public" in settings else "",
        "hostile": slug(settings["hostile"].get("attack", "")) if "hostile" in settings else "",
    }
