"""Reads the source of a function so that it compiles alone to the code of the loaded function."""

import __future__

import dis
import inspect
import io
import tokenize
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

_FUTURE_FLAGS = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_OF_METHOD_CALLS = ("CACHE", "CALL", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL")
"""Instructions that differ for `json.loads(x)` if the module of the function imports json."""
_FIRST_LINE = "__firstlineno__"
_OF_PLACES = (_FIRST_LINE, "__static_attributes__")
"""What Python 3.13 and later store in each class: its line in the file, and a tuple in the random order of a set."""


def read_source(function: Callable[..., object]) -> str:
    """Return the source of a plain function without the indentation of its definition.

    Raises:
        ValueError: It is not a plain function, its source is not available, or its source is not that of the loaded
            function.
    """
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
        if function.__code__.co_filename == "<string>":
            # From Python 3.13 on, inspect returns lines of the program of `python -c` for each function made by exec().
            raise OSError
        return unindent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ValueError(f"the source of {name} is not available; write the function into a file") from None
    except (tokenize.TokenError, SyntaxError) as error:
        raise ValueError(f"the source of {name} is not valid Python: {error}") from None


def unindent(source: str) -> str:
    """Remove the indentation of the first line from all lines, except from those that begin inside a string.

    `textwrap.dedent` also removes it inside strings, which changes their value. It removes nothing if a line of a
    string starts at the left margin.
    """
    lines = source.split("\n")
    indentation = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    if not indentation:
        return source
    rows = set(_rows_inside_strings(source))
    # Comments, and lines inside brackets, may have less indentation than the definition.
    shorter = [line.removeprefix(indentation) if line.startswith(indentation) else line.lstrip(" \t") for line in lines]
    return "\n".join(lines[row] if row + 1 in rows else line for row, line in enumerate(shorter))


def _rows_inside_strings(source: str) -> Iterator[int]:
    """Yield the numbers of the lines that begin inside a string. The first line has number 1."""
    starts: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # Python 3.12 has tokens for the parts of an f-string. Earlier versions have one STRING.
        kind = tokenize.tok_name[token.type]
        if kind in ("STRING", "FSTRING_START"):
            starts.append(token.start[0])
        if kind in ("STRING", "FSTRING_END"):
            yield from range(starts.pop() + 1, token.end[0] + 1)


def check_loaded(function: Callable[..., object], source: str) -> None:
    """Check that a source compiles to the code of a loaded function.

    It does not if the file was edited after the import. pytest inserts code into assert statements, with names that no
    source can have. Functions with such names are not checked.

    Raises:
        ValueError: The code differs.
    """
    name, loaded = function.__name__, function.__code__
    if not all(part.isidentifier() for code in _codes(loaded) for word in code.co_names for part in word.split(".")):
        return
    module = compile(source, loaded.co_filename, "exec", loaded.co_flags & _FUTURE_FLAGS, dont_inherit=True)
    compiled = next(code for code in _codes(module) if code.co_name == name)
    if constant_key(compiled) != constant_key(loaded):
        raise ValueError(
            f"the source of {name}() in {loaded.co_filename} differs from the loaded function: the file was edited "
            "after the import, or an import hook changes the code; import the module again, without hooks"
        )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of nested functions and classes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def constant_key(value: object) -> Any:  # noqa: ANN401
    """Return a key that is equal for equal constants of the same type. 1, 1.0 and True have different keys.

    A code object is a constant too. Its key has what it computes, without file, line numbers and outer functions.
    """
    if isinstance(value, CodeType):
        # The line number of a class may be equal to another constant of it. All that matter are arguments of the steps.
        constants = tuple(filter(_is_code, value.co_consts)) if _FIRST_LINE in value.co_names else value.co_consts
        names = (value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
        return CodeType, names, counts, constant_key(tuple(map(_inner_name, constants))), tuple(_steps(value))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(constant_key, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(constant_key, value))
    if isinstance(value, dict):
        return dict, tuple(map(constant_key, value.items()))
    return type(value), repr(value)


def _steps(code: CodeType) -> list[tuple[str, object]]:
    """Return the instructions of code, each with its argument.

    Those that depend on the module's imports, or on the place of the code in its file, are left out.
    """
    jumps = {*dis.hasjrel, *dis.hasjabs}
    steps: list[tuple[str, object]] = []
    for instruction in dis.get_instructions(code):
        argument = instruction.argval
        if instruction.opname == "STORE_NAME" and argument in _OF_PLACES:
            steps.pop()  # It loads the stored value.
        elif instruction.opname not in _OF_METHOD_CALLS:
            key = () if instruction.opcode in jumps or _is_code(argument) else _inner_name(argument)
            steps.append((instruction.opname.replace("METHOD", "ATTR"), constant_key(key)))
    return steps


def _is_code(value: object) -> bool:
    return isinstance(value, CodeType)


def _inner_name(value: object) -> object:
    """Return the part of a qualified name, such as "outer.<locals>.fit.<locals>.Model", after its last function."""
    return value.rpartition(".<locals>.")[2] if isinstance(value, str) else value
