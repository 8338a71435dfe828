"""Architectures are entries of [models]: a name, or a table with a name. Tables and figures show a short label of each.

Nothing here imports torch, so that reports start fast.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedssa.errors import SettingsError
from fedssa.runs.directory import RunDir
from fedssa.settings.toml import inline

Entry = str | dict[str, Any]


def label(entry: Entry) -> str:
    """Returns zoo:resnet(depth=20, lr=0.003): the name without folders, then all else that the entry says."""
    if isinstance(entry, str):
        return _short(entry)
    said = {key: value for key, value in entry.items() if key not in ("name", "local")} | entry.get("local", {})
    words = [f"{key}={value if isinstance(value, str) else inline(value)}" for key, value in said.items()]
    return f"{_short(entry['name'])}({', '.join(words)})" if words else _short(entry["name"])


def _short(name: str) -> str:
    return name.rpartition("/")[2] if ".py:" in name else name


def entries_of(models: Mapping[str, Any]) -> list[Entry]:
    """Returns all architectures that clients may have: the list, then what single clients get besides."""
    found: list[Entry] = list(models["archs"])
    for entry in (models.get("clients") or {}).values():
        if entry not in found:
            found.append(entry)
    return found


def groups_of(models: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """Returns the place of each client's architecture in `entries_of`; a client goes by its name or its number."""
    given, entries, usual = models.get("clients") or {}, entries_of(models), len(models["archs"])
    for key in given:
        if key not in names and not (key.isdecimal() and int(key) < len(names)):
            raise SettingsError(
                f"models.clients: there is no client {key!r}; name one of the {len(names)}, or its number"
            )
    by_client = (given.get(name, given.get(str(k))) for k, name in enumerate(names))
    return [k % usual if entry is None else entries.index(entry) for k, entry in enumerate(by_client)]


def models_of(run_dir: RunDir) -> list[str]:
    """Returns the label of each client's architecture."""
    models = run_dir.settings["models"]
    labels = [label(entry) for entry in entries_of(models)]
    names = [run_dir.client_name(client) for client in range(run_dir.settings["partition"]["clients"])]
    return [labels[group] for group in groups_of(models, names)]
