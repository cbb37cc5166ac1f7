"""Free TCP ports for the replicas of a job that run on one machine."""

import random
import socket
from itertools import islice

_PORTS = range(15_000, 30_000)
"""Below those that systems give to outgoing connections (32768 on Linux, 49152 elsewhere) and to Services: one of these
could take a port between its choice and its use."""


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on, at random, so that two jobs seldom choose the same.

    Somebody else may take one before its replica does: `is_taken` tells that, and other ports are chosen then.

    Raises:
        OSError: There are not so many.
    """
    found = list(islice((port for port in random.sample(_PORTS, len(_PORTS)) if not is_taken(port)), count))
    if len(found) < count:
        raise OSError(f"{count} replicas need a port each, and of {_PORTS[0]} to {_PORTS[-1]} {len(found)} are free")
    return found


def is_taken(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        # Connections of a server that is gone keep its port in TIME_WAIT; that hinders nobody who sets this option.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # On all addresses, for TensorFlow's servers listen on all.
            probe.bind(("", port))
        except OSError:
            return True
    return False
