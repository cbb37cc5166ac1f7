"""What the options of the command line take: each is read, or refused in one sentence."""

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

from kfp_distributed.components.train.kinds import object_name, read_entry
from kfp_distributed.components.train.runners.kubernetes.cluster_api import ClusterApi, connect
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.uri import parse_endpoint, parse_uri
from kfp_distributed.trainers.requirements import checked_image


class WrongArgument(click.ClickException):
    """Something that was asked for cannot be; one line, without the usage."""

    exit_code = 2


class JsonOrFile(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """JSON, or @ and the name of a file that has it."""

    name = "JSON|@FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Reads it; what is wrong with what it says, the step's own checks tell."""
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
        """Read it."""
        match = re.fullmatch(r"(\d{1,5})([dh])", value)
        if not match:
            option = f"--{param.name}" if param else "AGE"
            raise WrongArgument(
                f"{option} {value[:80]!r} is not an age: write a number of days or hours, as 30d or 12h"
            )
        return timedelta(**{{"d": "days", "h": "hours"}[match[2]]: int(match[1])})


def check_namespace(context: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse a value that cannot be the name of a namespace, such as "", which an unset shell variable leaves."""
    is_set = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    return as_namespace("--namespace", value) if value or is_set else ""


def as_namespace(key: str, value: object) -> str:
    """The name of a namespace, of which `key` says where it stands: unlike those of most objects without dots."""
    if re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", str(value)):
        return str(value)
    raise WrongArgument(
        f"{key} = {value!r:.80} is not the name of a namespace: at most 63 of a-z, 0-9 and '-', which it neither "
        "begins nor ends with; kubectl get namespaces shows those that there are"
    )


def check_account(context: click.Context, param: click.Parameter, value: str) -> str:
    """Refuses what no service account can be called."""
    try:
        return str(read_entry("--service-account", object_name(253), value)) if value else ""
    except ValueError as error:
        hint = "kubectl get serviceaccounts shows those that there are"
        raise WrongArgument(f"{error}; {hint}") from None


def check_image(context: click.Context, param: click.Parameter, value: str) -> str:
    """Refuses what no image can be called."""
    try:
        return checked_image("--image", value) if value else ""
    except ValueError as error:
        raise WrongArgument(str(error)) from None


def check_bucket(context: click.Context, param: click.Parameter, value: str) -> str:
    """Refuses what is no address in object storage."""
    try:
        if value and parse_uri(value).scheme != "s3":
            raise ValueError(f"{value!r} is not in object storage: allowed are s3://bucket/key, minio://bucket/key")
    except ValueError as error:
        raise WrongArgument(f"--bucket: {error}") from None
    return value


def endpoint_from_here(variables: Mapping[str, str]) -> tuple[str, bool] | None:
    """Where the environment says that the object store is, as host:port and whether with TLS; None where it does not.

    Raises:
        ValueError: What it says is no such address.
    """
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if url := variables.get(name):
            try:
                found = parse_endpoint(url)
                _ = urlsplit(f"//{found[0]}").port  # A wrong one is found only here.
            except ValueError as error:
                raise ValueError(f"{name}: {error}; correct it, or unset {name}") from None
            return found
    return None


def doctor_command(namespace: str, **options: str) -> str:
    """The command line that asks doctor the same again, for a shell; options that are "" are left out."""
    words = ["kfp-distributed", "doctor", "--namespace", namespace]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value] if value else []
    return shlex.join(words)


def namespace_option(text: str) -> Callable[[Any], Any]:
    """Return the option --namespace.

    Args:
        text: What the namespace is for, as a sentence.
    """
    help_text = f"{text} Default: that of the configuration's context."
    return click.option("--namespace", default="", callback=check_namespace, help=help_text)


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
    # YAML reads a namespace of digits as a number.
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
