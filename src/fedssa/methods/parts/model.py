"""The model that all clients know is a message here, and a part of a client."""

from typing import Annotated, TypeVar

from torch import Tensor, nn
from torch.func import functional_call

from fedssa.core.client import Client
from fedssa.core.fields import like
from fedssa.core.message import message
from fedssa.core.samples import Inputs
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Tensors, copy_in, module_state, own

M = TypeVar("M", bound=nn.Module)


@message
class Weights:
    """Holds all parameters and buffers of the shared model; `w` is short because every tensor's name carries it."""

    w: Annotated[dict[str, Tensor], like("shared")]


@message
class Received:
    """A client keeps these weights, which it was sent last."""

    weights: dict[str, Tensor]

    def replace(self, weights: Tensors) -> None:
        copy_in(weights, self.weights)


def weights_of(module: nn.Module) -> Weights:
    """Returns the tensors themselves; they are copied when they are sent."""
    return Weights(module_state(module))


def received_from(module: nn.Module) -> Received:
    return Received({name: own(tensor) for name, tensor in module_state(module).items()})


def take_over(client: Client, weights: Tensors) -> None:
    """Replaces the client's model, and keeps what was received beside what it will become."""
    copy_in(weights, module_state(client.net))
    client[Received].replace(weights)


def predict_by_head_and_received(client: Client, x: Inputs) -> dict[str, Tensor]:
    """Predicts with the client's model after local training, and with the model as it was received."""
    return {"head": client.net(x), "received": functional_call(client.net, client[Received].weights, (x,))}


def loaded(module: M, weights: Tensors) -> M:
    """Copies weights into a module that was just built, and returns it in eval mode."""
    copy_in(weights, module_state(module))
    return module.eval()


class SharedModel(nn.Module):
    """Holds a client's copy of the shared model."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model
