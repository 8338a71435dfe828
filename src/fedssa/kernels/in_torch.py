"""The kernels in torch are the reference, and run where C does not."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from fedssa.kernels.moves import Moves


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Pools first, which leaves the ReLU a quarter of the work: ReLU and max-pool commute."""
    return torch.relu(max_pool2d(conv2d(x, weight, bias), 2))


def gather(samples: Tensor, index: Tensor, moves: Moves | None) -> Tensor:
    x = as_floats(samples[index])
    return x if moves is None else move(x, Moves(*(each.to(x.device) for each in moves)))


def as_floats(x: Tensor) -> Tensor:
    """Maps bytes to [-1, 1]; floats stay as they are."""
    return x.to(torch.float32).mul_(1 / 127.5).sub_(1.0) if x.dtype == torch.uint8 else x


def move(x: Tensor, moves: Moves) -> Tensor:
    """Moves images [B, H, W, C]."""
    num, height, width, channels = x.shape
    y, across = (torch.arange(size, device=x.device) for size in (height, width))
    rows = y + moves.down[:, None]  # [B, H]: where each row of the result comes from
    columns = torch.where(moves.mirrored[:, None], width - 1 - across, across) + moves.right[:, None]  # [B, W]
    top, left, tall, wide = (value[:, None] for value in moves.holes.unbind(dim=1))
    outside = (
        _within(rows, 0, height).logical_not_()[:, :, None] | _within(columns, 0, width).logical_not_()[:, None, :]
    )
    hole = _within(y, top, top + tall)[:, :, None] & _within(across, left, left + wide)[:, None, :]
    image = torch.arange(0, num * height * width, height * width, device=x.device)[:, None, None]
    source = image + rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    moved = torch.index_select(x.reshape(-1, channels), 0, source.flatten()).view(x.shape)
    return moved.masked_fill_((outside | hole)[:, :, :, None], 0.0)


def _within(values: Tensor, low: Tensor | int, end: Tensor | int) -> Tensor:
    return (values >= low) & (values < end)


def linear_step(
    weight: Tensor, velocity: Tensor, grad: Tensor, x: Tensor, *, lr: float, momentum: float, first: bool
) -> None:
    torch._fused_sgd_(
        [weight],
        [grad.t().mm(x)],
        [velocity],
        lr=lr,
        momentum=momentum,
        weight_decay=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=first,
    )
