"""Turns the errors of a model's library into errors of one line (pure)."""

from collections.abc import Iterator
from contextlib import contextmanager

from kfp_distributed.storage.errors import one_line

# TensorFlow's errors may contain a complete graph. Their first two or three lines name the cause.
_REASON_LENGTH = 300
LOAD_ADVICE = "save it with the library versions of this step, without custom classes and operations"
RUN_ADVICE = "save it with a signature that takes the rows in the form of the dataset"


class ModelFailed(ValueError):
    """The library of a model has failed. The message has what to do about the model.

    Attributes:
        reason: The error of the library, without advice.
    """

    def __init__(self, action: str, advice: str, reason: str) -> None:
        """Create the error from what failed, what to do, and the error of the library."""
        super().__init__(f"{action}: {advice} ({reason})")
        self.reason = reason


@contextmanager
def model_errors(action: str, advice: str) -> Iterator[None]:
    """Turn every exception of a model's library into a `ModelFailed` of one line.

    Args:
        action: What failed, the beginning of the message.
        advice: What to do.
    """
    try:
        yield
    except Exception as error:
        reason = one_line(error)[:_REASON_LENGTH]
        raise ModelFailed(action, advice, f"{type(error).__name__}: {reason}") from error
