"""Rejection of parameters with placeholders."""

import re

import pytest

from kfp_distributed.storage.kubeflow.placeholders import refuse_placeholders

PROGRAM_TEXTS = ("train_specification.source", "train_specification.command")

REJECTED = {
    "default value": ({"bucket": "{{$.pipeline_job_uuid}}"}, "bucket", "{{$.pipeline_job_uuid}}"),
    "inside a longer string": (
        {"source": "https://user:secret@host/{{$.pipeline_job_uuid}}.csv?key=secret"},
        "source",
        "{{$.pipeline_job_uuid}}",
    ),
    "Argo placeholder": ({"checkpoint_uri": "s3://b/{{workflow.uid}}/c"}, "checkpoint_uri", "{{workflow.uid}}"),
    "variable of the pod": ({"model_name": "m-{{ pod.name }}"}, "model_name", "{{ pod.name }}"),
    "channel of the pipeline": (
        {"bucket": "b/{{channel:task=a;name=Output;type=String;}}"},
        "bucket",
        "{{channel:task=a;name=Output;type=String;}}",
    ),
    "without closing braces, before a secret": ({"source": "https://host/{{$.run?key=secret"}, "source", "{{$."),
    "before a secret and another one": ({"source": "h/{{$.run?key=secret&{{a}}"}, "source", "{{$."),
    "in a dict value": (
        {"train_parameters": {"a": {"b": "{{$.inputs.parameters['pipelinechannel--x']}}"}}},
        "train_parameters.a.b",
        "{{$.inputs.parameters['pipelinechannel--x']}}",
    ),
    "in a list": ({"drop_columns": ["id", "{{$.pipeline_root}}"]}, "drop_columns[1]", "{{$.pipeline_root}}"),
    "in a dict key": (
        {"train_parameters": {"{{$.pipeline_root}}": 1}},
        "train_parameters.{{$.pipeline_root}}",
        "{{$.pipeline_root}}",
    ),
    "KFP placeholder in source code": (
        {"train_specification": {"source": "run = '{{$.pipeline_job_uuid}}'"}},
        "train_specification.source",
        "{{$.pipeline_job_uuid}}",
    ),
    "KFP placeholder in a command": (
        {"train_specification": {"command": ["python", "{{$.pipeline_job_uuid}}"]}},
        "train_specification.command[1]",
        "{{$.pipeline_job_uuid}}",
    ),
    "in the image of a specification with source code": (
        {"train_specification": {"source": "{{ x }}", "image": "i:{{workflow.uid}}"}},
        "train_specification.image",
        "{{workflow.uid}}",
    ),
}


@pytest.mark.parametrize(("parameters", "name", "placeholder"), REJECTED.values(), ids=REJECTED)
def test_placeholder_is_rejected(parameters, name, placeholder):
    with pytest.raises(ValueError, match=f"^{re.escape(name)} has the placeholder ") as error:
        refuse_placeholders(parameters, PROGRAM_TEXTS)
    assert repr(placeholder) in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        *("Hello {{name}}", "{{ user.name | upper }}", "{{", "}}", "{{}}", "{{inputs.text}}", "{{workflow}}"),
        *("{{workflow.steps}}", "{{#each}}{{this}}{{/each}}", "{{$name := 1}}"),
    ],
)
def test_texts_of_other_template_engines_are_values(text):
    refuse_placeholders({"train_parameters": {text: text}, "drop_columns": [text], "source": text})


def test_braces_in_source_code_are_allowed():
    refuse_placeholders(
        {
            "train_specification": {
                "source": "print(f'{{}}', '{{ name }}', '{{workflow.uid}}')",
                "command": ["sh", "-c", "echo {{a}}"],
                "image": None,
            },
            "train_parameters": {"epochs": 2.0, "layers": [8, 4], "text": "{a} {"},
            "bucket": "models",
        },
        PROGRAM_TEXTS,
    )
