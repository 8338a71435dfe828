"""A run's clients are dealt from a data set, or they are sites; its settings say which."""

from collections.abc import Mapping
from typing import Any

from fedssa.errors import DataError
from fedssa.imports import import_from
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import Settings, parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.sites import SiteClients
from fedssa.sites.settings import SiteSettings, is_of_sites, settings_in

Clients = SimulatedClients | SiteClients


def clients_for(settings: Settings) -> Clients:
    return SiteClients(settings) if isinstance(settings, SiteSettings) else SimulatedClients.prepared(settings)


def clients_in_worker(setup: Mapping[str, Any]) -> Clients:
    """Builds in a worker the same clients as in the process that drives it."""
    table = setup["settings"]
    return SiteClients(settings_in(table)) if is_of_sites(table) else SimulatedClients.open(setup)


def settings_of(run_dir: RunDir) -> Settings:
    """Returns the settings of a run that was begun, in any folder: it knows where its user's modules lie."""
    import_from(run_dir.about.get("import_from", ()))
    table = run_dir.settings
    return settings_in(table) if is_of_sites(table) else parse_settings(table)


def clients_of(run_dir: RunDir, settings: Settings) -> Clients:
    """Returns the clients of a run that was begun, and refuses other data, which would be dealt differently."""
    clients = clients_for(settings)
    now, public = clients.about_data, clients.public
    if (run_dir.data_digest, run_dir.class_names, run_dir.input_shape) != now:
        digests = f"digest {run_dir.data_digest[:12]}, now {now[0][:12]}"
        what = "sites (data or starting weights)" if isinstance(clients, SiteClients) else "data or class names"
        raise DataError(f"{run_dir.path}: begun with other {what} ({digests}); restore those it began with")
    if run_dir.public_digest != (public.digest if public else ""):
        raise DataError(f"{run_dir.path}: begun with other public data; restore those it began with")
    if run_dir.dealt_digest != clients.dealt_digest:
        raise DataError(
            f"{run_dir.path}: begun when clients held other samples; restore the order, columns and parts of the data, "
            "and the code of the partition"
        )
    return clients
