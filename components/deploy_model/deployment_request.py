"""The parameters of `deploy_model`, checked before anything is created. Pure."""

import re
from typing import NamedTuple

from kfp_distributed.components.train.describe.value_kinds import CPUS, DNS_NAME, MEMORY, Kind, text

LARGEST_NAME = 53
"""KServe calls the Service of a predictor NAME-predictor, and the name of a Service has at most 63 characters."""


class DeploymentRequest(NamedTuple):
    """What to deploy, beside the model.

    Attributes:
        name: Name of the InferenceService.
        namespace: Its namespace; "" for that of the step.
        service_account: ServiceAccount of the server's pods; "" for the namespace's default.
        cpus: CPUs of each replica; "" for those of the serving runtime.
        memory: Memory of each replica; "" for that of the serving runtime.
        gpus: GPUs of each replica.
        min_replicas: Minimum number of replicas.
        max_replicas: Maximum number of replicas; 0 for KServe's default.
        canary_percent: Percentage of the requests that the new version gets.
        timeout_seconds: Seconds until the version must be ready.
    """

    name: str
    namespace: str = ""
    service_account: str = ""
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    min_replicas: int = 1
    max_replicas: int = 0
    canary_percent: int = 100
    timeout_seconds: float = 900.0


def parse_request(
    *,
    name: str,
    namespace: str = "",
    service_account: str = "",
    cpus: str = "",
    memory: str = "",
    gpus: int = 0,
    min_replicas: int = 1,
    max_replicas: int = 0,
    canary_percent: int = 100,
    timeout_minutes: int = 15,
) -> DeploymentRequest:
    """Check the parameters of the component.

    Raises:
        ValueError: A parameter is not allowed. The message has its name, its value and what is allowed.
    """
    _require(
        len(name) <= LARGEST_NAME and bool(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name)),
        "name",
        name,
        f"1 to {LARGEST_NAME} characters out of a-z, 0-9 and '-', the first a letter, the last no '-'",
    )
    # Namespaces are RFC 1123 labels, service accounts are RFC 1123 subdomains.
    label = text("at most 63 characters out of a-z, 0-9 and '-'", "(?!.{64})[a-z0-9]+(-+[a-z0-9]+)*")
    account = text("at most 253 characters out of a-z, 0-9, '-' and '.'", DNS_NAME)
    _require(gpus >= 0, "gpus", gpus, "0 or more")
    _require(min_replicas >= 0, "min_replicas", min_replicas, "0 or more")
    allowed = f"0 for KServe's default, or at least min_replicas={min_replicas}"
    _require(max_replicas == 0 or max_replicas >= max(1, min_replicas), "max_replicas", max_replicas, allowed)
    _require(1 <= canary_percent <= 100, "canary_percent", canary_percent, "1 to 100")
    _require(1 <= timeout_minutes <= 1440, "timeout_minutes", timeout_minutes, "1 to 1440 (a day)")
    return DeploymentRequest(
        name,
        _read("namespace", namespace, label),
        _read("service_account", service_account, account),
        _read("cpus", cpus, CPUS),
        _read("memory", memory, MEMORY),
        gpus,
        min_replicas,
        max_replicas,
        canary_percent,
        timeout_minutes * 60.0,
    )


def _read(name: str, value: str, kind: Kind) -> str:
    if not value:
        return ""
    try:
        return str(kind.read(value))
    except ValueError:
        raise ValueError(f"{name}={value!r:.80} is not allowed: give {kind.allowed}") from None


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r:.80} is not allowed: give {allowed}")
