"""Our own authority: TLS libraries accept what it signs, for the names it was made for, and keys are private."""

import ipaddress
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedssa.deploy.server.certificates import check_public_key, make_node_key, renew_server, write_certificates
from fedssa.errors import SettingsError


def test_a_client_that_trusts_the_authority_trusts_the_server_and_no_other(tmp_path: Path) -> None:
    write_certificates(tmp_path, "hub.example.org")
    for name in ("hub.example.org", "localhost", "127.0.0.1"):
        assert handshake(tmp_path, tmp_path / "ca.pem", name) == "accepted"
    assert "Hostname mismatch" in handshake(tmp_path, tmp_path / "ca.pem", "other.example.org")
    other = tmp_path / "other"
    other.mkdir()
    write_certificates(other, "hub.example.org")
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(tmp_path, other / "ca.pem", "hub.example.org")


def test_a_renewed_server_is_trusted_by_those_who_trusted_the_old_one(tmp_path: Path) -> None:
    write_certificates(tmp_path, "hub.example.org")
    ca, old = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    until = renew_server(tmp_path, "hub.example.org")
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert (tmp_path / "server.pem").read_bytes() != old
    assert until - datetime.now(UTC) > timedelta(days=800)
    assert handshake(tmp_path, tmp_path / "ca.pem", "hub.example.org") == "accepted"
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ca.key", "ca.pem", "server.key", "server.pem"]


def test_without_the_authoritys_own_key_nothing_is_renewed(tmp_path: Path) -> None:
    write_certificates(tmp_path, "hub.example.org")
    server = (tmp_path / "server.pem").read_bytes()
    key = (tmp_path / "ca.key").rename(tmp_path / "kept")
    with pytest.raises(SettingsError, match=r"ca\.pem and ca\.key are needed"):
        renew_server(tmp_path, "hub.example.org")
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "other", "hub.example.org")
    (tmp_path / "other/ca.key").rename(tmp_path / "ca.key")
    with pytest.raises(SettingsError, match=r"not the key of ca\.pem"):
        renew_server(tmp_path, "hub.example.org")
    assert (tmp_path / "server.pem").read_bytes() == server
    assert key.exists()


def handshake(folder: Path, root: Path, name: str) -> str:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=str(root))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(server, theirs))
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name):
            return "accepted"
    except ssl.SSLError as error:
        return str(error)
    finally:
        ours.close()
        thread.join()


def _serve(context: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        context.wrap_socket(connection, server_side=True).close()
    except OSError:
        connection.close()


def test_lifetimes_names_and_permissions(tmp_path: Path) -> None:
    ca_until, server_until = write_certificates(tmp_path, "10.1.2.3")
    now = datetime.now(UTC)
    assert timedelta(days=800) < server_until - now < timedelta(days=826) < ca_until - now
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address("10.1.2.3") in names.get_values_for_type(x509.IPAddress)
    for key in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / key).stat().st_mode) == 0o600


def test_a_site_makes_its_key_once(tmp_path: Path) -> None:
    public = make_node_key(tmp_path, "north")
    private = tmp_path / "key"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    theirs = load_ssh_private_key(private.read_bytes(), password=None).public_key()
    assert theirs == load_ssh_public_key(check_public_key(public))
    before = private.read_bytes()
    with pytest.raises(SettingsError, match="exists already"):
        make_node_key(tmp_path, "north")
    assert private.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIVKvuTwfXyIDpOeNzCkLwJ2jCnkoHCDxXBGf7cn7a9W x"]
)
def test_what_is_no_key_of_a_site_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key.pub").write_bytes(content)
    with pytest.raises(SettingsError, match=r"key\.pub"):
        check_public_key(tmp_path / "key.pub")
