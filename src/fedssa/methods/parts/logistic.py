"""Logistic regression tells two sets of vectors apart; it is solved by Newton's method in float64."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

MOST_STEPS = 100
NEARLY_ZERO = 1e-10  # the largest gradient of a solution
ROUNDING = 1e-12  # of the objective


def logistic_regression(x: Tensor, y: Tensor, lam: float) -> Tensor:
    """Returns argmin_w (1/n)·Σ log(1 + exp(−y·⟨w, x⟩)) + (λ/2)·‖w‖², without an intercept.

    x: [n, d]; y: [n], 1 or −1. The objective is strictly convex, so that there is one solution.
    """
    signed = x.double() * y.double()[:, None]
    num, width = signed.shape
    w = signed.new_zeros(width)
    ridge = lam * torch.eye(width, dtype=torch.float64, device=signed.device)

    def objective(at: Tensor) -> Tensor:
        return lam / 2 * (at @ at) - logsigmoid(signed @ at).mean()

    for _ in range(MOST_STEPS):
        wrong = torch.sigmoid(-(signed @ w))  # the probability of the other label
        gradient = lam * w - signed.T @ wrong / num
        if float(gradient.abs().max()) <= NEARLY_ZERO:
            break
        hessian = (signed * (wrong * (1 - wrong))[:, None]).T @ signed / num + ridge
        step = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while objective(w - size * step) > objective(w) + ROUNDING:
            size /= 2  # far from the solution a whole step may overshoot
        w = w - size * step
    return w
