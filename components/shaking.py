"""Removes from the modules that a step carries what nothing in them uses. Pure.

It goes by names alone: what is called, imported, reached as an attribute or written as a text anywhere counts as used,
whatever it is there. So it leaves too much rather than too little.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import python_minifier

_OURS = "kfp_distributed."


def shaken(sources: Mapping[str, str], roots: Sequence[str], kept: Sequence[str] = ()) -> dict[str, str]:
    """Removes functions, classes, constants and imports that nothing uses.

    Args:
        sources: Modules of ours, by path relative to the import root.
        roots: Sources that use them and are not among them.
        kept: Paths of modules that keep all they have, for programs that are not known yet.

    Returns:
        The modules, by path. None is left out: one that is imported for nothing is empty.
    """
    trees = {path: ast.parse(source) for path, source in sources.items()}
    outside = Counter(name for root in roots for name in _names_in(ast.parse(root)))
    removed = True
    while removed:
        used = sum((Counter(_names_in(tree)) for tree in trees.values()), outside)
        removed = False
        for path, tree in trees.items():
            body = tree.body if path in kept else [each for each in tree.body if not _is_unused(each, used)]
            for each in body:
                if isinstance(each, ast.ImportFrom) and (each.module or "").startswith(_OURS):
                    removed |= _drop_imports(each, tree, path, trees)
            removed |= len(body) < len(tree.body)
            tree.body = [each for each in body if not isinstance(each, ast.ImportFrom) or each.names]
    return {path: python_minifier.unparse(tree) if tree.body else "" for path, tree in trees.items()}


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


def _is_unused(statement: ast.stmt, used: Mapping[str, int]) -> bool:
    """Whether a statement only defines names that occur nowhere but in itself."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        defined = [statement.name]
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        defined = [each.id if isinstance(each, ast.Name) else "" for each in targets]
    else:
        return False
    own = Counter(_names_in(statement))
    return all(name and not name.startswith("__") and used.get(name, 0) <= own[name] for name in defined)


def _drop_imports(statement: ast.ImportFrom, tree: ast.Module, path: str, trees: Mapping[str, ast.Module]) -> bool:
    """Takes from an import the names that its module does not use and that no other imports from there."""
    here = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    asked = {
        alias.name
        for other in trees.values()
        for each in ast.walk(other)
        if isinstance(each, ast.ImportFrom) and each.module == module
        for alias in each.names
    }
    names = [alias for alias in statement.names if (alias.asname or alias.name) in here | asked]
    dropped = len(names) < len(statement.names)
    statement.names = names
    return dropped
