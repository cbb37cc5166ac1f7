"""Lets a KFP component take whole numbers for parameters of the type float, which kfp refuses."""

from typing import Any

from kfp.dsl.pipeline_channel import PipelineParameterChannel
from kfp.dsl.types import type_utils

_FLOAT, _INT = "Float", "Integer"
_NAMES = {name: type_utils.get_parameter_type_name(name) for name in (_FLOAT, _INT)}


def accept_whole_numbers(component: Any) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Change a component or pipeline so that its float parameters also take ints; return it.

    An int becomes a float. An int that is only known in the run, such as a pipeline parameter or an item of a
    `ParallelFor`, is passed as it is: KFP has one type of JSON number for both.

    Args:
        component: A component or pipeline of `kfp.dsl`.
    """
    kind = type(component)
    inputs = component.component_spec.inputs or {}
    floats = {name for name, spec in inputs.items() if _parameter_type(spec.type) == _NAMES[_FLOAT]}

    def call(self: Any, *args: Any, **arguments: Any) -> Any:  # noqa: ANN401
        return kind.__call__(
            self, *args, **{name: _as_float(value) if name in floats else value for name, value in arguments.items()}
        )

    component.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__doc__": kind.__doc__})
    return component


def _as_float(value: Any) -> Any:  # noqa: ANN401
    """Return an int as a float, and a channel of ints as a channel of floats. Other values stay as they are."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, PipelineParameterChannel) and _parameter_type(value.channel_type) == _NAMES[_INT]:
        # kfp finds the value by the name and the task. The type is only compared with the type of the parameter.
        # copy.copy() fails for an item of a ParallelFor, whose every attribute is a key of the item.
        channel = object.__new__(type(value))
        vars(channel).update(vars(value), channel_type=_FLOAT)
        return channel
    return value


def _parameter_type(name: object) -> str | None:
    """Return kfp's name of a parameter's type; None for the type of an artifact."""
    return type_utils.get_parameter_type_name(name) if type_utils.is_parameter_type(name) else None
