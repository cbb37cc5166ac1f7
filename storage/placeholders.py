"""Refuses values in which Kubeflow Pipelines left a placeholder."""

import re
from collections.abc import Collection, Iterator, Mapping

# The error shows the match. Where "}}" is missing it is the opening alone: what follows may be a secret.
_ANY = re.compile(r"\{\{(?:.*?\}\})?", re.DOTALL)
# Program text has "{{" of its own: in f-strings and in templates.
_OF_KFP = re.compile(r"\{\{\$\.(?:.*?\}\})?", re.DOTALL)
_SHOWN_CHARACTERS = 80


def refuse_placeholders(parameters: Mapping[str, object], program_texts: Collection[str] = ()) -> None:
    """Checks that no text in the parameters of a step still has a placeholder.

    Args:
        parameters: The parameters by name, with texts at any depth of dicts and lists.
        program_texts: Parameters, and keys of dicts as "PARAMETER.KEY", that are source code or a command. In these
            only "{{$." is refused, in all others "{{".

    Raises:
        ValueError: There is one; the text names the parameter and the placeholder, and nothing else of the value.
    """
    for name, text in _texts("", parameters):
        is_program = any(re.match(rf"{re.escape(program)}($|[.\[])", name) for program in program_texts)
        if match := (_OF_KFP if is_program else _ANY).search(text):
            raise ValueError(
                f"{name} has the placeholder {match[0][:_SHOWN_CHARACTERS]!r}, which nothing has replaced. Kubeflow "
                "Pipelines replaces a placeholder only where it is the whole value of an argument that the pipeline "
                "passes to the task: pass it so, or write the value itself"
            )


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yields all texts in a value, with their names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            entry_name = f"{name}.{key}" if name else str(key)
            yield entry_name, str(key)
            yield from _texts(entry_name, entry)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _texts(f"{name}[{number}]", entry)
