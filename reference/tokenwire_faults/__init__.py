"""Faults: real bugs of real servers, applied only to requests that name them.

They need a server with `--enable-faults`. A request names a fault in the header `x-tokenwire-fault`; every
other request is served as usual. `fault` has the seams of the rooms, `catalogue` the facts about each fault,
`faulty_wire` the seams around the HTTP side. The faults themselves are in the modules with the name of the
room where the bug was.
"""

from tokenwire_faults.catalogue import faults_as_json, load_faults, print_faults
from tokenwire_faults.faulty_wire import FaultyWire

__all__ = ["FaultyWire", "faults_as_json", "load_faults", "print_faults"]
