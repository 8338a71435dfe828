"""Round records become TensorBoard event files, written live and without TensorBoard or torch.

An event file is a row of framed protocol buffers: length, checksum of the length, the buffer, its checksum. A buffer
here is Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; } with
Summary { repeated Value value = 1; } and Value { string tag = 1; float simple_value = 2; }.
"""

import struct
import time
from collections.abc import Iterator
from itertools import accumulate

from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.files import writing
from fedssa.runs.trackers import scalars

FOLDER = "tensorboard"
FILES = "events.out.tfevents.*.fedssa"


class EventLog:
    """The log has all events of one run from its first round on, even if the run was resumed or not tracked before.

    A new file takes the place of the old one, which a viewer may have open.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir, self._numbers = run_dir, [0, 0]
        records, seconds = run_dir.records(), {t["t"]: float(t["seconds"]) for t in run_dir.timings()}
        durations = [seconds.get(record.t, 0.0) for record in records]
        # each round's time is now less the seconds of all later ones; TensorBoard shows the time between rounds
        times = [time.time() - later for later in reversed([0.0, *accumulate(reversed(durations[1:]))])]
        with writing(run_dir.path):
            folder = run_dir.path / FOLDER
            folder.mkdir(exist_ok=True)
            for old in folder.glob(FILES):
                old.unlink()
            self._file = (folder / FILES.replace("*", str(time.time_ns()))).open("wb", buffering=0)
            self._write(_bytes(3, b"brain.Event:2"), time.time())
            for record, at, duration in zip(records, times, durations, strict=False):
                self._write(self._event(record, duration), at)

    def add(self, record: RoundRecord) -> None:
        timings = self._run_dir.timings()
        with writing(self._run_dir.path):
            self._write(self._event(record, timings[-1]["seconds"] if timings else 0.0), time.time())

    def close(self) -> None:
        self._file.close()

    def _event(self, record: RoundRecord, seconds: float) -> bytes:
        self._numbers[0] += sum(client.params_up for client in record.clients)
        self._numbers[1] += sum(client.params_down for client in record.clients)
        values = scalars(record) | {
            "numbers/up": float(self._numbers[0]),
            "numbers/down": float(self._numbers[1]),
            "seconds": seconds,
        }
        return _varint(2 << 3) + _varint(record.t + 1) + _bytes(5, b"".join(map(_value, values.items())))

    def _write(self, event: bytes, at: float) -> None:
        """Writes an event in one system call, so that a reader sees whole events, or that the last is incomplete."""
        self._file.write(_framed(struct.pack("<Bd", (1 << 3) | 1, at) + event))


class TensorBoard:
    """The tracker that writes an event log into each run directory."""

    _log: EventLog

    def start(self, run_dir: RunDir) -> None:
        self._log = EventLog(run_dir)

    def round(self, record: RoundRecord) -> None:
        self._log.add(record)

    def end(self, outcome: Outcome | None) -> None:
        self._log.close()


def track_ended(run_dir: RunDir) -> None:
    """Writes the event log of a run that ended untracked."""
    if not list((run_dir.path / FOLDER).glob(FILES)):
        EventLog(run_dir).close()


def _value(scalar: tuple[str, float]) -> bytes:
    tag, value = scalar
    return _bytes(1, _bytes(1, tag.encode()) + struct.pack("<Bf", (2 << 3) | 5, value))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint((field << 3) | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    head = bytearray()
    while number >= 0x80:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*head, number])


def _framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """Returns the CRC-32C, rotated and shifted as the format asks."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_table() -> Iterator[int]:
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


_CRC_TABLE = tuple(_crc_table())
