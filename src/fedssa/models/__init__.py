"""Models go by name; each is a function from a Task to a module. One that is no SplitModel is split for its owner."""

from fedssa.models.builder import MODELS, Builder, ModelFactory, build
from fedssa.models.cnn import CNNS
from fedssa.models.mlp import MLPS

DESCRIPTIONS = {
    **{name: f"conv {a} and {b} (5×5, max-pool), linear {c}; images" for name, (a, b, c) in CNNS.items()},
    **{name: f"linear {' and '.join(map(str, widths))}; vectors, flattened images" for name, widths in MLPS.items()},
}

__all__ = ["DESCRIPTIONS", "MODELS", "Builder", "ModelFactory", "build"]
