"""ProtocolDoor: the Model Context Protocol at /mcp, imported when the server answers already.

The import of the protocol's SDK takes 0.7 s, which would delay the first answer.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.record.repeated_keys import check_keys
from bardo_pipeline.server.door import refusal, replayed
from bardo_pipeline.server.recorder import Recorder
from bardo_pipeline.server.tool_calls import ToolRunner

_FIRST_ANSWERS_SECONDS = 0.3  # leaves the GIL to the requests that waited for the home


class ProtocolDoor:
    """ASGI application of the protocol. A request that comes before the import waits for it.

    Parameters
    ----------
    body_bytes_max : longest body
    """

    def __init__(self, runner: ToolRunner, recorder: Recorder, version: str, body_bytes_max: int) -> None:
        self._runner, self._recorder = runner, recorder
        self._version, self._bytes_max = version, body_bytes_max
        self._app: asyncio.Future[Callable[[Scope, Receive, Send], Awaitable[None]]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a message of the protocol, or refuse it for a repeated key."""
        assert self._app is not None, "the application is served while `running` is entered"
        app = await asyncio.shield(self._app)
        body = (await receive()).get("body", b"")  # whole, because the door has read it
        try:
            check_keys(body)
        except RecordError as error:
            app = refusal(error)
        except (ValueError, RecursionError):
            pass  # the SDK refuses what is no JSON
        await app(scope, replayed(body, receive), send)

    @asynccontextmanager
    async def running(self, after: Awaitable[object]) -> AsyncIterator[None]:
        """Serve the protocol in the block.

        Parameters
        ----------
        after : the import begins when this has ended
        """
        self._app = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.create_task(self._serve(after, stop))
        try:
            yield
        finally:
            stop.set()
            if not self._app.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gc.unfreeze()  # let the collector free these objects at the end

    async def _serve(self, after: Awaitable[object], stop: asyncio.Event) -> None:
        assert self._app is not None
        try:
            await asyncio.gather(after, return_exceptions=True)
            await asyncio.sleep(_FIRST_ANSWERS_SECONDS)
            manager = await asyncio.to_thread(self._manager)
            gc.collect()
            gc.freeze()  # a pass of the collector over these lasting objects would halt all requests
            async with manager.run():
                self._app.set_result(manager.asgi_app)
                await stop.wait()
        except BaseException as error:
            if not self._app.done():
                self._app.set_exception(error)
            raise

    def _manager(self):  # type: ignore[no-untyped-def]  # its type would import the SDK
        from bardo_pipeline.server.mcp_server import caller_of_request, http_manager, mcp_server

        server = mcp_server(self._runner, self._recorder, caller_of_request, self._version)
        return http_manager(server, self._bytes_max)
