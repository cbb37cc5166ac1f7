"""The error that ends a replica: its traceback, its exit code, and whether another replica has caused it."""

import re
import sys
import traceback
from types import TracebackType

from kfp_distributed.storage.answers import has_answered
from kfp_distributed.storage.errors import StorageError, StoreAway
from kfp_distributed.trainers.runtime.job_description import STORE_AWAY, STORE_FAILED, STORE_UNREACHED

_CALLER = "kfp_distributed.trainers.runtime", "_run"
"""Package and name of the function that calls the program, in entry.py."""

_PEER_CLASSES = {
    "tensorflow": {"UnavailableError", "AbortedError"},
    "horovod": {"HorovodInternalError"},
    # torch 2.x: https://github.com/pytorch/pytorch/blob/main/torch/csrc/Exceptions.cpp
    "torch": {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"},
}
"""Classes of the exceptions that a framework raises for a lost peer, by package."""

_PEER_MESSAGES: dict[type[BaseException], re.Pattern[str]] = {
    ValueError: re.compile("Horovod initialization failed"),
    RuntimeError: re.compile(".*gloo/transport|Connection reset by peer|Broken pipe|Timed out initializing"),
}
"""Beginning of the message of a built-in exception that Horovod, or torch with Gloo, raises for a lost peer."""

_HOROVOD_OPERATION = re.compile("Horovod(Allreduce|Allgather|Broadcast)")
"""Name of a node in the message of an UnknownError, which TensorFlow raises if another rank has ended."""


def print_error(error: BaseException) -> None:
    """Print an error with its traceback, which begins with the program.

    The frames of this library that have called the program are the same in every training. A line has their number.
    An error that was raised before or after the program keeps them.

    Args:
        error: The error. Its traceback loses these frames.
    """
    left_out, chain = 0, [error]
    for one in chain:
        chain += [other for other in (one.__cause__, one.__context__) if other and other not in chain]
        one.__traceback__, count = _without_callers(one.__traceback__)
        left_out = max(left_out, count)
    if left_out:
        print(
            f"{left_out} frames of kfp_distributed before the program are left out of the traceback:", file=sys.stderr
        )
    traceback.print_exception(error)


def _without_callers(frames: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback without the frames that have called the program, and their number."""
    rest, count = frames, 0
    while rest:
        frame = rest.tb_frame
        rest, count = rest.tb_next, count + 1
        if rest and (frame.f_globals.get("__package__"), frame.f_code.co_name) == _CALLER:
            return rest, count
    return frames, 0


def exit_code(error: StorageError) -> int:
    """Return the exit code of a replica after an error of the object store, and print the error."""
    traceback.print_exception(error)
    if not isinstance(error, StoreAway):
        return STORE_FAILED
    return STORE_AWAY if has_answered(error.endpoint) else STORE_UNREACHED


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an exception means that another process of the job does not answer any more.

    The package of the class counts: a class of the user with one of these names does not mean a lost peer.
    """
    kind = type(error)
    if kind.__name__ in _PEER_CLASSES.get(kind.__module__.partition(".")[0], ()):
        return True
    if kind.__name__ == "UnknownError" and kind.__module__.startswith("tensorflow."):
        return bool(_HOROVOD_OPERATION.search(str(error)))
    message = _PEER_MESSAGES.get(kind)
    return bool(message and message.match(str(error)))
