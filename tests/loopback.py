"""Requests to servers on this machine, a connection each.

`httpx.get` reads all root certificates for every request: ten times the work of these.
"""

from __future__ import annotations

from functools import partial

import httpx

get = partial(httpx.get, verify=False, trust_env=False)
post = partial(httpx.post, verify=False, trust_env=False)
stream = partial(httpx.stream, verify=False, trust_env=False)
