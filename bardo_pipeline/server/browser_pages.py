"""Pages that a browser reads: the home, its Data Docs and its dbt docs, each after the browser has given a token."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bardo_pipeline.derivation.legacy.data_docs import data_docs
from bardo_pipeline.errors import AccessError, ServerError, TokenError
from bardo_pipeline.server import reading
from bardo_pipeline.server.callers import Caller, Doorkeeper
from bardo_pipeline.server.documents import (
    DATA_SECURITY,
    DBT_SECURITY,
    MEDIA,
    documented_runs,
    file_below,
    runs_page,
    without_remote_files,
)
from bardo_pipeline.server.door import COOKIE
from bardo_pipeline.server.page import SECURITY, live_page, overview_page, sign_in_page
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.warehouse.dbt_docs import docs_page

_SESSION = timedelta(hours=12)
"""Time after which a browser gives its token again."""

_DOCUMENTS = ("/docs/data/", "/docs/dbt/", "/live")
"""Pages, beside the home's, to which a browser returns when it has given a token. Links of Dagster lead to them."""


class BrowserPages:
    """Endpoints of the pages of a warm home."""

    def __init__(self, warm: WarmHome, doorkeeper: Doorkeeper, clock: Callable[[], datetime]) -> None:
        self._warm, self._doorkeeper, self._clock = warm, doorkeeper, clock

    async def home(self, request: Request) -> Response:
        """Show the home to a browser, after it has given a token."""
        if request.method == "POST":
            return await self._sign_in(request)
        caller = self._reader(request)
        if isinstance(caller, Response):
            return caller
        shown = await self._warm.read(caller.owner, lambda context: reading.overview(self._warm, context))
        return HTMLResponse(overview_page(shown), 200, SECURITY)

    async def live(self, request: Request) -> Response:
        """Show the golems of live runs; the browser asks again each second, because the page runs no script."""
        caller = self._reader(request)
        if isinstance(caller, Response):
            return caller
        golems = await self._warm.read(caller.owner, reading.live_golems)
        return HTMLResponse(live_page(golems), 200, {**SECURITY, "refresh": "1"})

    def _reader(self, request: Request) -> Caller | Response:
        """Return the caller of a page by its header or session; without a valid one, the form that asks for a token."""
        caller: Caller | None = request.state.caller
        if caller is not None:
            return caller
        session = request.cookies.get(COOKIE)
        if session is None:
            return HTMLResponse(sign_in_page(page=request.url.path), 401, SECURITY)
        try:
            request.state.caller = caller = self._doorkeeper.caller_of_session(session, self._clock())
        except TokenError as error:
            return HTMLResponse(sign_in_page(str(error), request.url.path), 401, SECURITY)
        return caller

    async def data_docs(self, request: Request) -> Response:
        """Show the Data Docs of all runs. They are about bundles of all owners, so the token must open the home."""
        caller = self._reader(request)
        if isinstance(caller, Response):
            return caller
        if caller.owner is not None:
            raise AccessError(
                "the Data Docs show bundles of all owners: use a token of `bardo keys token --whole-home`"
            )
        folder, path = data_docs(self._warm.home), str(request.path_params["path"])
        if path in ("", "index.html") or path.endswith("/index.html"):
            return HTMLResponse(await self._warm.run(lambda: runs_page(documented_runs(folder))), 200, DATA_SECURITY)
        file = file_below(folder, path)
        content = await self._warm.run(file.read_bytes)
        if file.suffix == ".html":
            content = without_remote_files(content.decode("utf-8", "replace")).encode()
        return Response(content, media_type=MEDIA[file.suffix], headers=DATA_SECURITY)

    async def dbt_docs(self, request: Request) -> Response:
        """Show the dbt docs. They describe the marts, which are the same for all owners."""
        caller = self._reader(request)
        if isinstance(caller, Response):
            return caller
        page = docs_page(self._warm.home)
        if not page.exists():
            raise ServerError(404, "UnknownPathError", "the home has no dbt docs yet", "`bardo derive` writes them")
        return HTMLResponse(await self._warm.run(page.read_bytes), 200, DBT_SECURITY)

    async def _sign_in(self, request: Request) -> Response:
        given = dict(parse_qsl((await request.body()).decode("latin-1")))
        token, page = given.get("token", ""), given.get("page", "")
        try:
            session = self._doorkeeper.session(token, self._clock() + _SESSION)
        except TokenError as error:
            return HTMLResponse(sign_in_page(str(error), page), 401, SECURITY)
        response = RedirectResponse(page if page in _DOCUMENTS else "/", 303, SECURITY)
        seconds = int(_SESSION.total_seconds())
        response.set_cookie(COOKIE, session, max_age=seconds, httponly=True, samesite="strict", path="/")
        return response
