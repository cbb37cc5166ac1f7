"""The TaskConfig that KFP passes to a step, as settings of the job's pods."""

import re

import pytest
from kfp import dsl

from kfp_distributed.components.train.describe.manifests.cluster_settings import TaskSettings, read_task_settings

RESOURCES = {"limits": {"cpu": "500m", "nvidia.com/gpu": "1"}, "requests": {"cpu": "500m"}}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
TOLERATION = {"key": "gpu", "operator": "Exists"}
TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
VOLUME = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
MOUNT = {"name": "data", "mountPath": "/data"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, TaskSettings()),
        (vars(dsl.TaskConfig()), TaskSettings()),
        (vars(dsl.TaskConfig(env=[], node_selector={}, volumes=[])), TaskSettings()),
        (
            vars(
                dsl.TaskConfig(
                    resources=RESOURCES,
                    affinity=AFFINITY,
                    node_selector={"disk": "ssd"},
                    tolerations=[TOLERATION],
                    env=[{"name": "MODE", "value": "fast"}, TOKEN],
                    volumes=[VOLUME],
                    volume_mounts=[MOUNT],
                )
            ),
            TaskSettings(
                RESOURCES,
                {"disk": "ssd"},
                (TOLERATION,),
                AFFINITY,
                ({"name": "MODE", "value": "fast"}, TOKEN),
                (VOLUME,),
                (MOUNT,),
            ),
        ),
    ],
)
def test_fields_of_task_config_are_read_unchanged(config, expected):
    assert read_task_settings(config) == expected


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"env": {"KEY": "hidden"}}, "env is not a list of dicts, each with a name"),
        ({"env": [{"value": "hidden"}]}, "env is not a list of dicts, each with a name"),
        ({"volumes": ["hidden"]}, "volumes is not a list of dicts, each with a name"),
        ({"tolerations": ["hidden"]}, "tolerations is not a list of dicts"),
        ({"affinity": [{"hidden": 1}]}, "affinity is not a dict"),
        ({"node_selector": "hidden"}, "node_selector is not a dict"),
        ({"resources": []}, "resources is not a dict"),
    ],
)
def test_an_invalid_field_of_task_config_is_named_without_its_value(config, error):
    with pytest.raises(ValueError, match=re.escape(f"task_config: {error}")) as refusal:
        read_task_settings(config)
    assert "hidden" not in str(refusal.value)
