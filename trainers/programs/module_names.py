"""Finds the names that a function takes from its module, where the source alone would mean something else."""

import __future__

import builtins
import dis
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType

_LOADS = ("LOAD_GLOBAL", "DELETE_GLOBAL")
_LOADS_IN_CLASSES = ("LOAD_NAME", "DELETE_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that look a name up in the body of the class first, and then in the module."""
_OF_THE_REPLICA = ("__builtins__", "__file__", "__name__")
"""Names that the replica binds before it runs the source."""
_MISSING = object()


def check_module_names(function: Callable[..., object], source: str) -> None:
    """Check that the names that a function looks up mean the same where only its source exists.

    Names in annotations are not looked up in the replica, and are not checked.

    Args:
        function: The loaded function. Its module's names are compared as they are now.
        source: Source of the function.

    Raises:
        ValueError: The function uses names that its module binds to other objects than the builtins, or names that are
            neither bound nor builtins.
    """
    name, bound = function.__name__, function.__globals__
    flag = __future__.annotations.compiler_flag
    # Asserts are compiled, because Python may run with -O here and without it in the replica.
    code = compile(source, name, "exec", flag, dont_inherit=True, optimize=0)
    made = {instruction.argval for instruction in _instructions(code) if instruction.opname == "STORE_GLOBAL"}

    def means_the_same(word: str) -> bool:
        value, builtin = bound.get(word, _MISSING), vars(builtins).get(word, _MISSING)
        if word == name:
            return value is function
        if word in _OF_THE_REPLICA or value is builtin is not _MISSING or _is_ipython_wrapper(value, builtin):
            return True
        return value is _MISSING and (builtin is not _MISSING or word in made)

    names = sorted(word for word in looked_up(code, frozenset()) if not means_the_same(word))
    if names:
        described = ", ".join(f"{word} ({_describe(bound.get(word, _MISSING))})" for word in names)
        raise ValueError(
            f"{name}() uses {', '.join(names)} of its module, which is not sent to the job: {described}. Import such a "
            "name inside the function's body, or make it a parameter"
        )


def looked_up(code: CodeType, assigned: frozenset[str]) -> set[str]:
    """Return the global names that code may look up before it has assigned them itself.

    A class body looks up a name in the module too if it has not assigned it yet, as in `sum = sum`.

    Args:
        code: Code of a module, function or class. The code of nested functions and classes is included.
        assigned: Global names that are assigned before the code runs.
    """
    names: set[str] = set()
    own: set[str] = set()
    skipped = _skipped_ranges(code)
    for instruction in dis.get_instructions(code):
        operation, argument = instruction.opname, instruction.argval
        if isinstance(argument, CodeType):
            names |= looked_up(argument, assigned)
        elif operation in _LOADS or (operation in _LOADS_IN_CLASSES and argument not in own):
            names |= {argument} - assigned
        elif operation == "SETUP_ANNOTATIONS":
            own.add("__annotations__")
        if operation.startswith("DELETE_"):
            own, assigned = own - {argument}, assigned - {argument}
        elif not any(start <= instruction.offset < end for start, end in skipped):
            if operation == "STORE_GLOBAL":
                assigned |= {argument}
            elif operation == "STORE_NAME":
                own.add(argument)
    return names


def _skipped_ranges(code: CodeType) -> list[tuple[int, int]]:
    """Return the ranges of offsets that may not run to their end: branches, bodies of loops, and blocks of `try`."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    ranges = [
        (instruction.offset, instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opcode in jumps
    ]
    # A block of `try` has no jump, but an entry in a table.
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return ranges + [(entry.start, entry.end) for entry in entries]


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    for instruction in dis.get_instructions(code):
        yield instruction
        if isinstance(instruction.argval, CodeType):
            yield from _instructions(instruction.argval)


def _is_ipython_wrapper(value: object, builtin: object) -> bool:
    """Return whether IPython has bound a name to its own wrapper of the builtin, as it does with `open`."""
    return (
        isinstance(value, FunctionType)
        and getattr(value, "__wrapped__", None) is builtin
        and str(value.__globals__.get("__name__")).startswith("IPython.")
    )


def _describe(value: object) -> str:
    """Return what a name is bound to, such as "module json", "numpy.sum" or "an object of type int"."""
    if value is _MISSING:
        return "not defined"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):
        module = getattr(value, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) else name
    kind = type(value)
    return f"an object of type {'' if kind.__module__ == 'builtins' else f'{kind.__module__}.'}{kind.__qualname__}"
