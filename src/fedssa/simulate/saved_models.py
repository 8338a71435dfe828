"""The clients' final models are written when a run ends, and loaded by whoever wants one."""

import os
import shutil
from pathlib import Path

import numpy as np

from fedssa.core.samples import LocalData, from_json
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Tensors, copy_in, load_sealed, module_state, save_sealed
from fedssa.core.training import representations
from fedssa.errors import AnswerError, ModelError, RunDirError
from fedssa.runs.directory import RunDir
from fedssa.runs.files import is_across_sites
from fedssa.settings.recipe import Settings
from fedssa.settings.task import task_of
from fedssa.simulate.clients import builder_of
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import NO_SLOT, ClientStore
from fedssa.simulate.own_models import check_model
from fedssa.simulate.population import Clients, clients_of, settings_of
from fedssa.simulate.sites import SiteClients
from fedssa.sites.settings import SiteSettings


def write_models(run_dir: RunDir, store: ClientStore) -> None:
    """Writes the models of all clients that trained; the others still have their starts, which can be built again."""
    slots, final, staging = Slots(store.folder), run_dir.path / "models", run_dir.path / "models.tmp"
    if final.exists():
        return
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for client, slot in enumerate(store.committed.slots.tolist()):
        if slot != NO_SLOT:
            state = slots.read(store.groups[client], slot, client)
            net = {name.removeprefix("net."): t for name, t in state.items() if name.startswith("net.")}
            (staging / run_dir.model_file(client).name).write_bytes(save_sealed(net, {"client": str(client)}))
    os.rename(staging, final)  # noqa: PTH104


def write_representations(run_dir: RunDir, store: ClientStore, clients: Clients) -> None:
    """Writes what the header of every client's final model sees of some of its test samples."""
    slots, wanted = Slots(store.folder), clients.settings.run.representations
    rows, labels, owners = [], [], []
    for k, (group, slot) in enumerate(zip(clients.groups, store.committed.slots.tolist(), strict=True)):
        num = (k + 1) * wanted // len(clients.groups) - k * wanted // len(clients.groups)  # fair shares
        client = clients.client(k)
        if slot != NO_SLOT:
            slots.load(group, slot, client, check=True)
        found = representations(client, client.data.test, num)
        rows.append(found.numpy().astype(np.float16))
        labels.append(client.data.test.y[: len(found)].numpy())
        owners.append(np.full(len(found), k))
    staging = run_dir.representations_file.with_suffix(".tmp.npz")
    parts = {"representations": np.concatenate(rows), "labels": np.concatenate(labels)}
    np.savez(staging, allow_pickle=False, clients=np.concatenate(owners), **parts)
    os.replace(staging, run_dir.representations_file)  # noqa: PTH105


def load_client(run_dir: Path | str, client: int | str) -> SplitModel:
    """Returns a client's own model of a finished run, ready for inference; `as_input` turns samples into its input.

    A client is told by its number or its name. `run_dir` may also be a file that `fedssa site export` wrote; `client`
    then names the site's file or import path.
    """
    if isinstance(client, str) and not Path(run_dir).is_dir():
        from fedssa.deploy.site.export import load_exported  # needs Flower, which a simulation does not

        return load_exported(Path(run_dir), client)
    directory = _opened(Path(run_dir))
    settings = settings_of(directory)
    client = _number(directory, settings, client)
    file = directory.model_file(client)
    if not file.exists():
        if reason := _why_no_model(directory, settings, client):
            raise RunDirError(reason)
        return clients_of(directory, settings).client(client).net.eval()  # this client never trained
    net, weights = _built(directory, settings, client), read_model(file, client)
    try:
        copy_in(weights, module_state(net))
    except ModelError as error:
        raise RunDirError(f"{file}: damaged ({error}); restore it from a copy") from error
    return net.eval()


def read_model(file: Path, client: int) -> Tensors:
    """Returns the weights of a client, or names the file if it is damaged or another client's."""
    try:
        about, weights = load_sealed(file.read_bytes())
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{file}: cannot be read ({error}); restore it from a copy") from error
    if about.get("client") != str(client):
        raise RunDirError(f"{file}: is the model of client {about.get('client')}; restore it from a copy")
    return weights


def _built(directory: RunDir, settings: Settings, client: int) -> SplitModel:
    """Builds a model of the client's structure; of its data only a site's own code may need them."""
    if isinstance(settings, SiteSettings):
        sites = SiteClients(settings)
        net = sites.net(client)
        check_model(directory, sites.names[client], net)
        return net
    task = task_of(settings, len(directory.class_names), from_json(directory.inputs, directory.input_shape))
    group = groups_in(directory, settings)[client]
    with seeded(settings.seed, "start", client=client):
        net = builder_of(settings, group, task)()
    check_model(directory, settings.archs[group].model, net)
    return net


def groups_in(directory: RunDir, settings: Settings) -> list[int]:
    """Returns every client's group, without its data."""
    if isinstance(settings, SiteSettings):
        return list(range(settings.num_clients))
    return settings.groups_of([directory.client_name(k) for k in range(settings.num_clients)])


def load_client_data(run_dir: Path | str, client: int | str) -> LocalData:
    """Returns the samples on which a client of a run trained, validated and was tested."""
    directory = _opened(Path(run_dir))
    settings = settings_of(directory)
    client = _number(directory, settings, client)
    return clients_of(directory, settings).data(client)


def _opened(path: Path) -> RunDir:
    """Opens a simulation's run directory, and refuses a run across sites, whose models lie at the sites."""
    directory = RunDir.open(path)
    if is_across_sites(path):
        raise RunDirError(f"{path}: is a run across sites, which keep models and data; at a site: fedssa site export")
    return directory


def known(run_dir: Path, client: str) -> int | str:
    """Returns a client that somebody typed as his name, or else as his number."""
    directory = _opened(run_dir)
    names = [directory.client_name(k) for k in range(int(directory.settings["partition"]["clients"]))]
    return int(client) if client.isdecimal() and client not in names else client


def _number(directory: RunDir, settings: Settings, client: int | str) -> int:
    """Returns the number of a client that is told by its number or its name."""
    names = [directory.client_name(k) for k in range(settings.num_clients)]
    if isinstance(client, str) and client in names:
        return names.index(client)
    if isinstance(client, str) or client not in range(len(names)):
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        known = f"0 to {len(names) - 1}" + (f" ({listed})" if directory.has_names else "")
        raise RunDirError(f"{directory.path}: has no client {client!r}; they are {known}")
    return client


def _why_no_model(directory: RunDir, settings: Settings, client: int) -> str | None:
    outcome = directory.outcome()
    if outcome is None:
        return f"{directory.path}: has not finished; first: fedssa run --resume {directory.path}"
    if outcome.kind == "diverged":
        return f"{directory.path}: has no models ({outcome.message})"
    if not settings.run.keep_models:
        return f"{directory.path}: its models were not kept (run.keep_models = false)"
    if any(heard.id == client for record in directory.records() if record.t >= 0 for heard in record.clients):
        return f"{directory.model_file(client)}: is not there any more; run it again"
    return None
