"""Removes from the modules that a step carries what nothing in them uses. Pure.

It goes by names alone: what is called, imported, reached as an attribute or written as a text anywhere counts as used,
whatever it is there. So it leaves too much rather than too little.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import python_minifier

_OURS = "kfp_distributed"
_PLAIN_DECORATORS = ("cache", "contextmanager")


@dataclass(eq=False)
class _Statement:
    """A statement at a module's top level.

    Attributes:
        node: The statement.
        names: How often each name occurs in it.
        attributes: Names that are reached as attributes.
        asked: What it imports from modules of ours, as (module, name).
        defines: The names that it defines, if it does nothing else; a part of an import may go too.
    """

    node: ast.stmt
    names: Counter[str] = field(init=False)
    attributes: set[str] = field(init=False)
    asked: set[tuple[str, str]] = field(init=False)
    defines: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = Counter(_names_in(self.node))
        self.attributes = {each.attr for each in ast.walk(self.node) if isinstance(each, ast.Attribute)}
        self.asked = {
            (str(each.module), alias.name)
            for each in ast.walk(self.node)
            if isinstance(each, ast.ImportFrom) and (each.module or "").split(".")[0] == _OURS
            for alias in each.names
        }
        self.defines = _defined_by(self.node)


def shaken(sources: Mapping[str, str], roots: Sequence[str], kept: Sequence[str] = ()) -> dict[str, str]:
    """Removes functions, classes, constants and imports that nothing uses.

    Args:
        sources: Modules of ours, by path relative to the import root.
        roots: Sources that use them and are not among them.
        kept: Paths of modules that keep all they have, for programs that are not known yet.

    Returns:
        The modules, by path. None is left out: one that is imported for nothing is empty.
    """
    modules = {path: [_Statement(each) for each in ast.parse(source).body] for path, source in sources.items()}
    outside = [_Statement(each) for root in roots for each in ast.parse(root).body]
    changed: set[str] = set()
    removed = True
    while removed:
        everything = [*outside, *(each for statements in modules.values() for each in statements)]
        used: Counter[str] = Counter()
        for each in everything:
            used.update(each.names)
        attributes = set().union(*(each.attributes for each in everything))
        asked = set().union(*(each.asked for each in everything))
        removed = False
        for path, statements in modules.items():
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            wanted = attributes | {name for home, name in asked if home == module}
            left = [each for each in statements if path in kept or not _is_unused(each, used)]
            left = [each if not each.asked else _narrowed(each, left, wanted) for each in left]
            modules[path] = [each for each in left if not isinstance(each.node, ast.ImportFrom) or each.node.names]
            if modules[path] != statements:
                removed = True
                changed.add(path)
    return {path: _text(statements, sources[path], path in changed) for path, statements in modules.items()}


def _names_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.alias):
            yield each.name.rpartition(".")[2]
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _defined_by(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef):
        plain = (isinstance(each, ast.Name) and each.id in _PLAIN_DECORATORS for each in node.decorator_list)
        # Another decorator may have told somebody of it.
        return (node.name,) if all(plain) else ()
    if isinstance(node, ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = tuple(each.id for each in targets if isinstance(each, ast.Name))
    return names if len(names) == len(targets) and not any(each.startswith("__") for each in names) else ()


def _is_unused(statement: _Statement, used: Mapping[str, int]) -> bool:
    """Whether a statement only defines names that occur nowhere but in itself."""
    return bool(statement.defines) and all(used.get(name, 0) <= statement.names[name] for name in statement.defines)


def _narrowed(statement: _Statement, module: Sequence[_Statement], wanted: set[str]) -> _Statement:
    """An import of ours without the names that its module does not use and nobody wants from there."""
    node = statement.node
    if not isinstance(node, ast.ImportFrom):
        return statement
    here = {name for each in module if each is not statement for name in each.names}
    names = [alias for alias in node.names if (alias.asname or alias.name) in here | wanted]
    if len(names) == len(node.names):
        return statement
    return _Statement(ast.ImportFrom(node.module, names, node.level))


def _text(statements: Sequence[_Statement], source: str, changed: bool) -> str:
    if not changed:
        return source
    return python_minifier.unparse(ast.Module([each.node for each in statements], [])) if statements else ""
