"""Faults, with real processes: SuperLink, SuperExec, three nodes on loopback, TLS and keys; three CNNs on three shares
of the digits. The programs are shared by all tests, so each leaves them running as it found them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.deploy.address import Address
from fedssa.deploy.server.certificates import make_node_key
from fedssa.deploy.server.directory import init, invite, register
from fedssa.deploy.server.submit import CONNECTION, flwr
from fedssa.deploy.site.node import QUIET
from fedssa.records import RoundRecord
from fedssa.runs.audit import TROUBLE, events_of, read_audit
from fedssa.runs.directory import RunDir
from fedssa.runs.files import CHECKPOINT
from fedssa.settings.recipe import parse_settings
from tests.deploy.in_process import federation_toml, node, sites_of
from tests.deploy.test_faults import refuse
from tests.system.mischief import KINDS
from tests.system.programs import Programs, free_port, listens, programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

ROOT, BIN = Path(__file__).parents[2], Path(sys.executable).parent
NAMES = ["north", "south", "west"]
BAD = 2  # the client that is killed, or wrong
STRANGERS_TRY = 20.0  # seconds
REFUSED_FOR = 60.0  # seconds that the SuperLink takes a dead node for alive


def recipe(total: int) -> dict[str, Any]:
    return {
        "seed": 7,
        "data": {"name": "digits"},
        "partition": {"name": "classes", "clients": 3, "classes_per_client": 5},
        "models": {"archs": ["cnn-1", "cnn-3", "cnn-5"]},
        "local": {"batch_size": 64, "lr": 0.02},
        "rounds": {"total": total},
    }


@dataclass(frozen=True)
class Deployment:
    directory: Path
    programs: Programs

    def site(self, client: int) -> Path:
        return self.directory / "sites" / NAMES[client]

    def agree_on(self, table: dict[str, Any], **deploy: Any) -> None:
        """Nodes read these files at every message."""
        text = federation_toml(table, NAMES, **{"deadline": 240, "join_deadline": 240, **deploy})
        code = "from pathlib import Path\nfrom tests.system.mischief import site_of\n\n\ndef site(task):\n"
        resolved = json.dumps(parse_settings(table).table)
        (self.directory / "federation.toml").write_text(text)
        for client in range(len(NAMES)):
            (self.site(client) / "federation.toml").write_text(text)
            call = f"    return site_of(Path(__file__).parent, {resolved!r}, {client})\n"
            (self.site(client) / "site.py").write_text(code + call)

    @property
    def order_to_die(self) -> Path:
        return self.directory / "die"

    def start_superlink(self) -> None:
        path = os.pathsep.join([ENV["PYTHONPATH"], str(Path(__file__).parent / "dying")])
        env = {**ENV, "PYTHONPATH": path, "DIE": str(self.order_to_die)}
        self.programs.start("superlink", str(self.directory / "superlink.sh"), **env)
        port = Address.read(self.directory).superlink_port
        self.programs.wait_for(lambda: listens(port), "superlink")

    def start_node(self, client: int) -> None:
        site = self.site(client)
        self.programs.start(NAMES[client], str(site / "join.sh"), str(site / "site.py"), PORT=str(free_port()), **ENV)

    def kill(self, name: str) -> None:
        """kill -9, with all of its children."""
        process = self.programs.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run(self, out: Path, *options: str) -> "subprocess.Popen[str]":
        command = [str(BIN / "fedssa"), "federation", "run", str(self.directory), "--out", str(out), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


ENV = {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    "FEDSSA_CACHE": str(ROOT / ".pytest_cache" / "fedssa"),
}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployed")
    with programs(folder) as started:
        deployment = Deployment(folder / "hq", started)
        port = free_port()
        init(deployment.directory, Address("127.0.0.1", port, port), NAMES)
        deployment.start_superlink()
        started.start("superexec", str(deployment.directory / "superexec.sh"), **ENV)
        for name in NAMES:
            folder = invite(deployment.directory, name)
            register(deployment.directory, name, make_node_key(folder, name))
        deployment.agree_on(recipe(3))
        for client in range(len(NAMES)):
            deployment.start_node(client)
        yield deployment


def ended(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return said


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def rounds_done(out: Path) -> int:
    return len(RunDir.open(out).records()) - 1 if (out / "rounds.jsonl").exists() else -1


def is_committed(out: Path) -> bool:
    """Tells whether the state was saved after the last record was written; if not, a resumed run repeats the round."""
    written, saved = ((out / name).stat().st_mtime_ns for name in ("rounds.jsonl", CHECKPOINT))
    return saved >= written


def without_flops(records: tuple[RoundRecord, ...]) -> list[RoundRecord]:
    return [replace(r, clients=tuple(replace(c, flops=None) for c in r.clients)) for r in records]


def expected(folder: Path, table: dict[str, Any], absent: Callable[[int], bool]) -> list[RoundRecord]:
    """The same run in this process, in which client BAD gives no answer in some rounds."""
    folder.mkdir()
    sites = sites_of(table, folder)
    grid, records = sites.grid(), list[RoundRecord]()
    grid.offline = set()
    for record in sites.run(grid):
        records.append(record)
        grid.offline = {node(BAD)} if absent(record.t + 1) else set()
    return records


def test_three_rounds_equal_the_simulator(deployed: Deployment, tmp_path: Path) -> None:
    table = recipe(3)
    deployed.agree_on(table)
    out = tmp_path / "deployed"
    running = deployed.run(out)
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    said = ended(running)
    assert RunDir.open(out).records() == without_flops(simulated.records)
    assert "finished, 3 of 3 rounds" in said
    events = events_of(RunDir.open(out))
    assert not [event for event in events if event.kind in TROUBLE]
    assert [event.kind for event in read_audit(deployed.directory)][:4] == ["registered"] * 3 + ["submitted"]
    answer = [str(BIN / "fedssa"), "federation", "health", str(deployed.directory)]
    well = subprocess.run(answer, check=True, capture_output=True, text=True)
    assert well.stdout == "well: finished, 3 of 3 rounds, 3 of 3 answers in the last\n"
    exported = tmp_path / "north.safetensors"
    command = [str(BIN / "fedssa"), "site", "export", str(exported), "--state-dir", str(deployed.site(0) / "state")]
    subprocess.run(command, check=True)
    model, theirs = (
        fedssa.load_client(exported, str(deployed.site(0) / "site.py")),
        fedssa.load_client(simulated.path, 0),
    )
    assert all((model.state_dict()[name] == tensor).all() for name, tensor in theirs.state_dict().items())


def test_an_unregistered_key_and_a_node_without_tls_are_refused(deployed: Deployment, tmp_path: Path) -> None:
    """They try for a while, or give up at once: none of them ever is one of the nodes."""
    make_node_key(tmp_path, "stranger")
    tls = ["--root-certificates", str(deployed.directory / "certificates/ca.pem")]
    key = ["--auth-supernode-private-key", str(tmp_path / "key")]
    strangers = {
        "unregistered": [*tls, *key],
        "keyless": tls,
        "plain": ["--insecure"],
        "plain-keyed": ["--insecure", *key],
    }
    superlink = str(Address.read(deployed.directory))
    for name, security in strangers.items():
        command = [str(BIN / "flower-supernode"), "--superlink", superlink, "--host", "127.0.0.1", *security]
        env = QUIET | {"FLWR_HOME": str(tmp_path / name), "PATH": ENV["PATH"]}
        deployed.programs.start(name, *command, "--port", str(free_port()), **env)
    time.sleep(STRANGERS_TRY)
    nodes = flwr(deployed.directory, "supernode", "list", CONNECTION)["nodes"]
    logs = {name: deployed.programs.log(name).read_text() for name in strangers}
    for name in strangers:
        deployed.programs.stop(name)
    assert sorted(node["status"] for node in nodes) == ["online"] * len(NAMES), nodes
    assert not any("FileNotFoundError" in log for log in logs.values()), logs  # they could have joined


def test_what_a_wrong_site_sends_is_dropped_and_named(deployed: Deployment, tmp_path: Path) -> None:
    table = recipe(len(KINDS))
    deployed.agree_on(table)
    mode, out = deployed.site(BAD) / "mode", tmp_path / "deployed"
    mode.write_text("wrong")
    try:
        ended(deployed.run(out))
    finally:
        mode.unlink()
    faults = [event for event in events_of(RunDir.open(out)) if event.kind in TROUBLE]
    assert [(fault.t, fault.site, fault.kind) for fault in faults] == [(t, NAMES[BAD], "dropped") for t in KINDS]
    assert database_size(deployed) < 10_000_000  # the last one's hundred megabytes are gone
    for fault, (_, reason) in zip(faults, KINDS.values(), strict=True):
        assert re.search(reason.replace("5, 16", "5, 500").replace("5, 17", "5, 501"), fault.reason), fault
    folder = tmp_path / "in-process"
    folder.mkdir()
    sites = sites_of(table, folder)
    grid = sites.grid()
    grid.tamper[node(BAD)] = refuse
    assert RunDir.open(out).records() == list(sites.run(grid))


def test_what_a_hostile_site_does_costs_its_own_answers(deployed: Deployment, tmp_path: Path) -> None:
    """Its orders to another site are refused, its flood is deleted unread, and nobody waits for what never comes."""
    table, victim, out = recipe(2), 0, tmp_path / "deployed"
    deployed.agree_on(table, deadline=60)
    mode, hq = deployed.site(BAD) / "mode", deployed.directory
    known = {"superlink": str(Address.read(hq)), "client": victim}
    known["node"] = json.loads((hq / "sites" / f"{NAMES[victim]}.json").read_text())["node"]
    (deployed.site(BAD) / "hostile.json").write_text(json.dumps(known))
    mode.write_text("hostile")
    try:
        ended(deployed.run(out))
    finally:
        mode.unlink()
    faults = [event for event in events_of(RunDir.open(out)) if event.kind in TROUBLE]
    assert [(fault.t, fault.site, fault.reason) for fault in faults] == [
        (0, NAMES[BAD], "an answer of 14 objects; ours have 3"),
        (1, NAMES[BAD], "no answer before the deadline"),
    ]
    assert "fedssa: refused: not-signed" in deployed.programs.log(NAMES[victim]).read_text()
    assert not (deployed.site(victim) / "state" / f"{'f' * 32}.safetensors").exists()
    folder = tmp_path / "in-process"
    folder.mkdir()
    sites = sites_of(table, folder)
    grid = sites.grid()
    grid.tamper[node(BAD)] = refuse
    assert RunDir.open(out).records() == list(sites.run(grid))


def test_a_full_disk_costs_a_site_its_round_and_the_others_nothing(deployed: Deployment, tmp_path: Path) -> None:
    table, out = recipe(2), tmp_path / "deployed"
    deployed.agree_on(table)
    mode, log = deployed.site(BAD) / "mode", deployed.programs.log(NAMES[BAD])
    before = len(log.read_text())
    mode.write_text("full")
    try:
        ended(deployed.run(out))
    finally:
        mode.unlink()
    (fault,) = (event for event in events_of(RunDir.open(out)) if event.kind in TROUBLE)
    assert (fault.t, fault.site, fault.kind, fault.word) == (0, NAMES[BAD], "refused", "disk")
    said = log.read_text()[before:]
    assert f"{deployed.site(BAD) / 'state'}: cannot be written (File too large); free some space" in said
    assert "fedssa run" not in said  # which would be the advice of a simulation
    assert RunDir.open(out).records() == expected(tmp_path / "in-process", table, absent=lambda t: t == 0)


def test_a_run_outlives_its_superlink(deployed: Deployment, tmp_path: Path) -> None:
    """Which dies when it has stored a part of a message and has not said so: the part is sent, and refused, again."""
    table = recipe(2)
    deployed.agree_on(table)
    out = tmp_path / "deployed"
    running = deployed.run(out)
    wait_until(lambda: rounds_done(out) >= 0)  # all have joined, round 0 has begun
    deployed.order_to_die.write_text("/v1/runtime/push-object 0")
    wait_until(lambda: deployed.programs.running["superlink"].poll() is not None)
    deployed.kill("superlink")  # what it may have left
    deployed.start_superlink()
    said = ended(running)
    assert "finished, 2 of 2 rounds" in said
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    assert RunDir.open(out).records() == without_flops(simulated.records)
    assert not deployed.order_to_die.exists()


def test_a_killed_node_costs_its_round_and_a_killed_server_nothing(deployed: Deployment, tmp_path: Path) -> None:
    table = recipe(3)
    deployed.agree_on(table, deadline=60)
    out, site = tmp_path / "deployed", deployed.site(BAD)
    running = deployed.run(out)
    wait_until(lambda: rounds_done(out) >= 0)
    wait_until(lambda: rounds_done(out) >= 1)
    (site / "mode").write_text("hang")  # round 1 has begun, and the node may be in it already
    wait_until(lambda: (site / "hangs").exists() or rounds_done(out) >= 2)
    assert (site / "hangs").exists(), "too late to kill it in a round"
    died = time.monotonic()
    deployed.kill(NAMES[BAD])
    (site / "mode").unlink()
    (site / "hangs").unlink()
    wait_until(lambda: rounds_done(out) >= 2 and is_committed(out), seconds=90)  # by quorum, within its deadline
    kill_server_app(deployed.programs.running["superexec"].pid)
    running.communicate(timeout=600)
    assert running.returncode == 1
    assert rounds_done(out) == 2
    time.sleep(max(0.0, died + REFUSED_FOR + 5 - time.monotonic()))
    deployed.start_node(BAD)
    ended(deployed.run(out, "--resume"))
    assert RunDir.open(out).records() == expected(tmp_path / "in-process", table, absent=lambda t: t == 1)


def database_size(deployed: Deployment) -> int:
    return (deployed.directory / "state" / "superlink.db").stat().st_size


def kill_server_app(superexec: int) -> None:
    children = Path(f"/proc/{superexec}/task/{superexec}/children").read_text().split()
    apps = [int(pid) for pid in children if "flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_text()]
    (app,) = apps
    os.kill(app, signal.SIGKILL)
