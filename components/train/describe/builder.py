"""What the typed builders of dicts have in common. Pure."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Builder(ABC):
    """A typed builder of a dict that is a parameter of a component.

    Attributes:
        components: Names of the components that take the object, also with values that are known in the run.
        parameter: Name of the parameter that takes it, of the components and of pipelines.
    """

    components: ClassVar[tuple[str, ...]]
    parameter: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the dict: the keys that are set."""
