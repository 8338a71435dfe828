"""FedKD: a private mentor and a small shared mentee teach each other; the mentee's updates travel compressed.

Wu, Wu, Lyu, Huang, Xie: "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022.

    client k:    L = CE_t + CE_s + (KL(p_s ‖ p_t) + KL(p_t ‖ p_s) + h) / D      teachers (first arguments) detached
                 h = MSE(H_t, W_h·H_s) on the representations, W_h private; D = max(CE_t + CE_s, 1e-8), detached
    k → server:  the mentee's update since the mentee it received, each matrix by SVD at the smallest rank K with
                 Σ_{i ≤ K} s_i² / Σ s_i² ≥ T(t),  T(t) = T_start + (T_end − T_start)·(t + 1)/T
    server:      rebuilds, takes the uniform mean, compresses it the same way, adds *that* to its own mentee
    server → k:  the compressed mean of the last round if k took part in it, else the whole mentee

An SVD that does not converge is sent whole, and counted. A client keeps the mentee it received, not the one it
trained, so that the server and up-to-date clients have the same mentee to the last bit. The mentor is the model
evaluated.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo, copy_in, module_state
from fedssa.core.method import Method, Upload
from fedssa.core.ops import kl, weighted_mean
from fedssa.core.payload import Tensors, expect
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import AnswerError, FedSSAWarning

FAILED = "failed_svds"  # in a message, and in the server's state: how many did not converge


@final
@dataclass(frozen=True, kw_only=True)
class FedKD(Method):
    """A private mentor and a shared mentee teach each other; the mentee's updates travel compressed by SVD."""

    needs_shared_model: ClassVar[bool] = True

    t_start: Annotated[float, Gt(0), Le(1)] = 0.95  # energy that a compressed update keeps in the first round …
    t_end: Annotated[float, Gt(0), Le(1)] = 0.98  # … and in the last

    def __post_init__(self) -> None:
        if self.t_start > self.t_end:
            raise ValueError(f"t_start = {self.t_start} is larger than t_end = {self.t_end}")

    def energy(self, t: int, num_rounds: int) -> float:
        return self.t_start + (self.t_end - self.t_start) * (t + 1) / num_rounds

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        mentee = module_state(task.shared_start(seed))
        return _prefixed("mentee.", mentee) | {
            "num_rounds": torch.tensor(task.num_rounds),
            FAILED: torch.tensor(0),
        }

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.aux["mentee"] = task.shared_start(seed)
        with seeded(seed, "start", client=client.id):
            client.aux["projection"] = nn.Linear(task.width, task.width, bias=False)  # W_h
        client.memory |= {name: tensor.clone() for name, tensor in module_state(client.aux["mentee"]).items()}

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        last = server.get(f"last.{to.id}")
        if t == 0:
            return {}  # everyone has the mentee's start
        if last is not None and int(last) == t - 1:
            return _prefixed("update.", _under("update.", server))
        return _prefixed("mentee.", _under("mentee.", server))

    @override
    @torch.no_grad()
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        mentee = client.memory
        if whole := _under("mentee.", down):
            copy_in(whole, mentee)
        else:
            add_update(mentee, _under("update.", down))
        copy_in(mentee, module_state(client.aux["mentee"]))

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        mentee = client.aux["mentee"]
        assert isinstance(mentee, SplitModel)
        h_t, h_s = client.net.extractor(x), mentee.extractor(x)
        z_t, z_s = client.net.header(h_t), mentee.header(h_s)
        task_loss = cross_entropy(z_t, y) + cross_entropy(z_s, y)
        hidden = mse_loss(h_t, client.aux["projection"](h_s))
        adaptive = task_loss.detach().clamp(min=1e-8)
        return task_loss + (kl(z_s, z_t) + kl(z_t, z_s) + hidden) / adaptive, {}

    @override
    @torch.no_grad()
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        trained = module_state(client.aux["mentee"])
        update = {name: trained[name] - received for name, received in client.memory.items()}
        return compress(update, self.energy(t, client.task.num_rounds))

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        mentee = {name: tensor.clone() for name, tensor in _under("mentee.", server).items()}
        updates = [rebuild(upload.payload, mentee) for upload in uploads]
        mean = compress(weighted_mean(updates, [1] * len(updates)), self.energy(t, int(server["num_rounds"])))
        failed = sum(int(message.get(FAILED, 0)) for message in (mean, *(upload.payload for upload in uploads)))
        if failed and not int(server[FAILED]):
            warnings.warn(
                f"round {t}: an SVD did not converge; such updates are sent whole", FedSSAWarning, stacklevel=2
            )
        mean.pop(FAILED, None)
        add_update(mentee, mean)
        took_part = {f"last.{upload.info.id}": torch.tensor(t) for upload in uploads}
        others = {name: server[name] for name in server if name.startswith("last.")}
        kept = {"num_rounds": server["num_rounds"], FAILED: server[FAILED] + failed, **others, **took_part}
        return _prefixed("mentee.", mentee) | _prefixed("update.", mean) | kept

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        """Of each tensor of the mentee its whole update, its factors at some rank, or nothing."""
        allowed: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name, tensor in module_state(task.shared_start(0)).items():
            if name in payload:
                allowed[name] = tensor.dtype, tuple(tensor.shape)
            elif f"{name}:s" in payload and tensor.ndim > 1:
                rows, rank = len(tensor), payload[f"{name}:s"].numel()
                shapes = {"u": (rows, rank), "s": (rank,), "v": (rank, tensor.numel() // rows)}
                allowed |= {f"{name}:{factor}": (tensor.dtype, shape) for factor, shape in shapes.items()}
        if FAILED in payload:
            allowed[FAILED] = torch.int64, ()
        expect(payload, allowed)
        if FAILED in payload and not 0 < int(payload[FAILED]) <= len(payload):
            raise AnswerError("more failed SVDs than tensors")

    @override
    def events(self, server: Tensors) -> dict[str, int]:
        failed = int(server[FAILED])
        return {"SVDs that did not converge": failed} if failed else {}


def compress(update: Tensors, energy: float) -> Tensors:
    """Each matrix (a convolution as out × rest) as SVD factors where those are smaller; a zero tensor is left out."""
    message: Tensors = {}
    for name, tensor in update.items():
        if not tensor.any():
            continue
        try:
            factors = svd(tensor.reshape(len(tensor), -1), energy) if tensor.ndim > 1 else None
        except RuntimeError:  # torch.linalg.LinAlgError is one
            message[FAILED] = message.get(FAILED, torch.tensor(0)) + 1
            factors = None
        message |= _prefixed(f"{name}:", factors) if factors else {name: tensor}
    return message


def svd(matrix: Tensor, energy: float) -> Tensors | None:
    """U, s, V at the smallest rank that keeps this share of the energy; None if the matrix itself is not larger."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    squares = (s / s[0]) ** 2  # of the ratios: a float's square may overflow
    kept = squares.cumsum(0) / squares.sum()
    rank = min(int((kept < energy).sum()) + 1, len(s))
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    return {"u": u[:, :rank].contiguous(), "s": s[:rank], "v": v[:rank].contiguous()}


def rebuild(message: Tensors, like: Tensors) -> Tensors:
    """The update that a message stands for, with the names and shapes of `like`."""
    update = {}
    for name, tensor in like.items():
        if name in message:
            update[name] = message[name]
        elif f"{name}:u" in message:
            u, s, v = (message[f"{name}:{factor}"] for factor in "usv")
            update[name] = ((u * s) @ v).reshape(tensor.shape)
        else:
            update[name] = torch.zeros_like(tensor)
    return update


def add_update(mentee: Tensors, message: Tensors) -> None:
    """In place, and the same arithmetic at the server and at the clients."""
    for name, tensor in rebuild(message, mentee).items():
        mentee[name] += tensor


def _prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
