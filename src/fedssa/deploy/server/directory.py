"""A coordinator's directory holds what it needs: certificates, app, configuration, programs, units, a proxy."""

import getpass
import json
import os
import re
import secrets
import shutil
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from torch import Tensor

from fedssa.core.public import Labels, Public
from fedssa.core.samples import each, is_image
from fedssa.deploy.address import ADDRESS_FILE, Address
from fedssa.deploy.server.certificates import check_public_key, fingerprint, renew_server, write_certificates
from fedssa.deploy.server.registry import registration, write_registration
from fedssa.deploy.server.submit import CONNECTION, flwr
from fedssa.deploy.signing import PUBLIC_KEY_FILE, make_order_key, read_order_key, write_secret
from fedssa.errors import RunDirError, SettingsError
from fedssa.runs.audit import Event, note, read_audit
from fedssa.runs.files import write_atomically
from fedssa.runs.lock import staging_of
from fedssa.settings.recipe import read_recipe
from fedssa.settings.toml import document
from fedssa.sites.agreement import FILE_NAME, PUBLIC_FILE, Deploy, read_federation, read_public, task_in

FIRST_RUNTIME_PORT = 9100  # sites on one machine take this port and the next ones


class Page(Template):
    delimiter = "@"  # since shell and nginx use the dollar themselves


