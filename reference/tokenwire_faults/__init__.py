"""Faults: real bugs of real servers, applied only to requests that name them.

They need a server with `--enable-faults`. A request names a fault in the header `x-tokenwire-fault`; every
other request is served as usual. A *room* is the part of the server in which a bug was. Each room has a
module with its faults. `fault` defines the seams at which faults change values, `catalogue` has the facts
about each fault, and `faulty_wire` applies faults to HTTP messages.
"""

from tokenwire_faults.catalogue import faults_as_json, load_faults, print_faults
from tokenwire_faults.faulty_wire import FaultyWire

__all__ = ["FaultyWire", "faults_as_json", "load_faults", "print_faults"]
