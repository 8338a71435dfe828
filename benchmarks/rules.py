"""python -m benchmarks.rules: what each rule of aggregation costs the server, for one vector from each client."""

import torch

from benchmarks.timing import cpu_seconds
from fedssa.core.averaging import RULES

NUM_CLIENTS, SIZE = 100, 2_600_000  # the paper's largest CNN has about as many numbers


def main() -> None:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(SIZE, generator=rng) for _ in range(NUM_CLIENTS)]
    for name, rule in RULES.items():
        seconds = cpu_seconds(lambda rule=rule: rule().combine(values))  # type: ignore[misc]
        print(f"{name}: {seconds:.1f} s for {NUM_CLIENTS} clients and {SIZE:,} numbers", flush=True)


if __name__ == "__main__":
    main()
