"""Representations of test samples are drawn in two dimensions, coloured by class and by model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssa.errors import FedSSAError, RunDirError
from fedssa.report.figures.colours import CATEGORIES
from fedssa.report.figures.scene import Dots, Figure, Item
from fedssa.report.figures.style import Style
from fedssa.runs.directory import RunDir
from fedssa.settings.labels import models_of

SIDE = 480.0
MARGIN = 14.0
MOST_SAMPLES = 2000
PERPLEXITY = 30.0
ITERATIONS = 500
DIMENSIONS = 50  # kept by principal components before t-SNE, as is usual

Array = NDArray[Any]


def tsne_figures(run_dir: RunDir, label: str) -> list[Figure]:
    """Draws the figures of a run that has written representations; there are none of one that has not."""
    if not run_dir.representations_file.exists():
        return []
    rows, labels, clients = _read(run_dir)
    places = _embed(rows)
    archs = models_of(run_dir)
    models = [archs[client % len(archs)] for client in clients]
    kept = dict.fromkeys(archs)
    by_class = _figure("class", label, places, [run_dir.class_names[s] for s in labels], _commonest(labels, run_dir))
    return [by_class, _figure("model", label, places, models, list(kept)[: len(CATEGORIES)])]


def _read(run_dir: RunDir) -> tuple[Array, Array, Array]:
    file = run_dir.representations_file
    rows, labels, clients = run_dir.representations()
    whole = all(np.issubdtype(part.dtype, np.integer) and part.shape == rows.shape[:1] for part in (labels, clients))
    if rows.ndim != 2 or not whole or not np.isfinite(rows.astype(np.float32)).all():
        raise RunDirError(f"{file}: damaged (its arrays do not fit); run it again")
    if len(rows) < 4 or labels.min() < 0 or labels.max() >= len(run_dir.class_names) or clients.min() < 0:
        raise RunDirError(f"{file}: damaged (too few samples, or labels out of range); run it again")
    step = 1 + (len(rows) - 1) // MOST_SAMPLES
    return rows[::step].astype(np.float64), labels[::step], clients[::step]


def _embed(rows: Array) -> Array:
    """Embeds the rows in two dimensions; equal ones give equal pictures on one machine."""
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise FedSSAError("t-SNE needs scikit-learn: pip install 'fedssa[report]'") from error
    centred = rows - rows.mean(axis=0)
    if not centred.any():
        raise FedSSAError("all representations are the same")
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :DIMENSIONS]
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    with threadpool_limits(limits=1):  # several threads that wait for a busy core take longer than one
        model = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=ITERATIONS)
        fitted: Array = model.fit_transform(centred @ axes)
    low, high = fitted.min(axis=0), fitted.max(axis=0)
    places: Array = MARGIN + (SIDE - 2 * MARGIN) * (fitted - low) / np.maximum(high - low, 1e-12)
    return places


def _commonest(labels: Array, run_dir: RunDir) -> list[str]:
    """Returns the commonest classes, as many as there are colours, in the order of classes."""
    counts = np.bincount(labels, minlength=len(run_dir.class_names))
    chosen = sorted(np.argsort(-counts, kind="stable")[: len(CATEGORIES)].tolist())
    return [run_dir.class_names[s] for s in chosen if counts[s]]


def _figure(kind: str, label: str, places: Array, owners: Sequence[str], shown: Sequence[str]) -> Figure:
    items: list[Item] = []
    rest = [owner not in shown for owner in owners]
    if any(rest):
        items.append(Dots(tuple(map(tuple, places[rest].tolist())), "grid", 5, 0.8))
    for number, name in enumerate(shown):
        mine = [owner == name for owner in owners]
        items.append(Dots(tuple(map(tuple, places[mine].tolist())), CATEGORIES[number], 5.5, 0.7))
    what = "class" if kind == "class" else "client model"
    reading = f"A dot is a test sample as its client’s header sees it, coloured by {what}; "
    reading += "what lies near is alike, how far apart the rest is means little."
    if any(rest):
        reading += f" Of all classes the {len(shown)} most frequent are coloured."
    legend = tuple(Style(-1 - n, name, CATEGORIES[n], "", "circle") for n, name in enumerate(shown))
    return Figure(f"tsne-{kind}", f"{label}: representations by {kind}", reading, SIDE, SIDE, tuple(items), legend)
