"""Parses the addresses of exported versions: ROOT/MODEL/VERSION, such as s3://models/digits/3, and ROOT/MODEL@ALIAS."""

import re
from dataclasses import dataclass

from kfp_distributed.components.model_versions.versions import LARGEST_VERSION
from kfp_distributed.storage.kubeflow.task_folder import pipeline_root
from kfp_distributed.storage.uri import parse_uri

LATEST = "latest"
"""The alias that every model has: its highest complete version. It is not stored."""

_MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ALIAS = "[a-z][a-z0-9-]{0,62}"


@dataclass(frozen=True)
class ModelAddress:
    """The address of a model, of a version by number, or of a version by alias.

    Attributes:
        root: URI of the folder for exports.
        model_name: Name of the model.
        version: Number of the version; 0 if the address has none.
        alias: Alias of the version; "" if the address has none.
    """

    root: str
    model_name: str
    version: int = 0
    alias: str = ""


def export_root(bucket: str) -> str:
    """Return the URI of the folder for exports.

    Args:
        bucket: A bucket's name ("models"), optionally with a prefix ("models/team-a"), a URI (s3://, minio://,
            file://) or a path that begins with / or a dot.
    """
    return bucket if "://" in bucket or bucket.startswith(("/", ".")) else f"s3://{bucket}"


def default_export_root(output_uri: str) -> str:
    """Return the folder for exports of a step that names no bucket.

    Args:
        output_uri: URI of an output artifact of the step.

    Raises:
        ValueError: The URI has no pipeline root, or the root is in no store that exports can be written to.
    """
    root = pipeline_root(output_uri)
    advice = "pass bucket, such as s3://BUCKET or s3://BUCKET/PREFIX"
    if not root:
        raise ValueError(f"bucket is empty, and the output {output_uri} is in no known pipeline root: {advice}.")
    try:
        return models_folder(root)
    except ValueError as error:
        raise ValueError(f"bucket is empty, and the pipeline root cannot have models: {error}. Or {advice}.") from None


def models_folder(root: str) -> str:
    """Return the folder `models` beside the artifacts of a pipeline root. All of its pipelines and runs have the same.

    For minio://mlpipeline/v2/artifacts it is minio://mlpipeline/models, and for the prefix of a profile, to which an
    account may be limited, below this prefix. For a root that does not end so it is in the root. On this machine it is
    beside the folder `artifacts` of `local_run`.

    Args:
        root: A URI or a path. Settings of the store after a "?" stay.

    Raises:
        ValueError: The root is not in a store of a scheme that exports can be written to.
    """
    parse_uri(root)
    root, question_mark, settings = root.partition("?")
    artifacts = "(?<=[^/])/v2/artifacts$" if "://" in root else "/artifacts$"
    return f"{re.sub(artifacts, '', root.rstrip('/'))}/models{question_mark}{settings}"


def check_model_name(model_name: str) -> None:
    """Check the name of a model.

    Raises:
        ValueError: The name is not allowed.
    """
    if not re.fullmatch(_MODEL_NAME, model_name):
        raise ValueError(
            f"model_name={model_name!r} is not allowed: 1 to 128 letters, digits, dots, hyphens and underscores, "
            "the first a letter or a digit."
        )


def check_alias(alias: str) -> None:
    """Check a name to set as an alias.

    Raises:
        ValueError: The name is not allowed, or it is "latest", which always means the highest complete version.
    """
    if not re.fullmatch(_ALIAS, alias):
        raise ValueError(
            f"alias {alias!r} is not allowed: 1 to 63 lower-case letters, digits and hyphens, the first a letter."
        )
    if alias == LATEST:
        raise ValueError(f"alias {LATEST!r} always means the highest complete version: choose another name.")


def parse_alias_address(uri: str) -> ModelAddress | None:
    """Parse an address that ends with MODEL@ALIAS; return None for any other address.

    Args:
        uri: Address of any model. Settings of the store after a "?" stay in the root.
    """
    match = re.fullmatch(rf"(.*?)({_MODEL_NAME})@({_ALIAS})/*(\?.*)?", uri)
    if not match or not (match[1].endswith("/") or not match[1]) or re.fullmatch("[A-Za-z0-9]+://", match[1]):
        return None
    return ModelAddress(_root(match[1], match[4] or ""), match[2], alias=match[3])


def parse_model_address(address: str) -> ModelAddress:
    """Parse the address of a model or of a version.

    Args:
        address: ROOT/MODEL, ROOT/MODEL/VERSION or ROOT/MODEL@ALIAS. The root is one of `export_root`.

    Raises:
        ValueError: The address has another form.
    """
    uri = export_root(address)
    if parsed := parse_alias_address(uri):
        return parsed
    match = re.fullmatch(rf"(.*/)({_MODEL_NAME})(?:/([1-9][0-9]{{0,18}}))?/*(\?.*)?", uri)
    # The greedy root takes the model of an address that ends with a number.
    if match and match[2].isdecimal() and not match[3]:
        deeper = re.fullmatch(rf"(.*/)({_MODEL_NAME})/([1-9][0-9]{{0,18}})/*(\?.*)?", uri)
        match = deeper if deeper and not re.fullmatch("[A-Za-z0-9]+://", deeper[1]) else match
    number = int(match[3] or 0) if match else 0
    if not match or re.fullmatch("[A-Za-z0-9]+://", match[1]) or number > LARGEST_VERSION:
        shown = address.rpartition("@")[2] if "@" in address else address  # Without a user name and a password.
        raise ValueError(
            f"{shown!r} is not the address of a model or a version: give ROOT/MODEL, ROOT/MODEL/VERSION or "
            "ROOT/MODEL@ALIAS, such as s3://models/digits/3 or s3://models/digits@production"
        )
    return ModelAddress(_root(match[1], match[4] or ""), match[2], number)


def _root(folder: str, settings: str) -> str:
    """Return the address of a folder without the slash at its end, with the settings of its store."""
    return (folder.rstrip("/") or ("/" if folder else ".")) + settings
