"""What noise on uploads is worth is counted here, for one client and all rounds of one run.

*Neighbouring* means: one client has other samples, any others at all of the same seen classes and numbers (replace-one;
the unit is a client). Its clipped upload is then another vector of norm ≤ C, so it moves by at most Δ = 2C. The noise
has the standard deviation σC, so a round has the Rényi divergence α·Δ²/(2(σC)²) = 2α/σ² (Mironov, CSF 2017, prop. 7).
Rounds add up, though a round depends on those before (prop. 1), to α·ρ with ρ = 2·rounds/σ². That is (ε, δ)-private
with ε = α·ρ + ln(1/δ)/(α − 1) for every α > 1 (prop. 3); the best α gives

    ε = ρ + 2·√(ρ·ln(1/δ))                                                    (Bun and Steinke, TCC 2016, prop. 1.3)

This holds for each client by itself, whatever the others and the server do. Nobody's draw is secret (cohorts follow
from the seed, which all know), so there is no amplification by sampling: a client that takes part in fewer rounds has
spent less because of that alone. It is an upper bound, and of what carries noise: the floats of uploads.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedssa.core.privacy import Privacy
from fedssa.core.rounds import Rounds, cohort


@dataclass(frozen=True)
class Account:
    """An account says what the uploads of one client may give away in so many rounds."""

    privacy: Privacy
    rounds: int

    @property
    def epsilon(self) -> float:
        return epsilon(self.privacy.sigma, self.privacy.delta, self.rounds)

    @property
    def table(self) -> dict[str, Any]:
        """Returns what a run directory says of it; without noise there is no ε."""
        known = {"epsilon": self.epsilon} if self.privacy.sigma else {}
        return {**known, "delta": self.privacy.delta, "rounds": self.rounds}

    @property
    def in_words(self) -> str:
        privacy, rounds = self.privacy, f"{self.rounds} round{'s' if self.rounds > 1 else ''}"
        clipped = f"uploads are clipped to norm {privacy.clip:g}"
        if not privacy.sigma:
            return f"{clipped} and carry no noise (sigma = 0), so nothing is promised"
        return (
            f"{clipped} and carry noise {privacy.sigma:g} · {privacy.clip:g}: ε = {self.epsilon:.3g} at "
            f"δ = {privacy.delta:g} for all samples of a client in its {rounds} of this run; class ids, counts, loss "
            "and accuracies carry none"
        )


def epsilon(sigma: float, delta: float, rounds: int) -> float:
    rho = 2 * rounds / sigma**2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def account_of_run(privacy: Privacy, rounds: Rounds, num_clients: int, seed: int) -> Account:
    """Counts the rounds of the client that takes part most often, which the seed says beforehand."""
    drawn = Counter(k for t in range(rounds.total) for k in cohort(num_clients, rounds.fraction, seed, t))
    return Account(privacy, max(drawn.values()))
