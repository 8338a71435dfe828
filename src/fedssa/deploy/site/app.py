"""The ClientApp starts in a new process for each message, so heavy imports wait until one is there."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    return _reply(message, context)


@app.train()
def run_round(message: Message, context: Context) -> Message:
    return _reply(message, context)


def _reply(message: Message, context: Context) -> Message:
    from fedssa.deploy.site.respond import respond

    return Message(respond(message.content, context.node_config, message.metadata.run_id), reply_to=message)
