"""Free TCP ports for replicas that run on this machine."""

import random
import socket
from itertools import islice

_PORTS = range(15_000, 30_000)
"""Ports below the ranges of outgoing connections (from 32768 on Linux, 49152 elsewhere) and of node ports of Services.
Ports in those ranges could be taken between their choice and their use."""


def free_ports(count: int) -> list[int]:
    """Return random free ports. Random, so that two jobs rarely choose the same.

    Another process may take a port before its replica does. The caller checks that with `is_taken` and chooses again.

    Raises:
        OSError: There are not enough free ports.
    """
    ports = list(islice((port for port in random.sample(_PORTS, len(_PORTS)) if not is_taken(port)), count))
    if len(ports) < count:
        raise OSError(
            f"{count} replicas need {count} ports, but only {len(ports)} of {_PORTS[0]}-{_PORTS[-1]} are free"
        )
    return ports


def is_taken(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as probe:
        # Otherwise connections of an ended server in TIME_WAIT would block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # On all addresses, because the servers of TensorFlow listen on all of them.
            probe.bind(("", port))
        except OSError:
            return True
    return False
