"""Tells the loss of another replica from a failure of the program itself."""

import re

_CLASSES = {
    "tensorflow": {"UnavailableError", "AbortedError"},
    "horovod": {"HorovodInternalError"},
    # Of torch 2.x: https://github.com/pytorch/pytorch/blob/main/torch/csrc/Exceptions.cpp
    "torch": {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"},
}
"""Exceptions that a framework raises for a lost peer: package, and names of its classes."""

_MESSAGES: dict[type[BaseException], re.Pattern[str]] = {
    ValueError: re.compile("Horovod initialization failed"),
    RuntimeError: re.compile(".*gloo/transport|Connection reset by peer|Broken pipe|Timed out initializing"),
}
"""How the message of a built-in exception begins that Horovod, or torch over Gloo, raises for a lost peer."""


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an exception says that another process of the job does not answer any more.

    The class's package decides: a class of the user's own is no lost peer, whatever its name.
    """
    kind = type(error)
    if kind.__name__ in _CLASSES.get(kind.__module__.partition(".")[0], ()):
        return True
    message = _MESSAGES.get(kind)
    return bool(message and message.match(str(error)))
