"""For the operator: the log of a run, status, health with its exit codes, and metrics over HTTP."""

import io
import json
import os
import re
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from fedssa.cli.operator import status_view
from fedssa.deploy.address import Address
from fedssa.deploy.server.directory import init
from fedssa.deploy.server.health import health_of
from fedssa.deploy.server.metrics import CONTENT_TYPE, MetricsServer
from fedssa.deploy.server.standing import standing_of
from fedssa.records import RoundRecord
from fedssa.runs.audit import AUDIT, Event, note
from fedssa.runs.directory import RunDir
from fedssa.runs.lock import driver, holder
from fedssa.simulate.examine import SOUND, examine
from tests.deploy.in_process import InProcessGrid, Sites, node, sites_of
from tests.deploy.test_commands import Command, command
from tests.deploy.test_faults import refuse
from tests.tiny import FEW, tiny

__all__ = ["command"]

BAD, RUN = 1, "runs/fedssa-s7"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')


@dataclass
class Running:
    sites: Sites
    grid: InProcessGrid
    rounds: Iterator[RoundRecord]
    superlink: socket.socket

    @property
    def hq(self) -> Path:
        return self.sites.folder

    def superlink_dies(self) -> None:
        self.superlink.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A run after its second round, in which a site refuses; something listens where its SuperLink would."""
    hq = tmp_path_factory.mktemp("operator") / "hq"
    with socket.create_server(("127.0.0.1", 0)) as superlink:
        port = int(superlink.getsockname()[1])
        init(hq, Address("127.0.0.1", port, port), [f"c{k}" for k in range(4)])
        sites = sites_of(tiny(data=FEW, rounds={"total": 4, "fraction": 1.0}), hq)
        grid = sites.grid()
        grid.tamper[node(BAD)] = refuse
        note(hq, Event("registered", site="c0", node=1))
        (hq / "sites" / "c0.json").touch()
        note(hq, Event("submitted", run=str(hq / RUN)))
        rounds = sites.run(grid, RUN)
        assert [next(rounds).t for _ in range(3)] == [-1, 0, 1]
        yield Running(sites, grid, rounds, superlink)


def test_the_log_tells_who_did_what_in_which_round(running: Running) -> None:
    events = running.sites.events(RUN)
    kinds = Counter((event.t, event.kind) for event in events)
    assert events[0].kind == "started"
    assert kinds == {
        (0, "started"): 1,
        (-1, "joined"): 4,
        **{(t, "committed"): 1 for t in (-1, 0, 1)},
        **{(t, "answered"): 3 for t in (0, 1)},
        **{(t, "refused"): 1 for t in (0, 1)},
    }
    assert {(e.site, e.word, e.reason) for e in running.sites.faults(RUN)} == {
        (f"c{BAD}", "busy", "another process works on its state")
    }
    assert {(event.site, event.node) for event in events if event.kind == "joined"} == {
        (f"c{k}", node(k)) for k in range(4)
    }


def test_status_fits_on_80_columns_and_has_names_and_reasons(running: Running) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(status_view(standing_of(running.hq)))
    shown = console.export_text().splitlines()
    assert max(map(len, shown)) <= 80
    told = " ".join(" ".join(shown).split())
    assert "running, 2 of 4 rounds, accuracy " in told
    assert "round 3, for" in told
    assert "refused in round 2: another process" in told
    assert all(f"c{k} " in told for k in range(4))


def test_after_a_restart_of_the_machine_another_process_may_have_the_servers_number(
    running: Running, tmp_path: Path
) -> None:
    shutil.copytree(running.hq / RUN, tmp_path / "run")
    (tmp_path / "run" / "lock").write_text(str(os.getpid()))
    assert (holder(tmp_path / "run"), driver(tmp_path / "run")) == (os.getpid(), None)
    assert standing_of(tmp_path / "run").state == "stopped"
    assert driver(running.hq / RUN) == os.getpid()


def test_status_as_json(running: Running, command: Command) -> None:
    code, said = command("federation", "status", running.hq, "--json")
    facts = json.loads(said)
    assert (code, facts["state"], facts["rounds"], facts["total"]) == (0, "running", 2, 4)
    first, bad = facts["sites"][0], facts["sites"][BAD]
    last = RunDir.open(running.hq / RUN).records()[-1]
    assert (first["name"], first["key"], first["round"], first["num_answers"]) == ("c0", "registered", 2, 2)
    assert first["accuracy"] == last.clients[0].scores.headline
    assert facts["accuracy"] == last.headline
    assert (bad["key"], bad["num_answers"], bad["trouble"]["word"]) == ("registered", 0, "busy")
    assert first["heard"] >= first["joined"]


def test_audit_shows_the_events_and_whose_they_are(running: Running, command: Command) -> None:
    code, said = command("federation", "audit", running.hq)
    assert code == 0
    assert "registered c0" in said
    assert f"round 2 refused c{BAD} busy: another process works on its state" in said
    assert said.count("the chain is whole, its last link is") == 2
    _, said = command("federation", "audit", running.hq / RUN, "--site", "c0", "--last", "1", "--json")
    event = json.loads(said[: said.index("}") + 1])
    assert (event["kind"], event["t"], event["site"]) == ("answered", 1, "c0")
    assert command("federation", "audit", running.hq, "--site", "c9")[0] == 2


def scraped(url: str) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 (our own, on loopback)
        assert reply.headers["Content-Type"] == CONTENT_TYPE
        text = reply.read().decode()
    samples, typed = {}, dict[str, str]()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            typed[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found, line
            assert found[1].removesuffix("_sum").removesuffix("_count") in typed
            samples[found[1], found[2] or ""] = float(found[3])
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in typed.items())
    return samples


def test_metrics_are_read_over_http_from_loopback(running: Running) -> None:
    with MetricsServer(running.hq, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        samples = scraped(server.url)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scraped(server.url.replace("/metrics", "/"))
        assert server.server_address[0] == "127.0.0.1"
        server.shutdown()
    timings = RunDir.open(running.hq / RUN).timings()
    last = RunDir.open(running.hq / RUN).records()[-1]
    expected = {
        ("fedssa_superlink_up", ""): 1,
        ("fedssa_run_info", 'run="fedssa-s7",state="running"'): 1,
        ("fedssa_run_up", ""): 1,
        ("fedssa_sites", ""): 4,
        ("fedssa_rounds_planned", ""): 4,
        ("fedssa_rounds_total", ""): 2,
        ("fedssa_round_seconds_sum", ""): sum(timing["seconds"] for timing in timings[1:]),
        ("fedssa_round_seconds_count", ""): 2,
        ("fedssa_participants", ""): 3,
        ("fedssa_accuracy_mean", ""): last.headline,
        ("fedssa_message_bytes_total", 'direction="up"'): sum(timing["message_bytes_up"] for timing in timings),
        ("fedssa_message_bytes_total", 'direction="down"'): sum(timing["message_bytes_down"] for timing in timings),
        ("fedssa_answers_total", 'site="c0"'): 2,
        ("fedssa_answers_total", f'site="c{BAD}"'): 0,
        ("fedssa_absences_total", 'site="c0"'): 0,
        ("fedssa_refusals_total", f'site="c{BAD}",reason="busy"'): 2,
    }
    assert {name: samples.get(name) for name in expected} == expected
    assert samples["fedssa_certificate_expires_seconds", ""] > samples["fedssa_last_heard_seconds", 'site="c0"']


def test_metrics_that_cannot_be_served_are_told(running: Running, tmp_path: Path, command: Command) -> None:
    port = running.superlink.getsockname()[1]
    code, said = command("federation", "metrics", running.hq, "--port", port)
    assert (code, f"--port {port}: cannot be used (Address already in use)" in said) == (2, True)
    shutil.copytree(running.hq / RUN, tmp_path / "run")
    with MetricsServer(tmp_path / "run", 0) as server:
        (tmp_path / "run" / AUDIT).write_text("{}\n")
        status, line = server.answer()
    assert (status, line.count("\n"), "audit.jsonl: damaged (line 1" in line) == (500, 1, True)


def test_doctor_checks_the_log(running: Running, tmp_path: Path) -> None:
    shutil.copytree(running.hq / RUN, tmp_path / "run")
    assert dict(examine(tmp_path / "run"))[AUDIT] == SOUND
    log = tmp_path / "run" / AUDIT
    log.write_bytes(log.read_bytes().replace(b'"busy"', b'"ahead"', 1))
    assert "the chain of digests breaks" in dict(examine(tmp_path / "run"))[AUDIT]


@pytest.mark.parametrize("path", [".", "nothing"])
def test_what_is_no_federation_is_refused_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("status", "health", "audit", "metrics"):
        code, said = command("federation", name, path)
        assert (code, "is neither a coordinator's directory nor a run across sites" in said) == (2, True), name


def test_before_the_first_run(tmp_path: Path, command: Command) -> None:
    init(tmp_path / "hq", Address("127.0.0.1", 1, 1, insecure=True), ["north"])
    code, said = command("federation", "status", tmp_path / "hq")
    assert (code, f"no run yet; to start one: fedssa federation run {tmp_path / 'hq'}" in said) == (0, True)
    code, said = command("federation", "health", tmp_path / "hq")
    assert (code, said.startswith("down: no SuperLink listens on port 1; start it:")) == (2, True)
    note(tmp_path / "hq", Event("submitted", run=str(tmp_path / "run")))
    assert standing_of(tmp_path / "hq").state == "starting"
    late = standing_of(tmp_path / "hq")
    later = health_of(replace(late, now=late.now + 1000))
    assert "has not begun; does superexec.sh run?" in later.line


def test_health_from_degraded_to_down_and_well(running: Running, command: Command) -> None:
    """The last of this file: it lets the run go on, dies with the SuperLink and ends."""

    def health() -> tuple[int, str]:
        return command("federation", "health", running.hq)

    progress = "(running, 2 of 4 rounds, 3 of 4 answers in the last)"
    refused = f"refused: c{BAD} (another process works on its state)"
    assert health() == (1, f"degraded: {refused} {progress}")
    del running.grid.tamper[node(BAD)]
    next(running.rounds)
    assert health() == (0, "well: running, 3 of 4 rounds, 4 of 4 answers in the last")
    running.rounds.close()  # type: ignore[attr-defined]
    code, said = health()
    continued = f"fedssa federation run {running.hq} --out {running.hq / RUN} --resume"
    assert (code, f"down: nobody works on {running.hq / RUN}; to continue it: {continued} (" in said) == (2, True)
    list(running.sites.run(running.grid, RUN, resume=True))
    assert health() == (0, "well: finished, 4 of 4 rounds, 4 of 4 answers in the last")
    assert [event.kind for event in running.sites.events(RUN)][-1] == "ended"
    assert {"stopped", "resumed"} <= {event.kind for event in running.sites.events(RUN)}
    assert dict(examine(running.hq / RUN))[AUDIT] == SOUND
    running.superlink_dies()
    code, said = health()
    assert (code, said.startswith("down: no SuperLink listens on port")) == (2, True)
