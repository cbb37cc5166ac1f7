"""Reject parameters in which Kubeflow Pipelines left a placeholder."""

import re
from collections.abc import Collection, Iterator, Mapping

# Those of the pipeline and of values that kfp leaves in its compiled texts. The error shows the match. Without "}}" it
# ends after the prefix, because the text that follows may be a secret.
_KFP = r"\{\{(?:\$\.|channel:task=)(?:[^{}]*\}\})?"
# Version 2 of KFP does not replace the variables of Argo Workflows that version 1 replaced.
_ARGO = (
    r"\{\{ *(?:pod\.name|workflow\."
    r"(?:name|uid|namespace|serviceAccountName|(?:parameters|labels|annotations|creationTimestamp)(?:\.[^{}]*)?)) *\}\}"
)
# Source code and commands may create Argo Workflows, or objects with its variables.
_IN_PROGRAM, _IN_VALUE = re.compile(_KFP), re.compile(f"{_KFP}|{_ARGO}")
_MAX_PLACEHOLDER_CHARACTERS = 80


def refuse_placeholders(parameters: Mapping[str, object], program_texts: Collection[str] = ()) -> None:
    """Check that no parameter of a step contains a placeholder of Kubeflow Pipelines or of Argo Workflows.

    Other texts in "{{" and "}}", such as "Hello {{name}}" for a template engine, are values.

    Args:
        parameters: The parameters by name. Strings are checked at any depth of dicts and lists.
        program_texts: Parameters, and keys of dicts as "PARAMETER.KEY", that contain source code or a command. In
            these only placeholders of KFP are rejected.

    Raises:
        ValueError: A parameter contains a placeholder. The message has the name of the parameter and the placeholder,
            and nothing else of the value, which may be a secret.
    """
    for name, text in _texts("", parameters):
        is_program = any(re.match(rf"{re.escape(program)}($|[.\[])", name) for program in program_texts)
        if match := (_IN_PROGRAM if is_program else _IN_VALUE).search(text):
            raise ValueError(
                f"{name} has the placeholder {match[0][:_MAX_PLACEHOLDER_CHARACTERS]!r}, which was not replaced. "
                "Kubeflow Pipelines 2 replaces only placeholders that begin with '{{$.', and each only if it is the "
                "complete value of an argument that the pipeline passes to the task. Pass such an argument, or a "
                "literal value"
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
