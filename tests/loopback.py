"""Requests to servers on this machine, a connection each.

`httpx.get` reads all root certificates for every request: ten times the work of these. They wait long: the
limit is for a server that hangs, not for a machine that has much to do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx

_PLAIN: dict[str, Any] = {"verify": False, "trust_env": False, "timeout": 120}

get = partial(httpx.get, **_PLAIN)
post = partial(httpx.post, **_PLAIN)
stream = partial(httpx.stream, **_PLAIN)
