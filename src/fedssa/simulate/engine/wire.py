"""A pool and its workers exchange frames: a length, then one safetensors blob. Nothing is pickled."""

from typing import Any, BinaryIO

from fedssa import errors
from fedssa.core.tensors import Tensors, pack, unpack
from fedssa.errors import Diverged, FedSSAError

OURS: dict[str, type[FedSSAError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FedSSAError)
}


def write_frame(stream: BinaryIO, meta: dict[str, Any], tensors: Tensors) -> None:
    blob = pack(meta, tensors)
    stream.write(len(blob).to_bytes(8, "little") + blob)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], Tensors]:
    """Returns the next frame, and raises EOFError when the other side is gone."""
    size = _exactly(stream, 8)
    return unpack(_exactly(stream, int.from_bytes(size, "little")))


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


def error_to_wire(error: FedSSAError) -> dict[str, Any]:
    args = [error.client, error.t, error.header_norm] if isinstance(error, Diverged) else [str(error)]
    return {"class": next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in OURS), "args": args}


def error_from_wire(meta: dict[str, Any]) -> FedSSAError:
    return OURS[meta["class"]](*meta["args"])


def diverged_from_wire(meta: dict[str, Any]) -> Diverged:
    error = error_from_wire(meta)
    assert isinstance(error, Diverged)
    return error
