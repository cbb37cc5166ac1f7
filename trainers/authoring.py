"""Makes a train_specification. Authors of pipelines call it; steps and replicas do not."""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kfp_distributed.trainers.program import parse_program
from kfp_distributed.trainers.requirements import checked_image
from kfp_distributed.trainers.signature import find_function


def train_specification(
    what: str | Callable[..., object] | Sequence[str], *, image: str = "", packages: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the train_specification of a trainer, a Python function or a command.

    Args:
        what: Program to run. A string is the name of a trainer, such as "keras_classifier". A function is sent to the
            job as source code: it must import all that it needs inside its body. It receives those of train_dir,
            validation_dir, model_dir, checkpoint_dir, metrics_dir and tensorboard_dir that are among its parameters.
            A list of words is a command, in which {train_dir} and the names of the other folders are replaced.
        image: Container image of the replicas. Default: the image for the trainer and the type of job.
        packages: Requirements that pip installs before the program starts. Default: none.

    Returns:
        The specification, as a dict that JSON can hold.

    Raises:
        ValueError: The trainer is unknown, the function cannot be sent to the job, `image` is not the name of an
            image, or `packages` is not a list of strings.
    """
    specification: dict[str, Any]
    if isinstance(what, str):
        specification = {"trainer": what}
    elif callable(what):
        source = _source_of(what)
        _check_self_contained(source, what.__name__)
        specification = {"function": what.__name__, "source": source}
    elif isinstance(what, Sequence):
        specification = {"command": list(what)}
    else:
        raise ValueError(  # noqa: TRY004 - like all errors in a specification
            f"{what!r} is not the name of a trainer, a function or a command. Pass a dict to the step `train` directly"
        )
    if image:
        specification["image"] = image
    if isinstance(packages, str):
        packages = [packages]
    elif isinstance(packages, Iterable) and not isinstance(packages, Mapping):
        packages = list(packages)
    if packages:
        specification["packages"] = packages
    parse_program(specification)
    if image:
        checked_image("train_specification: image", image)
    return specification


def _source_of(function: Callable[..., object]) -> str:
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function):
        raise ValueError(f"{name} is not a plain Python function (def …), so its source cannot be sent to the job")
    outer = function.__qualname__.rpartition(".")[0]
    if name == "<lambda>":
        raise ValueError("a lambda has no name and no body that could be sent to the job; write a function (def …)")
    if outer and not outer.endswith("<locals>"):
        raise ValueError(f"{name} is a method of {outer}; write a function outside of any class")
    if hasattr(function, "__wrapped__"):
        raise ValueError(f"{name} is decorated, and a decorator is not sent to the job; pass the undecorated function")
    if function.__code__.co_freevars:
        raise ValueError(
            f"{name} is a closure: it uses {', '.join(function.__code__.co_freevars)} of the enclosing function, "
            "which is not sent to the job; make it a parameter"
        )
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{name}() is asynchronous (async def); the job calls an ordinary function")
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ValueError(f"the source of {name} is not available; write the function into a file") from None


def _check_self_contained(source: str, name: str) -> None:
    """Check that a function can run where only its source exists.

    Raises:
        ValueError: It cannot.
    """
    function = find_function(source, name)
    if function.decorator_list:
        decorators = ", ".join("@" + ast.unparse(decorator) for decorator in function.decorator_list)
        raise ValueError(f"{name}() is decorated with {decorators}, which is not sent to the job; remove the decorator")
    if function.args.posonlyargs:
        raise ValueError(f"{name}() has positional-only parameters. Arguments are passed by name: remove the '/'")
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        raise ValueError(f"{name}() is a generator, so a call would not run its body; remove the yield")
    module = symtable.symtable("from __future__ import annotations\n" + source, name, "exec")
    table = next(child for child in module.get_children() if child.get_name() == name)
    known = {*dir(builtins), name, "__file__", "__name__"}
    scopes = list(_scopes(table))
    known |= {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if _is_made_global(symbol)}
    used = {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if symbol.is_global()}
    if used - known:
        raise ValueError(
            f"{name}() uses {', '.join(sorted(used - known))} of its module, which is not sent to the job: import it "
            "inside the function's body, or make it a parameter"
        )


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, except those of nested functions."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)):
            yield child
            yield from _own_nodes(child)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """Yield the scopes whose names are looked up when the function runs. Annotations are not looked up."""
    yield table
    for child in table.get_children():
        if child.get_type() in ("function", "class"):
            yield from _scopes(child)


def _is_made_global(symbol: symtable.Symbol) -> bool:
    return symbol.is_declared_global() and (symbol.is_assigned() or symbol.is_imported())
