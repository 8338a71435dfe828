"""A SuperLink with this folder on its PYTHONPATH dies when a file tells it to: after it has done what a request asks,
and before it says so. That is the worst moment: whoever asked will ask again."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

ORDER = Path(os.environ["DIE"])  # the path of a request, and the least size of its answer
Message = MutableMapping[str, Any]


class Dying:
    """Around the application: all it says passes here."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        held = list[Message]()

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start" and ORDER.exists():
                held.append(message)
                return
            if held and ORDER.exists():
                path, size = ORDER.read_text().split()
                if scope["path"] == path and len(message.get("body", b"")) >= int(size):
                    ORDER.unlink()
                    os._exit(137)
            for part in [*held, message]:
                await send(part)
            held.clear()

        await self.app(scope, receive, say)


run = uvicorn.run


def run_dying(app: Any, **options: Any) -> None:
    run(Dying(app), **options)


uvicorn.run = run_dying
