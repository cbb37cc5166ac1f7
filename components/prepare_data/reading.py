"""Errors of damaged files."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reading(name: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the errors that libraries raise for a damaged file into a ValueError that names the file.

    Args:
        name: Name of the file.
        errors: More errors than OSError, ValueError, KeyError and NotImplementedError.

    Raises:
        ValueError: One of the errors occurred.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, NotImplementedError, *errors) as error:  # type: ignore[misc]
        raise ValueError(f"{name} cannot be read: {error}") from error
