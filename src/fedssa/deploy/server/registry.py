"""The registry knows of each site the key that the coordinator registered for it, and the node that has this key.

`sites/NAME.json` in the coordinator's directory is written by `federation register`; the SuperLink gives each key one
node for good. What is asked of a node is asked of the client that the registry says it is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedssa.sites.agreement import Federation


@dataclass(frozen=True)
class Registered:
    node: int
    key: ec.EllipticCurvePublicKey


def registration(directory: Path, name: str) -> Path:
    return directory / "sites" / f"{name}.json"


def write_registration(directory: Path, name: str, node: int, key: bytes) -> None:
    path = registration(directory, name)
    path.write_text(json.dumps({"node": node, "key": key.decode()}, indent=2) + "\n")


def registered_sites(federation: Federation) -> dict[int, Registered]:
    """Returns the clients that have a key; a file that is being written may be readable only the next time."""
    found = ((client, _read(federation.folder, name)) for client, name in enumerate(federation.clients))
    return {client: site for client, site in found if site is not None}


def client_of_node(sites: Mapping[int, Registered], node: int) -> int | None:
    return next((client for client, site in sites.items() if site.node == node), None)


def _read(directory: Path, name: str) -> Registered | None:
    try:
        said = json.loads(registration(directory, name).read_text())
        node, key = int(said["node"]), load_ssh_public_key(said["key"].encode())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Registered(node, key) if isinstance(key, ec.EllipticCurvePublicKey) else None
