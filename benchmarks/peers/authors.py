"""A round as the authors' published loop runs it (github.com/LipingYi/FedSSA).

A DataLoader turns one sample after another into a normalised tensor, and mirrors, erases and crops those to train on.
One net of each architecture is filled with the state of the client whose turn it is; gradients are clipped; the state
is copied; test accuracy and loss come through another DataLoader. Rows are averaged class by class over all clients.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from benchmarks.eager import plain_cnn
from benchmarks.peers.work import Part, Peer, Work

MEAN, STD = (torch.tensor(three).reshape(3, 1, 1) for three in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
MAX_NORM = 50.0
Batches = DataLoader[tuple[Tensor, int]]


class Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, part: Part, *, augment: bool) -> None:
        self._part, self._augment = part, augment

    def __len__(self) -> int:
        return len(self._part.labels)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.from_numpy(self._part.pixels[index]).permute(2, 0, 1).contiguous().float().div(255)
        x = x.sub(MEAN).div(STD)
        return _cropped(_erased(_flipped(x))) if self._augment else x, int(self._part.labels[index])


def _flipped(x: Tensor) -> Tensor:
    return x.flip(-1) if torch.rand(1) < 0.5 else x


def _erased(x: Tensor) -> Tensor:
    """Half of the images lose a rectangle of 4 to 20 % of their area."""
    if torch.rand(1) >= 0.5:
        return x
    _, height, width = x.shape
    area = height * width * float(torch.empty(1).uniform_(0.04, 0.2))
    ratio = math.exp(float(torch.empty(1).uniform_(math.log(0.5), math.log(2.0))))
    rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    top, left = (int(torch.randint(0, size, (1,))) for size in (height - rows + 1, width - columns + 1))
    x = x.clone()
    x[:, top : top + rows, left : left + columns] = 0
    return x


def _cropped(x: Tensor) -> Tensor:
    padded = nn.functional.pad(x, (4, 4, 4, 4))
    top, left = (int(torch.randint(0, 9, (1,))) for _ in range(2))
    return padded[:, top : top + x.shape[1], left : left + x.shape[2]]


class Authors:
    def __init__(self, work: Work, *, augment: bool) -> None:
        self._work, self._t = work, 0
        self._nets = {peer.cnn: plain_cnn(*peer.cnn) for peer in work.clients}
        self._states = [copy.deepcopy(self._nets[peer.cnn].state_dict()) for peer in work.clients]
        self._seen = [sorted({int(label) for label in peer.train.labels}) for peer in work.clients]
        self._train = [self._batches(peer.train, augment=augment, shuffle=True) for peer in work.clients]
        self._test = [self._batches(peer.test, augment=False, shuffle=False) for peer in work.clients]
        self._header = list(self._states[0])[-2:]  # weight and bias
        self._rows = {key: {s: self._states[0][key][s].clone() for s in range(10)} for key in self._header}
        self._own: list[dict[str, dict[int, Tensor]]] = [{} for _ in work.clients]

    def _batches(self, part: Part, *, augment: bool, shuffle: bool) -> Batches:
        return DataLoader(Pictures(part, augment=augment), batch_size=self._work.batch_size, shuffle=shuffle)

    def round(self) -> list[float]:
        accuracies = [self._turn(k, peer) for k, peer in enumerate(self._work.clients)]
        self._aggregate()
        self._t += 1
        return accuracies

    def _turn(self, k: int, peer: Peer) -> float:
        net, state = self._nets[peer.cnn], self._states[k]
        mu = self._work.mus[min(self._t, len(self._work.mus) - 1)]
        for key in self._header:
            for s in self._seen[k]:
                state[key][s] = state[key][s] * mu + self._rows[key][s]
        net.load_state_dict(state)
        train(net, self._train[k], self._work)
        self._states[k] = state = copy.deepcopy(net.state_dict())
        self._own[k] = {key: {s: state[key][s] for s in self._seen[k]} for key in self._header}
        return accuracy(net, self._test[k])

    def _aggregate(self) -> None:
        for key, rows in self._rows.items():
            for s in rows:
                held = [own[key][s] for own in self._own if s in own[key]]
                if held:
                    total = torch.zeros_like(rows[s])
                    for row in held:
                        total += row
                    rows[s] = total / len(held)


def train(net: nn.Module, batches: Batches, work: Work) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    criterion = nn.CrossEntropyLoss()
    net.train()
    for batch in batches:
        optimizer.zero_grad()
        x, y = (part.to("cpu") for part in batch)
        y.unique().numpy()
        criterion(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, batches: Batches) -> float:
    criterion, shares, loss = nn.CrossEntropyLoss(), list[float](), torch.zeros(())
    net.eval()
    for batch in batches:
        x, y = (part.to("cpu") for part in batch)
        logits = net(x)
        loss += criterion(logits, y)
        shares.append(logits.argmax(1).eq(y).sum().item() / len(y))
    return sum(shares) / len(shares)
