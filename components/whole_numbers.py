"""Lets a KFP component take whole numbers for parameters of the type float, which kfp refuses."""

from typing import Any

from kfp_distributed.components.kfp_internals import as_float_channel, float_parameters


def accept_whole_numbers(component: Any) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Change a component or pipeline so that its float parameters also take ints; return it.

    An int becomes a float. An int that is only known in the run, such as a pipeline parameter or an item of a
    `ParallelFor`, is passed as it is: KFP has one type of JSON number for both.

    Args:
        component: A component or pipeline of `kfp.dsl`.
    """
    kind, floats = type(component), float_parameters(component)

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
    return as_float_channel(value)
