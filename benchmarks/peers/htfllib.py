"""A round of LG-FedAvg as HtFLlib runs it (github.com/TsingZ0/HtFLlib).

Samples lie as floats in a file of each client, are read anew for every epoch of work and every test, and go one by one
through a DataLoader. Models live in files: one is read to train and written after it, once more by the server for its
header, and once more by every client to take the mean. Before the round all clients are tested, with the area under the
curve besides accuracy. Its files are pickles; here they hold the same tensors without.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.eager import plain_cnn
from benchmarks.peers.work import Part, Peer, Work

Batches = DataLoader[tuple[Tensor, Tensor]]


class HtFLlib:
    def __init__(self, work: Work, folder: Path) -> None:
        self._work, self._folder = work, folder
        for k, peer in enumerate(work.clients):
            for name, part in (("train", peer.train), ("test", peer.test)):
                np.savez_compressed(folder / f"{name}-{k}.npz", x=as_floats(part), y=part.labels)
            self._save(k, plain_cnn(*peer.cnn))

    def round(self) -> list[tuple[float, float]]:
        scores = [self._test(k, peer) for k, peer in enumerate(self._work.clients)]
        for k, peer in enumerate(self._work.clients):
            self._train(k, peer)
        mean = self._mean_header()
        for k, peer in enumerate(self._work.clients):
            net = self._load(k, peer)
            for own, other in zip(net[-1].parameters(), mean, strict=True):
                own.data = other.clone()
            self._save(k, net)
        return scores

    def _train(self, k: int, peer: Peer) -> None:
        batches, net = self._batches("train", k), self._load(k, peer)
        optimizer = torch.optim.SGD(net.parameters(), lr=self._work.lr, momentum=self._work.momentum)
        criterion = nn.CrossEntropyLoss()
        net.train()
        for x, y in batches:
            loss = criterion(net(x.to("cpu")), y.to("cpu"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self._save(k, net)

    @torch.no_grad()
    def _test(self, k: int, peer: Peer) -> tuple[float, float]:
        batches, net = self._batches("test", k), self._load(k, peer)
        hits, outputs, truths = 0, list[np.ndarray](), list[np.ndarray]()
        net.eval()
        for x, y in batches:
            logits = net(x.to("cpu"))
            hits += int((logits.argmax(dim=1) == y.to("cpu")).sum().item())
            outputs.append(logits.numpy())
            truths.append(np.eye(logits.shape[1])[y.numpy()])
        return hits / len(peer.test.labels), area_under_curve(np.concatenate(truths), np.concatenate(outputs))

    def _mean_header(self) -> list[Tensor]:
        sizes = [len(peer.train.labels) for peer in self._work.clients]
        mean = [torch.zeros(10, 500), torch.zeros(10)]
        for k, peer in enumerate(self._work.clients):
            for total, own in zip(mean, self._load(k, peer)[-1].parameters(), strict=True):
                total += own.data * (sizes[k] / sum(sizes))
        return mean

    def _batches(self, name: str, k: int) -> Batches:
        with np.load(self._folder / f"{name}-{k}.npz") as file:
            x, y = torch.tensor(file["x"]), torch.tensor(file["y"])
        return DataLoader(list(zip(x, y, strict=True)), batch_size=self._work.batch_size)  # type: ignore[arg-type]

    def _load(self, k: int, peer: Peer) -> nn.Sequential:
        net = plain_cnn(*peer.cnn)
        net.load_state_dict(load_file(self._folder / f"client-{k}.safetensors"))
        return net

    def _save(self, k: int, net: nn.Sequential) -> None:
        save_file(net.state_dict(), self._folder / f"client-{k}.safetensors")


def as_floats(part: Part) -> np.ndarray:
    return (part.pixels.transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)


def area_under_curve(truths: np.ndarray, outputs: np.ndarray) -> float:
    """Over all classes together, the share of pairs in which what is true has the larger output."""
    ranks = np.empty(outputs.size)
    ranks[np.argsort(outputs, axis=None)] = np.arange(1, outputs.size + 1)
    true = truths.ravel() > 0
    num, others = true.sum(), (~true).sum()
    return float((ranks[true].sum() - num * (num + 1) / 2) / (num * others))
