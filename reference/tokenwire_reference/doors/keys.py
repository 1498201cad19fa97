"""API keys of a server: which paths need no key, and which paths need the admin key."""

from __future__ import annotations

from ipaddress import ip_address
from secrets import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from tokenwire_reference.doors.errors import UNAUTHORIZED, RefusalError
from tokenwire_reference.doors.served import served_by
from tokenwire_reference.server_args import ServerArgs

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ping", "/ready", "/metrics"})
"""The paths that need no key, for supervisors and Prometheus.

SGLang and vLLM do not require a key on these paths either.
"""


def without_key(scope: Scope, args: ServerArgs) -> RefusalError | None:
    """Return the refusal of a request without a key; None if it is permitted.

    With `--api-key`, that key or the admin key permits everything except control calls, which
    `refuse_control` checks.
    """
    headers = Headers(scope=scope)
    if args.api_key is None or scope["path"] in OPEN_PATHS:
        return None
    sent = _sent(headers, args.api_key) or _sent(headers, args.admin_api_key)
    return None if sent else _unauthorized("API key")


def refuse_control(http_request: HttpRequest) -> None:
    """Check that a client may control the server. Raises RefusalError if not.

    With `--admin-api-key`, only that key permits control calls. A web page of another origin is never
    permitted, because browsers let any page post an empty body to any address.
    """
    args, headers = served_by(http_request).args, http_request.headers
    origin = headers.get("origin")
    if origin is not None and not _of_this_server(origin, headers.get("host", ""), args):
        raise RefusalError(
            f"the web page {origin!r:.100} may not control this server", type=UNAUTHORIZED, status=403
        )
    if args.admin_api_key is None or _sent(headers, args.admin_api_key):
        return
    if args.api_key is not None:  # a request without the key was refused earlier
        raise RefusalError(
            "this call needs the key of --admin-api-key, but the key of --api-key was sent",
            type=UNAUTHORIZED,
            status=403,
        )
    raise _unauthorized("admin API key")


def _of_this_server(origin: str, host: str, args: ServerArgs) -> bool:
    """True if a web page came from this server.

    Without a key, a host name proves nothing, because DNS rebinding can point any name at this server's
    address. An IP address, `localhost` and the name in `--host` cannot be redirected in this way.
    """
    try:
        page = urlsplit(origin)
        name = page.hostname or ""
    except ValueError:
        return False
    if page.netloc != host:
        return False
    return bool(args.api_key or args.admin_api_key) or name in {"localhost", args.host} or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _sent(headers: Headers, key: str | None) -> bool:
    """True if a request has a key. The time of the comparison does not depend on the key."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return key is not None and scheme.lower() == "bearer" and compare_digest(given.encode(), key.encode())


def _unauthorized(kind: str) -> RefusalError:
    return RefusalError(
        f"the {kind} of this server was not sent; send it as the header 'Authorization: Bearer KEY'",
        type=UNAUTHORIZED,
        status=401,
    )
