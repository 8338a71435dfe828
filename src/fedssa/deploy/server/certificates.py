"""A federation has its own certificate authority, its server's certificate, and keys for its sites."""

import ipaddress
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedssa.deploy.signing import write_secret
from fedssa.errors import SettingsError

CA_DAYS, SERVER_DAYS = 3650, 825
ALSO_FOR = ("localhost", "127.0.0.1", "::1")


def write_certificates(folder: Path, host: str) -> tuple[datetime, datetime]:
    """Writes ca.pem, ca.key, server.pem and server.key; returns when the authority and the certificate expire."""
    ca_key = ec.generate_private_key(ec.SECP384R1())
    ca = _authority(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"FedSSA federation at {host}"[:64])]), ca_key)
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    write_secret(folder / "ca.key", ca_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return ca.not_valid_after_utc, renew_server(folder, host)


def renew_server(folder: Path, host: str) -> datetime:
    """Writes another server.key and server.pem of the same authority, so sites need nothing new; returns their end."""
    try:
        ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{folder}: ca.pem and ca.key are needed to sign ({error}); bring them back") from error
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise SettingsError(f"{folder}: ca.key is not the key of ca.pem; bring back the right one")
    key = ec.generate_private_key(ec.SECP384R1())
    server = _server(ca, ca_key, key, [host, *(other for other in ALSO_FOR if other != host)])
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    fresh = {name: folder / f".{name}.{os.getpid()}" for name in ("server.key", "server.pem")}
    try:
        write_secret(fresh["server.key"], private)
        fresh["server.pem"].write_bytes(server.public_bytes(Encoding.PEM))
        for name, path in fresh.items():
            path.replace(folder / name)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written ({error.strerror})") from error
    finally:
        for path in fresh.values():
            path.unlink(missing_ok=True)
    return server.not_valid_after_utc


def _authority(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    usage = _usage(key_cert_sign=True, crl_sign=True)
    return (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )


def _server(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    authority = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(name, ca.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        .sign(ca_key, hashes.SHA384())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - timedelta(hours=1)  # the clocks of machines differ
    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), begin, begin + timedelta(days))


def _usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign"
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in f"{names} encipher_only decipher_only".split()})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_node_key(folder: Path, name: str) -> Path:
    """Writes `key` and `key.pub` as ssh-keygen would, and returns the path of the public one."""
    private = folder / "key"
    if private.exists():
        raise SettingsError(f"{private}: exists already; whoever has registered it would no longer know this site")
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = private.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode())
    return public


def check_public_key(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        key = load_ssh_public_key(content)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: is no public key of a site ({error}); ask for its key.pub") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError(f"{path}: is a key of another kind; ask for one made by: fedssa site keygen")
    return content


def fingerprint(public_key: bytes) -> str:
    """Returns what `ssh-keygen -lf` shows of a key."""
    return "SHA256:" + b64encode(sha256(b64decode(public_key.split()[1])).digest()).decode().rstrip("=")
