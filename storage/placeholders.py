"""Reject parameters in which Kubeflow Pipelines left a placeholder."""

import re
from collections.abc import Collection, Iterator, Mapping

# The error shows the match. Without "}}" the match is "{{" alone, because the text that follows may be a secret.
_ANY = re.compile(r"\{\{(?:.*?\}\})?", re.DOTALL)
# Source code may contain "{{" for other reasons: in f-strings and in templates.
_KFP_ONLY = re.compile(r"\{\{\$\.(?:.*?\}\})?", re.DOTALL)
_MAX_PLACEHOLDER_CHARACTERS = 80


def refuse_placeholders(parameters: Mapping[str, object], program_texts: Collection[str] = ()) -> None:
    """Check that no parameter of a step contains a placeholder.

    Args:
        parameters: The parameters by name. Strings are checked at any depth of dicts and lists.
        program_texts: Parameters, and keys of dicts as "PARAMETER.KEY", that contain source code or a command. In
            these only "{{$." is rejected, in all others "{{".

    Raises:
        ValueError: A parameter contains a placeholder. The message has the name of the parameter and the placeholder,
            and nothing else of the value, which may be a secret.
    """
    for name, text in _texts("", parameters):
        is_program = any(re.match(rf"{re.escape(program)}($|[.\[])", name) for program in program_texts)
        if match := (_KFP_ONLY if is_program else _ANY).search(text):
            raise ValueError(
                f"{name} has the placeholder {match[0][:_MAX_PLACEHOLDER_CHARACTERS]!r}, which was not replaced. "
                "Kubeflow Pipelines replaces a placeholder only if it is the complete value of an argument that the "
                "pipeline passes to the task. Pass it as a complete argument, or pass a literal value"
            )


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield all strings in a value, each with its name."""
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
