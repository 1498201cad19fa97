"""Loads the package of faults by name, with --enable-faults.

The reference engine does not depend on this package. A server without the package refuses a request that
names a fault, because its answer would lack the fault.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import Scope

from tokenwire_reference.doors.errors import RefusalError
from tokenwire_reference.doors.heads import RefuseHeads
from tokenwire_reference.server_args import ServerArgs

PACKAGE = "tokenwire_faults"
HEADER = "x-tokenwire-fault"
"""The header that names a request's fault."""


def fault_package() -> Any:
    """Return the package. Raises ValueError if it is not installed."""
    try:
        return import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != PACKAGE:
            raise
        raise ValueError(
            f"faults need the package {PACKAGE}, which is not installed; install it, or start the server "
            "without --enable-faults"
        ) from error


def fault_middleware(args: ServerArgs) -> Middleware:
    """Return the middleware before the routes.

    It applies faults if they are enabled; otherwise it refuses requests that name a fault. Raises ValueError
    if faults are enabled but not installed.
    """
    if args.enable_faults:
        return Middleware(fault_package().FaultyWire)
    return Middleware(RefuseHeads, args=args, why=_names_a_fault)


def fault_names(*, enabled: bool) -> list[str]:
    """Return the faults that a request may name."""
    return list(fault_package().load_faults()) if enabled else []


def _names_a_fault(scope: Scope, _: ServerArgs) -> RefusalError | None:
    if HEADER not in Headers(scope=scope):
        return None
    return RefusalError(f"{HEADER} is set, and faults are off; start the server with --enable-faults")
