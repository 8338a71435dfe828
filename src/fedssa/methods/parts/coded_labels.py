"""Outputs on public samples travel in few bits: rounded on the simplex, and only where they have changed.

With b bits a row of probabilities becomes whole numbers q with Σ q = m = 2^b − 1; with one bit that is a class. *Codes*
are one tensor, whose form tells how it was made: ids [P] of one bit, uint8 [P, S] of two to eight, float32 [P, S] if
nothing was rounded (32 bits).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedssa.core.fields import Shaped, Shapes, i32, id_type, labels, probabilities
from fedssa.core.message import message, num_bytes
from fedssa.errors import AnswerError

WHOLE_FLOATS = 32  # bits that stand for no rounding at all
SUMS = {(1 << bits) - 1: bits for bits in range(2, 9)}


@dataclass(frozen=True)
class _Codes(Shaped):
    @override
    def check(self, name: str, value: Any, shapes: Shapes) -> None:
        super().check(name, value, shapes)
        sums = set(value.sum(dim=1).tolist())
        if len(sums) > 1 or not sums <= SUMS.keys():
            raise AnswerError(f"{name} has rows that do not sum to one 2^b − 1, b from 2 to 8")


@message
class Labels:
    """Says something of the P public samples, in one of three forms: of all, or of those at `places` alone."""

    ids: Annotated[Tensor | None, labels("m")] = None
    codes: Annotated[Tensor | None, _Codes(torch.uint8, ("m", "S"))] = None
    outputs: Annotated[Tensor | None, probabilities("m", "S")] = None
    places: Annotated[Tensor | None, i32("m")] = None  # None: of all

    @property
    def values(self) -> Tensor:
        (one,) = (form for form in (self.ids, self.codes, self.outputs) if form is not None)
        return one

    @property
    def bits(self) -> int | None:
        """Returns how many bits a label was rounded to; None if there is no label from which to tell."""
        if self.codes is None:
            return 1 if self.ids is not None else WHOLE_FLOATS
        return SUMS[int(self.codes[0].sum())] if len(self.codes) else None

    def is_of(self, bits: int) -> bool:
        """Tells whether the labels have the form of so many bits; no label at all may be of any from 2 to 8."""
        return self.bits == bits if self.bits is not None else 1 < bits < WHOLE_FLOATS

    def verify(self, shapes: Shapes) -> None:
        if [self.ids, self.codes, self.outputs].count(None) != 2:
            raise AnswerError("should hold ids, codes or outputs, and only one of them")
        num = shapes.size("P", 0)
        if self.places is None:
            if len(self.values) != num:
                raise AnswerError(f"labels of {len(self.values)} samples without their places, and there are {num}")
            return
        given = self.places.tolist()
        if given != sorted(set(given)) or (given and not 0 <= given[0] <= given[-1] < num):
            raise AnswerError(f"places are not samples in ascending order (0 to {num - 1})")


def quantise(p: Tensor, bits: int) -> Tensor:
    """Rounds rows of probabilities [P, S] to codes: the nearest in L1 with this sum; ties go to the lowest class."""
    if bits == WHOLE_FLOATS:
        return p
    if bits == 1:
        return p.argmax(dim=1).to(id_type(p.shape[1]))
    total = (1 << bits) - 1
    exact = p.double() * total
    q = exact.round()
    missing = total - q.sum(dim=1, keepdim=True)
    by_need = torch.argsort((exact - q) * missing.sign(), dim=1, descending=True, stable=True)
    rank = torch.empty_like(by_need).scatter_(1, by_need, torch.arange(p.shape[1], device=p.device).expand_as(by_need))
    return (q + missing.sign() * (rank < missing.abs())).to(torch.uint8)


def decoded(codes: Tensor, num_classes: int) -> Tensor:
    """Returns the probabilities that codes stand for: [P, S]."""
    if codes.ndim == 1:
        return one_hot(codes.long(), num_classes).float()
    if codes.is_floating_point():
        return codes
    return codes.float() / codes.sum(dim=1, keepdim=True)


def no_codes(num: int, num_classes: int, bits: int) -> Tensor:
    """Makes room for the codes of so many samples."""
    return torch.zeros_like(quantise(torch.zeros(num, num_classes), bits))


def whole(codes: Tensor, places: Tensor | None = None) -> Labels:
    if codes.ndim == 1:
        return Labels(ids=codes, places=places)
    return Labels(outputs=codes, places=places) if codes.is_floating_point() else Labels(codes=codes, places=places)


def delta(codes: Tensor, before: Tensor) -> Labels:
    """Says what has changed, sample by sample, or everything if that is smaller."""
    places = (codes != before).reshape(len(codes), -1).any(dim=1).nonzero().flatten()
    changed, everything = whole(codes[places], places.to(torch.int32)), whole(codes)
    return changed if num_bytes(changed) < num_bytes(everything) else everything


def undelta(said: Labels, before: Tensor) -> Tensor:
    """Returns the codes that the sender has, of what it says and what the receiver had before."""
    if said.places is None:
        return said.values
    codes = before.clone()
    codes[said.places.long()] = said.values
    return codes


def entropy_of_changes(codes: Tensor, before: Tensor | None) -> float:
    """Returns how many bits a perfect coder of single changes would need; codes must not be floats.

    A change is the new class, or "none"; of several bits it is the difference of each whole number.
    """
    symbols = codes.long()
    if before is not None:
        same = codes == before
        symbols = symbols.masked_fill(same, -1) if codes.ndim == 1 else symbols - before.long()
    counts = torch.bincount(symbols.flatten() - symbols.min())
    counts = counts[counts > 0].double()
    return float(-(counts * (counts / counts.sum()).log2()).sum()) + 0.0
