"""A registered site that speaks to the SuperLink as it likes, with its own key: nothing in Flower stands in its way."""

import inspect
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedssa.deploy.messages import RECORD, Request, to_records
from fedssa.deploy.signing import ECDSA, order_digest, with_signature

MEGABYTE = 1_000_000


class Hostile:
    """It acts from within its ClientApp, on the message that it was just asked. `hostile.json` says what a test knows
    of the others: the SuperLink's address, the victim's node and client."""

    SERVER = 1  # the node that is the SuperLink

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "hostile.json").read_text())
        self.victim, self._victims_id = int(said["node"]), int(said["client"])
        self.asked = asked_now()
        key = load_ssh_private_key((folder / "key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key, self._node = key, Node(node_id=self.asked.metadata.dst_node_id)
        root = (folder / "ca.pem").read_bytes()
        auth = NodeAuthHttpInterceptor(key, key.public_key())
        self._client = FleetHttpClient.from_server_address(said["superlink"], False, root, interceptors=[auth])

    def orders(self, node: int) -> None:
        """It tells another node to train a later round, in the SuperLink's name and with its own signature."""
        agreement = json.loads(str(self.asked.content[RECORD]["message"]))["fields"]["agreement"]
        order = to_records(Request("f" * 32, agreement, self._victims_id, t=5))
        signature = self._key.sign(order_digest(order, self.asked.metadata.run_id), ECDSA)
        message = Message(with_signature(order, signature), node, "train", ttl=600)
        message.metadata.__dict__["_src_node_id"] = self.SERVER
        self._push(message, send=node == self.victim)

    def answers(self, num_objects: int, *, send: bool) -> None:
        """It announces an answer of so many objects of a megabyte, and sends them or not."""
        records = {str(i): ConfigRecord({"x": bytes([i]) * MEGABYTE}) for i in range(num_objects)}
        self._push(Message(RecordDict(dict(records)), reply_to=self.asked), send=send)

    def _push(self, message: Message, *, send: bool) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        told = self._client.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
            )
        )
        assert told.objects_to_push, "Flower has become stricter: this is no attack any more"
        for name, part in get_all_nested_objects(message).items() if send else ():
            content, run = part.deflate(), self.asked.metadata.run_id
            request = PushObjectRequest(
                node=self._node, run_id=run, object_id=name, object_content=content, session_id=told.session_id
            )
            self._client.PushObject(request)


def asked_now() -> Message:
    """The message that this process was started for, found where our ClientApp has it."""
    frame = inspect.currentframe()
    while frame and not isinstance(frame.f_locals.get("message"), Message):
        frame = frame.f_back
    assert frame
    message: Message = frame.f_locals["message"]
    return message
