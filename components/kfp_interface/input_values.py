"""Lets KFP components and pipelines take values that kfp refuses: whole numbers for floats, and typed dicts."""

from collections.abc import Iterable
from typing import Any

from kfp_distributed.components.kfp_interface.kfp_internals import as_float_channel, float_parameters
from kfp_distributed.components.train.describe.builder import Builder
from kfp_distributed.components.train.describe.pipeline_values import is_of_pipeline


def accept_input_values(component: Any) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
    """Change a component or pipeline so that it also takes ints as floats, and builders as dicts; return it.

    An int becomes a float. An int that is only known in the run, such as a pipeline parameter or an item of a
    `ParallelFor`, is passed as it is: KFP has one type of JSON number for both. An object such as `TensorFlow` or
    `Split` becomes its dict.

    Args:
        component: A component or pipeline of `kfp.dsl`.
    """
    kind, floats = type(component), float_parameters(component)
    step = "" if component.component_spec.implementation.graph else component.name.replace("-", "_")

    def call(self: Any, *args: Any, **arguments: Any) -> Any:  # noqa: ANN401
        return kind.__call__(
            self,
            *args,
            **{
                name: _as_float(value) if name in floats else _as_dict(name, value, step)
                for name, value in arguments.items()
            },
        )

    component.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__doc__": kind.__doc__})
    return component


def _as_dict(name: str, value: Any, step: str) -> Any:  # noqa: ANN401
    """Return a builder as its dict. `step` is "" for a pipeline. Other values stay as they are."""
    if not isinstance(value, Builder):
        return value
    if not _fits(type(value), name, step):
        of = f" of {step}" if step else ""
        of_components = " and ".join(f"`{name}`" for name in value.components)
        raise ValueError(
            f"{name}{of} takes no {type(value).__name__}(…), which is for `{value.parameter}` of {of_components}: "
            f"pass {' or '.join([*_builders(Builder.__subclasses__(), name, step), 'a dict'])}"
        )
    entries = value.to_dict()
    of_pipeline = [key for key, entry in entries.items() if is_of_pipeline(entry)]
    if of_pipeline and not step:
        raise ValueError(
            f"{name} has a value of the pipeline at {', '.join(of_pipeline)}. KFP replaces no value inside a dict that "
            "is passed to a pipeline; pass plain values here, or pass the object to the component "
            f"`{value.components[0]}`"
        )
    return entries


def _builders(kinds: Iterable[type[Builder]], name: str, step: str) -> list[str]:
    """Return the calls that build the value of a parameter. A class with subclasses has what these have in common."""
    return [
        call
        for kind in kinds
        for call in _builders(kind.__subclasses__(), name, step)
        or ([f"{kind.__name__}(…)"] if _fits(kind, name, step) else [])
    ]


def _fits(kind: type[Builder], name: str, step: str) -> bool:
    return kind.parameter == name and step in ("", *kind.components)


def _as_float(value: Any) -> Any:  # noqa: ANN401
    """Return an int as a float, and a channel of ints as a channel of floats. Other values stay as they are."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return as_float_channel(value)
