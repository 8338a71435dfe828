"""Sites can be simulated: their settings are those of the federation in which they would be deployed.

A simulation says what federation.toml says. If there is no such file yet, `clients` are the names of the sites, [task]
follows from their data, and all else is at its defaults.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedssa.errors import SettingsError
from fedssa.settings.about import without_defaults
from fedssa.settings.imports import given_names
from fedssa.settings.recipe import Settings, Table, read_recipe
from fedssa.settings.toml import inline
from fedssa.sites.agreement import FILE_NAME, KNOWN, Federation, parse_federation
from fedssa.sites.find import Found, sites_in
from fedssa.sites.infer import with_task


@dataclass(frozen=True)
class SiteSettings(Settings):
    """The clients of these settings are sites; `data`, `partition` and the architectures mean nothing here."""

    federation: Federation
    sites: tuple[str, ...]  # a reference for each client

    @override
    def are_those_of(self, table: Mapping[str, Any]) -> bool:
        return table == self.table

    @property
    def command(self) -> str:
        """Repeats the run where the sites' files are, with every setting that is not at its default."""
        if names := list(given_names(self.table)):
            return f"# fedssa.run in Python, given the sites {', '.join(names)}"
        words = ["fedssa", "run", *self.sites, "--set", f"seed={self.seed}"]
        task = {key: value for key, value in self.table["task"].items() if value is not None}
        said = {"task": task, **_said(self.federation), "clients": list(self.federation.clients)}
        for section, value in said.items():
            words += ["--set", f"{section}={inline(value)}"] if value else []
        return shlex.join(words)


def is_of_sites(table: Mapping[str, Any]) -> bool:
    """Tells whether a run directory's settings are those of simulated sites."""
    return "sites" in table


def site_settings(
    sites: Any,
    federation: Path | str | Mapping[str, Any] | None = None,
    changed: Callable[[Table], Table] = dict,
) -> SiteSettings:
    """`federation` is a federation.toml, the directory that holds it, or a table of the same shape.

    `changed` may put something else in the place of what it says.
    """
    table, folder = _read(federation)
    table = changed(table)
    found = _in_order(sites_in(sites), table.get("clients"))
    references = tuple(site.reference for site in found.values())
    return _simulated(parse_federation(with_task(table, found) | {"clients": list(found)}, folder), references)


def settings_in(table: Mapping[str, Any]) -> SiteSettings:
    """Reads the settings of a run that was begun."""
    models = {key: value for key, value in table["models"].items() if key != "archs" and value is not None}
    kept = {key: value for key, value in table.items() if key in KNOWN} | {"models": models}
    return _simulated(parse_federation(kept), tuple(table["sites"]))


def _simulated(federation: Federation, sites: tuple[str, ...]) -> SiteSettings:
    table = federation.table | {"sites": list(sites)}
    if federation.public_section is not None:  # absolute, since a run may be resumed from anywhere
        file = (federation.folder / federation.public_section.file).absolute()
        table["public"] = table["public"] | {"file": str(file)}
    known = {field.name: getattr(federation.settings, field.name) for field in fields(Settings)}
    return SiteSettings(**known | {"table": table}, federation=federation, sites=sites)


def _read(federation: Path | str | Mapping[str, Any] | None) -> tuple[Table, Path]:
    if federation is None or isinstance(federation, Mapping):
        return dict(federation or {}), Path()
    path = Path(federation)
    file = path / FILE_NAME if path.is_dir() else path
    return read_recipe(file), file.parent


def _in_order(sites: dict[str, Found], clients: Any) -> dict[str, Found]:
    """Puts sites in the order of a federation's clients: by name, or as they come if they have only numbers."""
    if not isinstance(clients, list):
        return sites
    if list(sites) == [str(number) for number in range(len(clients))]:
        return dict(zip(clients, sites.values(), strict=True))
    for name in (*sites, *clients):
        if name not in clients:
            raise SettingsError(f"{name}: is no client of this federation; they are {', '.join(map(str, clients))}")
        if name not in sites:
            raise SettingsError(f"{name}: is a client of this federation, and there is no such site")
    return {name: sites[name] for name in clients}


def _said(federation: Federation) -> dict[str, Any]:
    """Returns of each section what differs from its defaults; the stand-ins for what sites bring are left out."""
    said = without_defaults(federation.settings)
    models = {key: value for key, value in said["models"].items() if key != "archs"}
    kept = {key: said[key] for key in ("local", "server", "rounds", "method", "privacy", "run") if said.get(key)}
    public = {"public": federation.table["public"]} if federation.public_section else {}
    return json.loads(json.dumps({"models": models, **kept, **public}))  # type: ignore[no-any-return]
