"""Types and callbacks of the options of the command line. An error is one sentence."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.cluster_api.configuration import connect
from kfp_distributed.components.train.describe.value_kinds import object_name, read_entry
from kfp_distributed.storage.uri import parse_endpoint, parse_uri
from kfp_distributed.trainers.programs.requirements import checked_image


class WrongArgument(click.ClickException):
    """An argument is wrong. The message is one line, without the usage."""

    exit_code = 2


class JsonOrFile(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """JSON, or @ and the name of a file with JSON."""

    name = "JSON|@FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Parse the JSON. The checks of the train step report wrong values in it."""
        try:
            text = Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value
            return json.loads(text)
        except (OSError, ValueError) as error:
            option = f"--{param.name}".replace("_", "-") if param else "JSON"
            raise WrongArgument(f"{option} {value[:80]!r} is neither JSON nor @FILE with JSON: {error}") from None


class Age(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A number of days or hours, such as 30d or 12h."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:  # noqa: ANN401
        """Parse the age."""
        match = re.fullmatch(r"(\d{1,5})([dh])", value)
        if not match:
            option = f"--{param.name}" if param else "AGE"
            raise WrongArgument(
                f"{option} {value[:80]!r} is not an age; pass a number of days or hours, such as 30d or 12h"
            )
        return timedelta(**{{"d": "days", "h": "hours"}[match[2]]: int(match[1])})


def check_namespace(context: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a value that cannot be the name of a namespace, such as "", which an unset shell variable leaves."""
    is_set = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    return as_namespace("--namespace", value) if value or is_set else ""


def as_namespace(key: str, value: object) -> str:
    """Return a valid name of a namespace. Unlike the names of most other objects, it has no dots.

    Args:
        key: Name of the option, for the error.
        value: The name.

    Raises:
        WrongArgument: The name is not valid.
    """
    if re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", str(value)):
        return str(value)
    raise WrongArgument(
        f"{key} = {value!r:.80} is not a valid name of a namespace: at most 63 of a-z, 0-9 and '-', not '-' at the "
        "start or end; kubectl get namespaces lists the namespaces"
    )


def check_account(context: click.Context, param: click.Parameter, value: str) -> str:
    """Check that a value is a valid name of a ServiceAccount."""
    try:
        return str(read_entry("--service-account", object_name(253), value)) if value else ""
    except ValueError as error:
        hint = "kubectl get serviceaccounts lists the service accounts"
        raise WrongArgument(f"{error}; {hint}") from None


def check_image(context: click.Context, param: click.Parameter, value: str) -> str:
    """Check that a value is a valid name of an image."""
    try:
        return checked_image("--image", value) if value else ""
    except ValueError as error:
        raise WrongArgument(str(error)) from None


def check_bucket(context: click.Context, param: click.Parameter, value: str) -> str:
    """Check that a value is a URI in object storage."""
    try:
        if value and parse_uri(value).scheme != "s3":
            raise ValueError(f"{value!r} is not in object storage; allowed are s3://bucket/key and minio://bucket/key")
    except ValueError as error:
        raise WrongArgument(f"--bucket: {error}") from None
    return value


def endpoint_from_here(variables: Mapping[str, str]) -> tuple[str, bool] | None:
    """Return the address of the object store from the environment, as host:port and whether it uses TLS.

    Returns:
        None if the environment has no address.

    Raises:
        ValueError: The address is not valid.
    """
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if url := variables.get(name):
            try:
                endpoint = parse_endpoint(url)
                _ = urlsplit(f"//{endpoint[0]}").port  # Raises ValueError for a port that is no number.
            except ValueError as error:
                raise ValueError(f"{name}: {error}; correct it, or unset {name}") from None
            return endpoint
    return None


def variable_of_endpoint(variables: Mapping[str, str]) -> str:
    """Return the name of the variable that `endpoint_from_here` reads."""
    return "AWS_ENDPOINT_URL_S3" if variables.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"


def doctor_command(namespace: str, **options: str) -> str:
    """Return the command line of `doctor` with these options, for a shell. Empty options are left out."""
    words = ["kfp-distributed", "doctor", "--namespace", namespace]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value] if value else []
    return shlex.join(words)


def namespace_option(text: str) -> Callable[[Any], Any]:
    """Return the option --namespace.

    Args:
        text: Purpose of the namespace, as a sentence.
    """
    help_text = f"{text} Default: that of the configuration's context."
    return click.option("--namespace", default="", callback=check_namespace, help=help_text)


bucket_option = click.option(
    "--bucket",
    default="",
    callback=check_bucket,
    metavar="URI",
    help="Where the pipelines of ended trainings store their artifacts, or the checkpoint_uri of trainings from a "
    "laptop. Default: the pipeline root of the namespace.",
)


def connected(namespace: str) -> ClusterApi:
    """Return a connection to the cluster of the configuration.

    Args:
        namespace: A namespace; "" for that of the configuration.

    Raises:
        WrongArgument: There is no configuration, or it is wrong.
    """
    try:
        api = connect(namespace)
    except ValueError as error:
        raise WrongArgument(str(error)) from None
    # YAML parses a namespace of digits as a number.
    api.namespace = as_namespace("the namespace of the configuration's context", api.namespace)
    return api


def refused(error: ClusterError) -> click.ClickException:
    """Return the error of a command whose request the API server refused, with what to do about credentials."""
    if error.status != HTTPStatus.UNAUTHORIZED:
        return click.ClickException(str(error))
    advice = "log in again, or choose another context: kubectl config get-contexts"
    return click.ClickException(
        f"the API server does not accept the credentials of the configuration ({error}); {advice}"
    )
