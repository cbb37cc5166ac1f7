"""The form of a Kubernetes object."""

from typing import Any

Object = dict[str, Any]
"""An object of the Kubernetes API or a part of one, as JSON."""
