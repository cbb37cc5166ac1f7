"""What the author of a pipeline calls: it makes a train_specification, and stays at home when the steps run."""

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
        what: A trainer's name ("keras_classifier"); or a function, whose source travels: it imports what it
            needs inside its body and takes by name those of train_dir, validation_dir, model_dir,
            checkpoint_dir, metrics_dir and tensorboard_dir that it wants; or a command as a list of words, in which
            {train_dir} and the like are replaced.
        image: Container image to run in, where the default does not do.
        packages: pip requirements to install before the program starts.

    Returns:
        A plain JSON dict.

    Raises:
        ValueError: The trainer is unknown, the function cannot travel, `image` is no image's name, or `packages` is no
            list of texts; the message says why.
    """
    specification: dict[str, Any]
    if isinstance(what, str):
        specification = {"trainer": what}
    elif callable(what):
        source = _source_of(what)
        _check_travels(source, what.__name__)
        specification = {"function": what.__name__, "source": source}
    elif isinstance(what, Sequence):
        specification = {"command": list(what)}
    else:
        raise ValueError(  # noqa: TRY004 - as all that is wrong with a specification
            f"{what!r} is no trainer's name, function or command; a dict goes to the step train as it is"
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
        raise ValueError(f"{name} is not a plain Python function (def …), so its source cannot travel to the job")
    outer = function.__qualname__.rpartition(".")[0]
    if name == "<lambda>":
        raise ValueError("a lambda has no name and no body that could travel to the job; write a function (def …)")
    if outer and not outer.endswith("<locals>"):
        raise ValueError(f"{name} is a method of {outer}; write a function outside of any class")
    if hasattr(function, "__wrapped__"):
        raise ValueError(f"{name} is decorated, and the decorator does not travel to the job; give the bare function")
    if function.__code__.co_freevars:
        raise ValueError(
            f"{name} is a closure: it uses {', '.join(function.__code__.co_freevars)} of the function around it, "
            "which does not travel to the job; make it a parameter"
        )
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{name}() is asynchronous (async def); the job calls an ordinary function")
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ValueError(f"the source of {name} cannot be had; write the function into a file") from None


def _check_travels(source: str, name: str) -> None:
    """Refuse a function that cannot run where there is nothing but its source."""
    function = find_function(source, name)
    if function.decorator_list:
        decorators = ", ".join("@" + ast.unparse(decorator) for decorator in function.decorator_list)
        raise ValueError(f"{name}() is decorated with {decorators}, which does not travel to the job")
    if function.args.posonlyargs:
        raise ValueError(f"{name}() has parameters before a '/': all are given by name, so write it without")
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        raise ValueError(f"{name}() is a generator (it has a yield): calling it would run nothing")
    module = symtable.symtable("from __future__ import annotations\n" + source, name, "exec")
    table = next(child for child in module.get_children() if child.get_name() == name)
    known = {*dir(builtins), name, "__file__", "__name__"}
    scopes = list(_scopes(table))
    known |= {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if _is_made_global(symbol)}
    used = {symbol.get_name() for scope in scopes for symbol in scope.get_symbols() if symbol.is_global()}
    if used - known:
        raise ValueError(
            f"{name}() uses {', '.join(sorted(used - known))} of the module around it, which does not travel to "
            "the job: import it inside the function's body, or make it a parameter"
        )


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, those of the functions inside it left out."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)):
            yield child
            yield from _own_nodes(child)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """Yield the scopes whose names are looked up when the function runs; annotations are not."""
    yield table
    for child in table.get_children():
        if child.get_type() in ("function", "class"):
            yield from _scopes(child)


def _is_made_global(symbol: symtable.Symbol) -> bool:
    return symbol.is_declared_global() and (symbol.is_assigned() or symbol.is_imported())
