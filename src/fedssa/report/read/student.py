"""Student's t distribution: how often chance alone leads so far from zero, in closed form for whole degrees of freedom.

With θ = arctan(t / √ν) the chance of less than ±t is a finite sum of powers of cos θ (Abramowitz and Stegun 26.7.3 for
odd ν, 26.7.4 for even ν).
"""

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

HALVINGS = 60  # of an angle, until it is known to the last digit


def chance(mean: ArrayLike, error: ArrayLike, free: int) -> Floats:
    """Returns two-sided p-values of means that have these standard errors, with so many degrees of freedom.

    Without any error every mean but 0 is beyond chance.
    """
    angle = np.arctan2(np.abs(mean), np.sqrt(free) * np.asarray(error))
    sine, cosine, odd = np.sin(angle), np.cos(angle), free % 2
    term, series = cosine**odd, np.zeros_like(angle)
    for power in range(odd, free - 1, 2):
        series = series + term
        term = term * cosine**2 * (power + 1) / (power + 2)
    inside = 2 / np.pi * (angle + sine * series) if odd else sine * series
    return np.asarray(np.clip(1 - inside, 0, 1), dtype=np.float64)


@cache
def reach(level: float, free: int) -> float:
    """Returns how many standard errors an interval reaches to both sides, so that it covers the truth that often."""
    low, high = 0.0, math.pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        beyond = float(chance(math.tan(middle) * math.sqrt(free), 1.0, free)) > 1 - level
        low, high = (middle, high) if beyond else (low, middle)
    return math.tan(low) * math.sqrt(free)
