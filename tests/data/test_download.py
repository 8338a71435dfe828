import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from fedssa.data import download, prepare
from fedssa.errors import DataError

from .fake_cifar import Small10, archive

NAME = "cifar-10-python.tar.gz"


@dataclass
class Site:
    """A web server whose next answers may break off after so many bytes."""

    content: bytes
    ranges: bool = True
    drops: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)  # the Range header of each request
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if handler.path != f"/{NAME}":
            return handler.send_error(404)
        if start >= len(self.content):
            return handler.send_error(416)
        body = self.content[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.drops.pop(0)] if self.drops else body)
        return None


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(archive(Small10))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        site.url = f"http://127.0.0.1:{server.server_port}/"
        sha256 = hashlib.sha256(site.content).hexdigest()
        monkeypatch.setattr(Small10, "release", replace(Small10.release, base_url=site.url, sha256=sha256))
        monkeypatch.setattr(download, "PAUSE", 0.01)
        yield site
        server.shutdown()


def test_what_is_not_there_is_downloaded_once(site: Site, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(prepare(Small10()).y) == 20
    assert capsys.readouterr().err == f"downloading {site.url}{NAME} to {cache}/downloads\n"
    assert len(prepare(Small10()).y) == 20
    assert site.asked == [None]
    assert (cache / "downloads" / NAME).read_bytes() == site.content
    assert not (cache / "downloads" / f"{NAME}.part").exists()


def test_a_lost_connection_is_resumed(site: Site) -> None:
    site.drops = [10_000, 20_000]
    assert len(prepare(Small10()).y) == 20
    assert site.asked == [None, "bytes=10000-", "bytes=30000-"]


def test_a_server_without_ranges_sends_all_again(site: Site) -> None:
    site.ranges, site.drops = False, [10_000]
    assert len(prepare(Small10()).y) == 20
    assert site.asked == [None, "bytes=10000-"]


def test_after_three_tries_the_part_is_kept_for_the_next_run(site: Site, cache: Path) -> None:
    site.drops = [1000, 1000, 1000]
    line = rf"^cifar10 is not on this machine and could not be downloaded \({site.url}{NAME}: the connection was lost"
    with pytest.raises(DataError, match=line) as caught:
        prepare(Small10())
    assert str(caught.value).endswith(
        f"put {NAME} into {cache}/downloads, or point --data-dir (or FEDSSA_DATA) at a folder that holds it"
    )
    assert (cache / "downloads" / f"{NAME}.part").stat().st_size == 3000
    assert len(prepare(Small10()).y) == 20
    assert site.asked[-1] == "bytes=3000-"


def part(cache: Path, content: bytes) -> Path:
    (cache / "downloads").mkdir(parents=True)
    path = cache / "downloads" / f"{NAME}.part"
    path.write_bytes(content)
    return path


def test_a_whole_part_needs_no_request(site: Site, cache: Path) -> None:
    part(cache, site.content)
    assert len(prepare(Small10()).y) == 20
    assert site.asked == []


def test_a_part_that_is_too_long_is_thrown_away(site: Site, cache: Path) -> None:
    part(cache, site.content + b"more")
    assert len(prepare(Small10()).y) == 20
    assert site.asked == [f"bytes={len(site.content) + 4}-", None]


def test_a_wrong_checksum_deletes_what_came(site: Site, cache: Path) -> None:
    path = part(cache, b"of something else")
    with pytest.raises(DataError, match="has not the checksum it should have; what was downloaded is deleted"):
        prepare(Small10())
    assert not path.exists()
    assert not path.with_suffix("").exists()
    assert len(prepare(Small10()).y) == 20


def test_a_server_that_says_no(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small10, "release", replace(Small10.release, base_url=f"{site.url}gone/"))
    with pytest.raises(DataError, match=r"could not be downloaded \(http\S+: HTTP Error 404: Not Found\): put"):
        prepare(Small10())
    assert len(site.asked) == 1


def test_without_a_network_the_error_says_what_to_do(cache: Path) -> None:
    with pytest.raises(DataError, match=r"could not be downloaded \(http://127.0.0.1:9/\S+: .*refused\): put cifar-10"):
        prepare(Small10())


def test_downloads_may_be_forbidden(site: Site, cache: Path) -> None:
    with pytest.raises(
        DataError, match=f"^cifar10 is not on this machine: put {NAME} into {cache}/downloads, or point"
    ):
        prepare(Small10(download=False))
    assert site.asked == []


def test_two_that_download_at_once_ask_once(site: Site) -> None:
    sizes: list[int] = []
    threads = [threading.Thread(target=lambda: sizes.append(len(prepare(Small10()).y))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [20, 20, 20]
    assert site.asked == [None]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSA_CACHE", "/proc/nope")
    with pytest.raises(DataError, match=r"^cache folder /proc/nope/downloads cannot be written .*FEDSSA_CACHE"):
        prepare(Small10())
