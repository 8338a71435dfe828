"""FedGen's rounds in both implementations: the naive one is given the noise and the labels that the real one draws."""

from typing import Any

import torch
from torch import Tensor

from fedssa.core.context import ServerContext
from fedssa.core.optim import Adam
from fedssa.core.schedules import StepDecay
from fedssa.core.seeds import torch_rng
from fedssa.core.training import Training
from fedssa.methods import FedGen
from tests.methods import naive_fedgen as naive
from tests.methods.beside_naive import (
    LABELS,
    SEED,
    TASK,
    Case,
    NaiveRound,
    Trace,
    batches,
    in_float64,
    rows_of,
    server_batches,
)
from tests.methods.naive import NaiveClient, Sgd, Weights

STEPS, NOISE, HIDDEN = 2, 3, 6  # the server's steps in a pass, numbers in a noise, hidden units of the generator
TRAINING = Training(
    epochs=2, batch_size=4, lr=0.01, optimiser=Adam(weight_decay=0.01), schedule=StepDecay(every=1, gamma=0.9)
)
TWIN_ADAM = naive.Adam(lr=0.01, decay=0.9, l2=0.01)
TRAINED = ("hidden", "out", "scale", "shift")  # of the generator, in the order in which its optimiser has them


def small(**settings: Any) -> FedGen:
    return FedGen(steps=STEPS, noise=NOISE, hidden=HIDDEN, **settings)


def upload(up: Any) -> Trace:
    return {"rows": up.rows, "classes": up.classes, "counts": up.counts}


def server(state: Any) -> Trace:
    g = state.down.generator
    shown = {"header": state.down.rows, "law": state.down.law, "hidden": g.hidden, "out": g.out}
    shown |= {"scale": g.scale, "shift": g.shift, "mean": g.mean, "variance": g.variance}
    names = [f"{kind} of {part}" for part in TRAINED for kind in ("first", "second", "steps")]
    return shown | dict(zip(names, state.moments, strict=True))


# ---------------------------------------------------------------------------------------------------------- its twin


def fedgen(generated: int = 0, labels: str = "all", **settings: Any) -> NaiveRound:
    state = twin_start()

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        streams = {client.id: torch_rng(SEED, "training", t=t, client=client.id) for client in clients}
        law = list(state.law)

        def for_client(k: int, _: int, real: list[int]) -> tuple[naive.Drawn, naive.Drawn]:
            wanted = [float(s in LABELS[k]) for s in range(TASK.num_classes)] if labels == "own" else law
            drawn = by_law(wanted, generated or len(real), streams[k])
            beside = noises(len(real), streams[k]) if settings.get("beta") else torch.zeros(0, NOISE)
            return drawn, naive.Drawn(beside, real)

        def for_server(new_law: list[float]) -> list[naive.Drawn]:
            num = STEPS * TRAINING.batch_size
            pool = by_law(new_law, num, torch_rng(SEED, "method", t=t))
            steps = server_batches(t, TRAINING, num)
            return [naive.Drawn(pool.noise[batch], [pool.labels[i] for i in batch]) for batch in steps]

        uploads = naive.fedgen_round(
            t,
            clients,
            state,
            batches(t),
            for_client,
            for_server,
            sgd,
            TASK.num_classes,
            adam=TWIN_ADAM,
            **settings,
        )
        return {k: twin_upload(up) for k, up in uploads.items()}, twin_server(state)

    return run_round


def by_law(law: list[float], num: int, stream: torch.Generator) -> naive.Drawn:
    labels: list[int] = torch.multinomial(torch.tensor(law), num, replacement=True, generator=stream).tolist()
    return naive.Drawn(noises(num, stream), labels)


def noises(num: int, stream: torch.Generator) -> Tensor:
    return torch.randn(num, NOISE, generator=stream).double()


def twin_start() -> naive.GenServer:
    g = small().server_init(ServerContext(TASK, SEED)).down.generator
    layers = {"V": g.hidden[:, :-1], "v": g.hidden[:, -1], "U": g.out[:, :-1], "u": g.out[:, -1]}
    generator = in_float64(layers | {"scale": g.scale, "shift": g.shift})
    return naive.GenServer(generator, in_float64({"mean": g.mean, "var": g.variance}))


def twin_upload(up: naive.GenUpload) -> Trace:
    classes, counts = torch.tensor(list(up.counts)), torch.tensor(list(up.counts.values()))
    return {"rows": rows_of(up.header["W"], up.header["b"]), "classes": classes, "counts": counts}


def twin_server(state: naive.GenServer) -> Trace:
    shown = {"header": rows_of(state.header["W"], state.header["b"]), "law": torch.tensor(state.law)}
    shown |= {"mean": state.running["mean"], "variance": state.running["var"]} | trained(state.generator)
    for kind, moments in (("first", state.first), ("second", state.second)):
        shown |= {f"{kind} of {part}": moment for part, moment in trained(moments).items()}
    return shown | {f"steps of {part}": torch.tensor(state.steps) for part in TRAINED}


def trained(g: Weights) -> Trace:
    parts = (rows_of(g["V"], g["v"]), rows_of(g["U"], g["u"]), g["scale"], g["shift"])
    return dict(zip(TRAINED, parts, strict=True))


# --------------------------------------------------------------------------------------------------------------- cases


def of(method: FedGen, **settings: Any) -> Case:
    # Before normalisation a bias has no gradient but its decay; where that is small Adam makes rounding visible.
    return Case(method, fedgen, upload, server, settings, training=TRAINING, tolerance=1e-5)


CASES = {
    "fedgen": of(small()),
    "fedgen-count": of(small(ensemble="count", weights="count"), ensemble="count", weighting="count"),
    "fedgen-losses": of(
        small(alpha=2.0, beta=3.0, decay=0.8, generated=4, labels="own", ensemble="losses", diversity=0.3),
        alpha=2.0,
        beta=3.0,
        fading=0.8,
        generated=4,
        labels="own",
        ensemble="losses",
        eta=0.3,
    ),
}
