"""Orders are signed by the coordinator, and answers by the site that gives them, so a message proves whose it is.

    coordinator.key    Ed25519, made by `federation init`; it never leaves the coordinator
    coordinator.pub    its public half, which every invitation holds; it lies beside a site's federation.toml
    key, key.pub       a site's own, with which its Flower node signs as well

The digest of an order covers the Flower run in which it is delivered and all that it says: our run, round, client and
payload. The digest of an answer covers that of its order, too, so that it answers nothing else.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import ConfigRecord, RecordDict

from fedssa.deploy.messages import RECORD, SIGNATURE
from fedssa.errors import SettingsError

KEY_FILE, PUBLIC_KEY_FILE = "coordinator.key", "coordinator.pub"
ECDSA = ec.ECDSA(hashes.SHA256())


# -- what is signed ------------------------------------------------------------------------------------------------
def order_digest(records: RecordDict, flower_run: int) -> bytes:
    return _digest(b"fedssa order", flower_run.to_bytes(8, "big"), records)


def answer_digest(records: RecordDict, order: bytes) -> bytes:
    return _digest(b"fedssa answer", order, records)


def _digest(kind: bytes, bound_to: bytes, records: RecordDict) -> bytes:
    """Records that are no message of ours have a digest, too, since a site answers whatever it gets."""
    said = _parts(records)
    message, tensors = said.get("message"), said.get("tensors")
    text = message.encode() if isinstance(message, str) else b""
    blob = tensors if isinstance(tensors, bytes) else b""
    return sha256(kind + bound_to + sha256(text).digest() + sha256(blob).digest()).digest()


def with_signature(records: RecordDict, signature: bytes) -> RecordDict:
    return RecordDict({**records, RECORD: ConfigRecord({**_parts(records), SIGNATURE: signature})})


def _signature_in(records: RecordDict) -> bytes:
    signature = _parts(records).get(SIGNATURE)
    return signature if isinstance(signature, bytes) else b""


def _parts(records: RecordDict) -> dict[str, Any]:
    record = records.get(RECORD)
    return dict(record) if isinstance(record, ConfigRecord) else {}


# -- the coordinator -----------------------------------------------------------------------------------------------
def make_order_key(folder: Path) -> None:
    """Writes coordinator.key and coordinator.pub, neither of which may exist."""
    key = Ed25519PrivateKey.generate()
    write_secret(folder / KEY_FILE, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / PUBLIC_KEY_FILE).write_bytes(public + b" coordinator\n")


def read_order_key(folder: Path) -> Ed25519PrivateKey:
    """Reads the key with which this coordinator signs; SettingsError tells what to do where there is none."""
    path = folder / KEY_FILE
    if not path.is_file():
        raise SettingsError(
            f"{path}: is missing, and sites obey signed orders only; make one: fedssa federation keygen -d {folder}"
        )
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path}: is a key of another kind; restore the one that federation init made")
    return key


def signed_order(records: RecordDict, flower_run: int, key: Ed25519PrivateKey) -> tuple[RecordDict, bytes]:
    """Returns the order with its signature, and its digest, to which the answer is bound."""
    digest = order_digest(records, flower_run)
    return with_signature(records, key.sign(digest)), digest


def read_coordinator(folder: Path) -> Ed25519PublicKey:
    """Reads whose orders a site obeys."""
    path = folder / PUBLIC_KEY_FILE
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); ask the coordinator for this file") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SettingsError(f"{path}: is a key of another kind; ask the coordinator for this file")
    return key


def is_order_of(coordinator: Ed25519PublicKey, records: RecordDict, digest: bytes) -> bool:
    try:
        coordinator.verify(_signature_in(records), digest)
    except InvalidSignature:
        return False
    return True


# -- a site --------------------------------------------------------------------------------------------------------
def signed_answer(records: RecordDict, order: bytes, key_file: Path) -> RecordDict:
    try:
        key = load_ssh_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{key_file}: cannot be read ({error}); restore it from a copy") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(f"{key_file}: is a key of another kind; make one: fedssa site keygen")
    return with_signature(records, key.sign(answer_digest(records, order), ECDSA))


def is_answer_of(site: ec.EllipticCurvePublicKey, records: RecordDict, order: bytes) -> bool:
    try:
        site.verify(_signature_in(records), answer_digest(records, order), ECDSA)
    except InvalidSignature:
        return False
    return True


def write_secret(path: Path, content: bytes) -> None:
    """Writes a file that only this user can read, from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
