"""Values in which a placeholder stayed."""

import re

import pytest

from kfp_distributed.storage.placeholders import refuse_placeholders

PROGRAM_TEXTS = ("train_specification.source", "train_specification.command")

REFUSED = {
    "a default that nobody replaces": ({"bucket": "{{$.pipeline_job_uuid}}"}, "bucket", "{{$.pipeline_job_uuid}}"),
    "inside a longer text": (
        {"source": "https://user:secret@host/{{$.pipeline_job_uuid}}.csv?key=secret"},
        "source",
        "{{$.pipeline_job_uuid}}",
    ),
    "of Argo": ({"checkpoint_uri": "s3://b/{{workflow.uid}}/c"}, "checkpoint_uri", "{{workflow.uid}}"),
    "without an end": ({"runner": "{{"}, "runner", "{{"),
    "without an end, before a secret": ({"source": "https://host/{{$.run?key=secret"}, "source", "{{"),
    "in a dict": ({"train_parameters": {"a": {"b": "{{x}}"}}}, "train_parameters.a.b", "{{x}}"),
    "in a list": ({"drop_columns": ["id", "{{x}}"]}, "drop_columns[1]", "{{x}}"),
    "in a key": ({"train_parameters": {"{{x}}": 1}}, "train_parameters.{{x}}", "{{x}}"),
    "KFP's in a source": (
        {"train_specification": {"source": "run = '{{$.pipeline_job_uuid}}'"}},
        "train_specification.source",
        "{{$.pipeline_job_uuid}}",
    ),
    "KFP's in a command": (
        {"train_specification": {"command": ["python", "{{$.pipeline_job_uuid}}"]}},
        "train_specification.command[1]",
        "{{$.pipeline_job_uuid}}",
    ),
    "in the image beside a source": (
        {"train_specification": {"source": "{{ x }}", "image": "i:{{tag}}"}},
        "train_specification.image",
        "{{tag}}",
    ),
}


@pytest.mark.parametrize(("parameters", "name", "placeholder"), REFUSED.values(), ids=REFUSED)
def test_refused(parameters, name, placeholder):
    with pytest.raises(ValueError, match=f"^{re.escape(name)} has the placeholder ") as error:
        refuse_placeholders(parameters, PROGRAM_TEXTS)
    assert repr(placeholder) in str(error.value)
    assert "secret" not in str(error.value)


def test_allowed():
    refuse_placeholders(
        {
            "train_specification": {
                "source": "print(f'{{}}', '{{ name }}')",
                "command": ["sh", "-c", "echo {{a}}"],
                "image": None,
            },
            "train_parameters": {"epochs": 2.0, "layers": [8, 4], "text": "{a} {"},
            "bucket": "models",
        },
        PROGRAM_TEXTS,
    )
