"""Free TCP ports for the replicas of a job that run on one machine."""

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on.

    Somebody else may take one before its replica does: `is_taken` tells that, and other ports are chosen then.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


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
