"""Node labels, tolerations and volumes of the pods of a job, in a `distribution_specification`. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from kfp_distributed.components.train.describe.keys import dict_key, entries_of, keys_of, read_keys, required, schema_of
from kfp_distributed.components.train.describe.value_kinds import (
    BOOLEAN,
    DNS_NAME,
    MAPPING,
    MEMORY,
    NAME,
    Kind,
    Pairs,
    choice,
    from_json,
    integer,
    object_name,
    read_entry,
    text,
)

_LABEL_KEY = text("the key of a label", f"({DNS_NAME}/)?{NAME}")
_LABEL = text("the value of a label: a string of at most 63 characters", f"({NAME})?")


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A toleration of the pods of a job: which taint of a node they accept.

    It needs a key, or the operator "Exists" and no value.
    """

    key: str | None = dict_key(_LABEL_KEY, "Key of the taint.", default_text="all keys")
    operator: Literal["Equal", "Exists"] | None = dict_key(
        choice("Equal", "Exists"), "How the value is compared.", default_text="Equal"
    )
    value: str | None = dict_key(_LABEL, "Value of the taint.", default_text="none")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = dict_key(
        choice("NoSchedule", "PreferNoSchedule", "NoExecute"), "Effect of the taint.", default_text="all effects"
    )
    toleration_seconds: int | None = dict_key(
        integer(0, 2**31 - 1),
        "Seconds for which pods stay on a node with the effect NoExecute.",
        default_text="forever",
        name="tolerationSeconds",
    )


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A PersistentVolumeClaim that each replica mounts. With a size, the step creates it if it does not exist."""

    name: str = field(metadata=required(object_name(253), "Name of the PersistentVolumeClaim."))
    path: str = field(
        metadata=required(
            text(
                "an absolute path without a trailing slash and outside of /kfp-distributed",
                r"(?!/kfp-distributed(/|$))(/[\w.-]*[\w-])+",
            ),
            "Folder of the replicas in which the volume appears.",
        )
    )
    read_only: bool | None = dict_key(BOOLEAN, "Whether replicas only read it.", False)
    size: str | None = dict_key(
        MEMORY._replace(allowed='a size from 1Mi to 1Ei, such as "10Gi"'),
        "Size of a claim that the step creates.",
        default_text="none, the claim must exist",
    )
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = dict_key(
        choice("ReadWriteMany", "ReadWriteOnce"),
        "Access mode of a claim that the step creates.",
        default_text="ReadWriteMany; ReadWriteOnce for one replica",
    )
    storage_class: str | None = dict_key(
        object_name(253), "StorageClass of a claim that the step creates.", default_text="the cluster's"
    )


_TOLERATION_KEYS, _VOLUME_KEYS = keys_of(Toleration), keys_of(Volume)


def _read_labels(value: object) -> Pairs:
    labels = MAPPING.read(value).items()
    return tuple(sorted((read_entry("key", _LABEL_KEY, key), read_entry(key, _LABEL, label)) for key, label in labels))


def _read_toleration(value: object) -> Pairs:
    toleration = read_keys(_entries(value), _TOLERATION_KEYS)
    is_invalid = "value" in toleration if toleration.get("operator") == "Exists" else "key" not in toleration
    if is_invalid or ("tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute"):
        raise ValueError
    return tuple(sorted(toleration.items()))


def _read_volume(value: object) -> Pairs:
    volume = read_keys(_entries(value), _VOLUME_KEYS)
    is_complete = volume.keys() >= {"name", "path"}
    if not is_complete or ("size" not in volume and volume.keys() & {"access_mode", "storage_class"}):
        raise ValueError
    return tuple(sorted(volume.items()))


def _read_volumes(value: object) -> tuple[Pairs, ...]:
    volumes = tuple(map(_read_volume, from_json(value, list | tuple)))
    if len({dict(volume)["path"] for volume in volumes}) < len(volumes):
        raise ValueError("two volumes have the same path")
    return volumes


def _entries(value: object) -> dict[str, object]:
    return entries_of(value) if isinstance(value, Toleration | Volume) else MAPPING.read(value)


_JSON_TEXT = {"type": "string"}
NODE_LABELS = Kind(
    "a dict of node labels with string keys and string values",
    _read_labels,
    {
        "anyOf": [
            {"type": "object", "propertyNames": _LABEL_KEY.schema, "additionalProperties": _LABEL.schema},
            _JSON_TEXT,
        ]
    },
)
TOLERATIONS = Kind(
    "a list of tolerations, each with a key, or with operator Exists and no value; tolerationSeconds requires effect "
    "NoExecute",
    lambda value: tuple(map(_read_toleration, from_json(value, list | tuple))),
    {"anyOf": [{"type": "array", "items": schema_of(_TOLERATION_KEYS)}, _JSON_TEXT]},
)
VOLUMES = Kind(
    "a list of volumes, each with name and path; access_mode and storage_class require size",
    _read_volumes,
    {"anyOf": [{"type": "array", "items": schema_of(_VOLUME_KEYS)}, _JSON_TEXT]},
)