def init(
    directory: Path,
    address: Address,
    clients: Sequence[str],
    *,
    classes: int = 10,
    input_shape: Sequence[int] = (1, 32, 32),
    input_type: str = "float32",
) -> None:
    """Makes the coordinator's directory, which appears by rename, complete or not at all."""
    target = _plain_path(directory)
    if target.exists():
        raise RunDirError(f"{directory}: exists already; choose another directory")
    staging = staging_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir(mode=0o700)
        words = {"classes": classes, "input_shape": json.dumps(list(input_shape)), "input_type": input_type}
        _fill(staging, target, address, clients, words)
        os.rename(staging, target)  # noqa: PTH104 (the commit of the whole directory)
    except OSError as error:
        raise RunDirError(f"{directory}: cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill(staging: Path, target: Path, address: Address, clients: Sequence[str], about_task: Mapping[str, Any]) -> None:
    for folder in ("app", "certificates", "sites", "state/flwr", "state/superlink", "state/superexec", "systemd"):
        (staging / folder).mkdir(parents=True)
    until = ("never", "never")
    if not address.insecure:
        dates = write_certificates(staging / "certificates", address.host)
        until = (dates[0].date().isoformat(), dates[1].date().isoformat())
    make_order_key(staging)
    _make_database(staging / "state" / "superlink.db")
    write_secret(staging / "superexec.secret", secrets.token_hex(32).encode())
    (staging / ADDRESS_FILE).write_text(json.dumps(vars(address), indent=2) + "\n")
    words = {
        **_words_of(target, address),
        "clients": json.dumps(list(clients)),
        **about_task,
        "max_bytes": Deploy.max_bytes,
        "max_megabytes": Deploy.max_bytes // 10**6 + 1,
        "keys": json.dumps(not address.insecure),
        "ca_until": until[0],
        "server_until": until[1],
    }
    pages = {
        FILE_NAME: FILE_NAME,
        "app.toml": "app/pyproject.toml",
        "flwr.toml": "state/flwr/config.toml",
        "superlink.sh": "superlink.sh",
        "superexec.sh": "superexec.sh",
        "fedssa-superlink.service": "systemd/fedssa-superlink.service",
        "fedssa-superexec.service": "systemd/fedssa-superexec.service",
        "fedssa-metrics.service": "systemd/fedssa-metrics.service",
        "coordinator.md": "README.md",
    } | ({} if address.insecure else {"nginx.conf": "nginx.conf"})
    for page, name in pages.items():
        _write(staging / name, page, words)
    read_federation(staging)


def _make_database(path: Path) -> None:
    """Makes the SuperLink's database, still empty, as one that gives the space of deleted objects back to the disk."""
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA auto_vacuum = FULL")
        database.execute("VACUUM")


def _words_of(directory: Path, address: Address) -> dict[str, Any]:
    root = f"{directory}/certificates/ca.pem"
    keys = "--enable-supernode-auth"
    tls = (
        f"--ssl-ca-certfile {root} --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key {keys}"
    )
    return {
        "directory": directory,
        "bin": _plain_path(Path(sys.executable).parent),
        "user": getpass.getuser(),
        "version": version("fedssa"),
        "host": address.host,
        "port": address.port,
        "address": address,
        "superlink_port": address.superlink_port,
        "superlink_security": "--insecure" if address.insecure else tls,
        "client_security": "--insecure" if address.insecure else f"--root-certificates {root}",
        "connection_security": "insecure = true" if address.insecure else f'root-certificates = "{root}"',
    }


def invite(directory: Path, name: str) -> Path:
    """Writes what the site `name` needs to sites/NAME; nothing in it is secret."""
    directory = _plain_path(directory)
    address, federation = Address.read(directory), read_federation(directory)
    client = federation.client_id(name)
    read_order_key(directory)
    folder = directory / "sites" / name
    if folder.exists():
        raise RunDirError(f"{folder}: this site was invited before; remove the folder to do it again")
    words = {
        **_words_of(directory, address),
        "name": name,
        "client": client,
        "runtime_port": FIRST_RUNTIME_PORT + client,
        "node_security": "--insecure" if address.insecure else '--root-certificates "$here/ca.pem" --key "$here/key"',
    }
    folder.mkdir(parents=True)
    for page, file in {
        "join.sh": "join.sh",
        "fedssa-site.service": "fedssa-site.service",
        "site.md": "README.md",
    }.items():
        _write(folder / file, page, words)
    shutil.copy(directory / FILE_NAME, folder)
    shutil.copy(directory / PUBLIC_KEY_FILE, folder)
    if federation.public_section is not None:
        shutil.copy(directory / federation.public_section.file, folder)
    if not address.insecure:
        shutil.copy(directory / "certificates" / "ca.pem", folder)
    return folder


def add_order_key(directory: Path) -> list[str]:
    """Makes the key that a directory of an earlier version lacks; returns the names of those who were invited then."""
    Address.read(directory)
    try:
        make_order_key(directory)
    except FileExistsError:
        raise RunDirError(f"{directory}: has a key already, and sites obey no other") from None
    invited = sorted(folder for folder in (directory / "sites").iterdir() if folder.is_dir())
    for folder in invited:
        shutil.copy(directory / PUBLIC_KEY_FILE, folder)
    return [folder.name for folder in invited]


def add_public(directory: Path, source: Path, labels: Labels, per_round: int) -> Public:
    """Adds public data for a method that uses some: the arrays go beside federation.toml, their digest into it."""
    Address.read(directory)
    file = directory / FILE_NAME
    if "public" in read_recipe(file):
        raise RunDirError(f"{file}: has a [public] already; remove that section to choose other data")
    public = read_public(source, *task_in(file), labels, per_round)
    x = each(_as_a_model_takes_it, public.samples.x)
    inputs = {name: tensor.numpy() for name, tensor in (x if isinstance(x, dict) else {"x": x}).items()}
    np.savez(directory / PUBLIC_FILE, allow_pickle=False, **inputs, y=public.samples.y.numpy())
    section = {"file": PUBLIC_FILE, "digest": public.digest, "labels": labels, "per_round": per_round}
    text = file.read_text(encoding="utf-8").rstrip("\n") + "\n" + document({"public": section})
    write_atomically(file, text.encode())
    return public


def _as_a_model_takes_it(x: Tensor) -> Tensor:
    """Puts an image's channels first, which a reader of the file tries first."""
    return x.permute(0, 3, 1, 2).contiguous() if is_image(x) else x


def register(directory: Path, name: str, public_key: Path) -> None:
    """Registers a site's key, whose holder the SuperLink lets in from now on."""
    directory = _plain_path(directory)
    _open(directory)
    read_federation(directory).client_id(name)
    key = check_public_key(public_key)
    if registration(directory, name).exists():
        raise RunDirError(f"{name} has a key already; to give it another: {_command('unregister', name, directory)}")
    said = flwr(directory, "supernode", "register", str(public_key.absolute()), CONNECTION, "--name", name)
    node = int(said["node-id"])
    write_registration(directory, name, node, key)
    note(directory, Event("registered", site=name, reason=fingerprint(key), node=node))


def unregister(directory: Path, name: str) -> None:
    """Removes the key of a site, which the SuperLink refuses from now on."""
    directory = _plain_path(directory)
    _open(directory)
    registered = registration(directory, name)
    try:
        node = int(json.loads(registered.read_text())["node"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{name}: no key of it is registered ({registered} cannot be read)") from error
    flwr(directory, "supernode", "unregister", str(node), CONNECTION)
    registered.unlink()
    note(directory, Event("unregistered", site=name, node=node))


def renew(directory: Path) -> datetime:
    """Makes a new certificate for the server, and returns when it expires."""
    address = _open(directory)
    if address.insecure:
        raise SettingsError(f"{directory}: is without TLS (--insecure), so there is nothing to renew")
    until = renew_server(directory / "certificates", address.host)
    note(directory, Event("renewed", reason=f"the server's certificate is good until {until:%Y-%m-%d}"))
    return until


def _open(directory: Path) -> Address:
    """Reads where the federation is, and whether its log can be written, before anything is done."""
    address = Address.read(directory)
    read_audit(directory)
    return address


def _command(name: str, site: str, directory: Path) -> str:
    return f"fedssa federation {name} {site} --directory {directory}"


def _write(path: Path, page: str, words: dict[str, Any]) -> None:
    text = (files("fedssa.deploy") / "files" / page).read_text(encoding="utf-8")
    path.write_text(Page(text).substitute(words), encoding="utf-8")
    if path.suffix == ".sh":
        path.chmod(0o755)


def _plain_path(path: Path) -> Path:
    """Returns the absolute path, and refuses one that shell, systemd, nginx or TOML would not take as it is."""
    absolute = path.absolute()
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", str(absolute)):
        raise SettingsError(
            f"{absolute}: choose a path of letters, digits and ._+- only: it goes into shell and systemd"
        )
    return absolute
