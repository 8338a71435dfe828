"""Metrics of a federation are served to Prometheus, on loopback, in its text format.

They are read from the coordinator's directory and its latest run whenever they are asked for, so that this process may
be stopped and started, and the run need not know of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from typing_extensions import override

from fedssa.deploy.server.health import REFUSALS, expires
from fedssa.deploy.server.standing import Standing, address_of, standing_of
from fedssa.errors import FedSSAError, SettingsError

HOST, PORT = "127.0.0.1", 9464
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_FOR_A_REQUEST = 10


class Sample(NamedTuple):
    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Family(NamedTuple):
    """A family of samples has one name, one type and one line of help."""

    name: str
    kind: str
    told: str
    samples: list[Sample]


def exposition(standing: Standing) -> str:
    """Writes the families that have samples, as Prometheus reads them."""
    lines = list[str]()
    for family in _families(standing):
        if family.samples:
            lines += [f"# HELP {family.name} {family.told}", f"# TYPE {family.name} {family.kind}"]
            lines += [f"{family.name}{s.suffix}{_written(s.labels)} {float(s.value)!r}" for s in family.samples]
    return "\n".join(lines) + "\n"


def _families(standing: Standing) -> Iterable[Family]:
    events, timings, last = standing.events, standing.timings, standing.last
    answers = Counter(event.site for event in events if event.kind == "answered")
    refusals = Counter((event.site, event.word or event.kind) for event in events if event.kind in REFUSALS)
    absences = Counter(event.site for event in events if event.kind == "absent")
    rounds = [float(timing["seconds"]) for timing in timings if timing["t"] >= 0]
    if address := address_of(standing):
        yield _gauge("superlink_up", "Whether the SuperLink takes connections.", address.is_listened_to())
    if until := expires(standing):
        yield _gauge("certificate_expires_seconds", "When the server's certificate expires.", until.timestamp())
    if path := standing.path:
        info = Sample(1, {"run": path.name, "state": standing.state})
        yield Family("fedssa_run_info", "gauge", "The latest run, and its state.", [info])
    yield _gauge("run_up", "Whether a server works on the latest run.", standing.process is not None)
    if standing.run_dir is None:
        return
    yield _gauge("sites", "Sites of the federation.", len(standing.sites))
    yield _gauge("rounds_planned", "Rounds that the run is to have.", standing.total)
    yield Family("fedssa_rounds_total", "counter", "Rounds that are on disk.", [Sample(standing.num_rounds)])
    seconds = [Sample(sum(rounds), suffix="_sum"), Sample(len(rounds), suffix="_count")]
    yield Family("fedssa_round_seconds", "summary", "Seconds of a round.", seconds)
    if last is not None:
        yield _gauge("last_round_seconds", "Seconds of the last round.", rounds[-1] if rounds else None)
        yield _gauge("participants", "Answers that the last round used.", len(last.clients))
        yield _gauge("accuracy_mean", "Mean test accuracy over the sites heard so far, 0 to 1.", last.headline)
    up_and_down = {way: sum(timing.get(f"message_bytes_{way}", 0) for timing in timings) for way in ("up", "down")}
    sent = [Sample(count, {"direction": way}) for way, count in up_and_down.items()]
    yield Family("fedssa_message_bytes_total", "counter", "Bytes of messages, as Flower encodes them.", sent)
    yield _by_site("answers_total", "Answers that could be used.", answers, standing)
    yield _by_site("absences_total", "Rounds without an answer in time.", absences, standing)
    refused = [Sample(count, {"site": site, "reason": why}) for (site, why), count in sorted(refusals.items())]
    yield Family("fedssa_refusals_total", "counter", "Refusals, by a site or of what it sent.", refused)
    heard = [Sample(site.heard, {"site": site.name}) for site in standing.sites if site.heard is not None]
    yield Family("fedssa_last_heard_seconds", "gauge", "When a site last said anything (Unix time).", heard)


def _gauge(name: str, told: str, value: float | None) -> Family:
    return Family(f"fedssa_{name}", "gauge", told, [] if value is None else [Sample(value)])


def _by_site(name: str, told: str, counts: Mapping[str, int], standing: Standing) -> Family:
    samples = [Sample(counts.get(site.name, 0), {"site": site.name}) for site in standing.sites]
    return Family(f"fedssa_{name}", "counter", told, samples)


def _written(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer(ThreadingHTTPServer):
    """It answers GET /metrics on loopback; what cannot be read is told in one line, with status 500."""

    daemon_threads = True

    def __init__(self, directory: Path, port: int = PORT) -> None:
        self._directory, self._reading = directory, Lock()
        standing_of(directory)
        try:
            super().__init__((HOST, port), _Request)
        except OSError as error:
            raise SettingsError(f"--port {port}: cannot be used ({error.strerror}); choose another") from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/metrics"

    def answer(self) -> tuple[int, str]:
        try:
            with self._reading:
                return 200, exposition(standing_of(self._directory))
        except FedSSAError as error:
            return 500, f"{error}\n"


class _Request(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = SECONDS_FOR_A_REQUEST

    def do_GET(self) -> None:
        status, text = self.server.answer() if self.path == "/metrics" else (404, "metrics are at /metrics\n")
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing, since it is asked every few seconds."""
