"""The reverse proxy that `federation init` writes, in front of a real SuperLink: sites get through, orders do not."""

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedssa.deploy.address import Address
from fedssa.deploy.server.certificates import make_node_key
from fedssa.deploy.server.directory import init, invite, register, unregister
from fedssa.deploy.server.submit import CONNECTION, flwr
from fedssa.errors import SettingsError
from fedssa.report.read.summary import summarise
from fedssa.runs.directory import RunDir
from tests.system.programs import Programs, free_port, listens, programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
NUM_MESSAGES = 3  # each way: a hello and two rounds
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin"

NGINX = """
pid {folder}/nginx.pid;
daemon off;
events {{}}
http {{
    log_format bytes '$uri $content_length $body_bytes_sent $request_length $bytes_sent';
    access_log {folder}/access.log bytes;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/hq/nginx.conf;
}}
"""


SITE = """
import numpy as np
from torch import nn

from fedssa.sites.site import Site


def site(task):
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 1, 32, 32), dtype=np.float32), np.arange(60) % 10
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 500), nn.ReLU(), nn.Linear(500, 10))
    return Site(model=model, train=(x, y), val=(x, y), test=(x, y))
"""


@dataclass(frozen=True)
class Deployment:
    directory: Path
    address: Address
    programs: Programs

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "certificates/ca.pem"))

    def status(self, port: int, path: str, method: str = "POST") -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=self.tls, timeout=20)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)  # as it is: nothing is made shorter here
            connection.putheader("Content-Length", "0")
            connection.endheaders()
            return connection.getresponse().status
        finally:
            connection.close()

    def nodes(self) -> list[dict[str, str]]:
        listed: list[dict[str, str]] = flwr(self.directory, "supernode", "list", CONNECTION)["nodes"]
        return listed

    def joins(self, name: str, site: str = "site.py") -> None:
        command = str(self.directory / "sites" / name / "join.sh")
        self.programs.start(name, command, site, PATH=PATH, PORT=str(free_port()))

    def requests(self) -> Iterator[tuple[str, list[int]]]:
        """What went through the proxy so far: the path's last part; bytes of bodies up and down, then with headers."""
        for line in (self.directory.parent / "access.log").read_text().splitlines():
            path, *sizes = line.split()
            yield path.rpartition("/")[2], [0 if size == "-" else int(size) for size in sizes]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("proxy")
    address = Address("127.0.0.1", free_port(), free_port())
    init(folder / "hq", address, ["north", "south", "east", "west"])
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    nginx = shutil.which("nginx", path=PATH)
    assert nginx, "nginx is not there: make system-packages"
    with programs(folder) as started:
        started.start("superlink", str(folder / "hq/superlink.sh"))
        started.start("nginx", nginx, "-c", str(folder / "nginx.conf"))
        started.wait_for(lambda: listens(address.superlink_port), "superlink")
        started.wait_for(lambda: listens(address.port), "nginx")
        yield Deployment(folder / "hq", address, started)


def test_a_site_joins_through_the_proxy_as_long_as_its_key_is_registered(deployment: Deployment) -> None:
    folder = invite(deployment.directory, "north")
    register(deployment.directory, "north", make_node_key(folder, "north"))
    assert [node["status"] for node in deployment.nodes()] == ["registered"]
    deployment.joins("north")
    deployment.programs.wait_for(lambda: deployment.nodes()[0]["status"] == "online", "north")
    assert {"activate-node", "pull-messages"} <= {path for path, _ in deployment.requests()}
    deployment.programs.stop("north")
    unregister(deployment.directory, "north")
    deployment.joins("north")
    assert deployment.programs.running["north"].wait(timeout=120) != 0
    deployment.programs.stop("north")
    with pytest.raises(SettingsError, match="no key of it is registered"):
        unregister(deployment.directory, "north")


def test_a_key_that_was_not_registered_is_refused(deployment: Deployment) -> None:
    make_node_key(invite(deployment.directory, "south"), "south")
    deployment.joins("south")
    process = deployment.programs.running["south"]
    assert process.wait(timeout=120) != 0
    assert all(node["status"] == "unregistered" for node in deployment.nodes())
    deployment.programs.stop("south")


def test_orders_are_refused_from_outside_and_taken_on_loopback(deployment: Deployment, tmp_path: Path) -> None:
    connection = (deployment.directory / "state/flwr/config.toml").read_text()
    assert flwr(deployment.directory, "list", CONNECTION)["success"]
    outside = connection.replace(str(deployment.address.superlink_port), str(deployment.address.port))
    (tmp_path / "config.toml").write_text(outside)
    env = {**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    for order in (["list"], ["supernode", "list"], ["run", str(deployment.directory / "app")]):
        command = [str(BIN / "flwr"), *order, CONNECTION, "--format", "json"]
        said = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout)
        assert not said["success"]
        assert "403 Forbidden" in said["error-message"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/docs",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/fleet/",
        "/v1/fleet/unheard-of",
        "//v1/control/list-runs",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/fleet/..%2fcontrol%2flist-runs",
    ],
)
def test_no_path_but_a_sites_gets_through(deployment: Deployment, path: str) -> None:
    assert deployment.status(deployment.address.port, path) == 403


