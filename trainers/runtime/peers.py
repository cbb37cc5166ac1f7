"""Distinguishes the loss of another replica from a failure of the program."""

import re

_CLASSES = {
    "tensorflow": {"UnavailableError", "AbortedError"},
    "horovod": {"HorovodInternalError"},
    # torch 2.x: https://github.com/pytorch/pytorch/blob/main/torch/csrc/Exceptions.cpp
    "torch": {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"},
}
"""Classes of the exceptions that a framework raises for a lost peer, by package."""

_MESSAGES: dict[type[BaseException], re.Pattern[str]] = {
    ValueError: re.compile("Horovod initialization failed"),
    RuntimeError: re.compile(".*gloo/transport|Connection reset by peer|Broken pipe|Timed out initializing"),
}
"""Beginning of the message of a built-in exception that Horovod, or torch with Gloo, raises for a lost peer."""

_HOROVOD_OPERATION = re.compile("Horovod(Allreduce|Allgather|Broadcast)")
"""Name of a node in the message of an UnknownError, which TensorFlow raises if another rank has ended."""


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an exception means that another process of the job does not answer any more.

    The package of the class counts: a class of the user with one of these names does not mean a lost peer.
    """
    kind = type(error)
    if kind.__name__ in _CLASSES.get(kind.__module__.partition(".")[0], ()):
        return True
    if kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow."):
        return bool(_HOROVOD_OPERATION.search(str(error)))
    message = _MESSAGES.get(kind)
    return bool(message and message.match(str(error)))
