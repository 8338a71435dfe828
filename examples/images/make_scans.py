"""Writes digits as if five offices had scanned them, six of the ten digits each: scans/OFFICE/DIGIT/NUMBER.png."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedssa.data import Digits

OFFICES = ("east", "harbour", "market", "north", "station")

digits = Digits().decode()
for number, (pixels, digit) in enumerate(zip(digits.x[:600, ..., 0], digits.y[:600], strict=True)):
    holders = [office for office in range(5) if (digit - 2 * office) % 10 < 6]
    office = holders[number % len(holders)]
    folder = Path("scans", OFFICES[office], str(digit))
    folder.mkdir(parents=True, exist_ok=True)
    scanned = np.rot90(pixels, office % 2)  # every second office lays its paper across
    Image.fromarray(scanned).save(folder / f"{number}.png")