def test_what_gets_through_is_one_of_a_sites_paths_however_it_was_written(deployment: Deployment) -> None:
    port, status = deployment.address.port, deployment.status
    unsupported = 415  # the SuperLink's own word for an empty message
    assert status(port, "/v1/fleet/pull-messages") == unsupported
    assert status(port, "/v1/control/list-runs/../../fleet/pull-messages") == unsupported  # it became a fleet's path
    assert status(port, "/v1/fleet/pull-messages", "GET") == 403
    assert status(deployment.address.superlink_port, "/v1/control/list-runs") == unsupported  # on loopback it is there


def test_without_tls_or_with_another_authority_nobody_talks(deployment: Deployment) -> None:
    other = http.client.HTTPSConnection("127.0.0.1", deployment.address.port, timeout=20)
    with pytest.raises(ssl.SSLCertVerificationError):
        other.request("POST", "/v1/fleet/pull-messages")
    plain = http.client.HTTPConnection("127.0.0.1", deployment.address.port, timeout=20)
    plain.request("POST", "/v1/fleet/pull-messages")
    assert plain.getresponse().status == 400
    plain.close()


MEGABYTE = 1_000_000


def post(deployment: Deployment, path: str, size: int, key: str = "", *, chunked: bool = False) -> int:
    """The status of a POST of so many zeros, or of as many as were taken."""
    connection = http.client.HTTPSConnection("127.0.0.1", deployment.address.port, context=deployment.tls, timeout=20)
    headers = {"content-type": "application/x-protobuf", "flwr-public-key": key}
    try:
        body = iter([bytes(size)]) if chunked else bytes(size)
        connection.request("POST", f"/v1/fleet/{path}", body, headers, encode_chunked=chunked)
    except OSError:  # it does not listen to the end of what it refuses
        pass
    try:
        return connection.getresponse().status
    except (http.client.HTTPException, OSError):
        return 413
    finally:
        connection.close()


def test_what_is_too_large_or_does_not_say_how_large_it_is_stops_at_the_proxy(deployment: Deployment) -> None:
    before = len(deployment.programs.log("superlink").read_bytes())
    assert post(deployment, "push-messages", 70_000) == 413
    assert post(deployment, "push-object", 102 * 2**20) == 413
    assert post(deployment, "push-object", 2 * MEGABYTE, chunked=True) == 411
    assert len(deployment.programs.log("superlink").read_bytes()) == before  # it has heard of none


def test_a_flood_is_let_through_at_the_rate_of_a_site_and_others_go_on(deployment: Deployment) -> None:
    register(deployment.directory, "east", make_node_key(invite(deployment.directory, "east"), "east"))
    large = [post(deployment, "push-object", MEGABYTE, "flood") for _ in range(12)]
    assert 7 <= len(large) - large.count(503) <= 8  # the first, six of a burst, and one more if ten seconds have passed
    others = [post(deployment, "push-object", MEGABYTE, f"key {i}") for i in range(30)]
    assert others.count(503) > 0  # other keys do not help: the address is the same
    small = [post(deployment, "pull-messages", 10, "flood") for _ in range(150)]
    assert 0 < small.count(503) < len(small)
    deployment.joins("east")
    deployment.programs.wait_for(lambda: any(n["status"] == "online" for n in deployment.nodes()), "east")
    deployment.programs.stop("east")
    unregister(deployment.directory, "east")


def test_a_message_adds_at_most_3000_bytes_to_its_payload(deployment: Deployment, tmp_path: Path) -> None:
    """Seen at the proxy: bodies of the requests that carry messages. HTTP's headers are Flower's, and told apart."""
    (tmp_path / "site.py").write_text(SITE)
    agreed = deployment.directory / "federation.toml"
    agreed.write_text(
        re.sub("total = [0-9]+", "total = 2", re.sub("clients = .*", 'clients = ["west"]', agreed.read_text()))
    )
    register(deployment.directory, "west", make_node_key(invite(deployment.directory, "west"), "west"))
    deployment.programs.start("superexec", str(deployment.directory / "superexec.sh"), PATH=PATH)
    deployment.joins("west", str(tmp_path / "site.py"))
    before = len(list(deployment.requests()))
    out = tmp_path / "run"
    subprocess.run([str(BIN / "fedssa"), "federation", "run", str(deployment.directory), "--out", str(out)], check=True)
    seen = list(deployment.requests())[before:]
    summary = summarise(RunDir.open(out))
    assert summary.messages
    for way, payload, encoded in (
        ("push", summary.traffic.bytes_up, summary.messages.up),
        ("pull", summary.traffic.bytes_down, summary.messages.down),
    ):
        sizes = [size for path, size in seen if path in (f"{way}-messages", f"{way}-object")]
        body, whole = (sum(size[column + (way == "pull")] for size in sizes) for column in (0, 2))
        print(
            f"{way}: payload {payload:,}, messages {encoded:,}, bodies {body:,}, with headers {whole:,}, {len(sizes)}"
        )
        assert payload < encoded < body < payload + 3000 * NUM_MESSAGES


def test_a_superlink_that_is_not_there_is_told(tmp_path: Path) -> None:
    init(tmp_path / "hq", Address("127.0.0.1", free_port(), free_port()), ["north"])
    public = make_node_key(invite(tmp_path / "hq", "north"), "north")
    with pytest.raises(SettingsError, match="if the SuperLink is not running"):
        register(tmp_path / "hq", "north", public)
    assert not (tmp_path / "hq/sites/north.json").exists()
