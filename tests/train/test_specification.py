import dataclasses
import re

import pytest

from kfp_distributed.components.train.specification import KEYS, DistributionSpecification, parse_distribution


def plain(specification):
    """A specification as plain JSON, every default spelled out."""
    found = {}
    for name, kind in KEYS.items():
        value = getattr(specification, name)
        if name.endswith("_timeout"):
            value = value or "unlimited"
        elif name == "node_selector":
            value = dict(value)
        elif name in ("tolerations", "volumes"):
            value = [dict(each) for each in value]
        if specification.distribution_type in kind.types and value is not None:
            found[name] = value
    return found


TYPES = ("Job", "MPI", "TF", "PyTorch")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, DistributionSpecification()),
        ({}, DistributionSpecification()),
        ("", DistributionSpecification()),
        ("{}", DistributionSpecification()),
        ({"number_of_workers": "1.0", "worker_cpus": 1.0}, DistributionSpecification(worker_cpus="1")),
        (
            {"distribution_type": "TF", "worker_cpus": "500m", "worker_memory": "1.5Gi", "worker_gpus": 2},
            DistributionSpecification(
                "TF",
                number_of_workers=2,
                worker_cpus="500m",
                worker_memory="1536Mi",
                worker_gpus=2,
                number_of_parameter_servers=2,
                ps_cpus="500m",
                ps_memory="1536Mi",
            ),
        ),
        (
            {"distribution_type": "TF", "number_of_workers": 3, "ps_memory": "1Gi", "worker_memory": "2Gi"},
            DistributionSpecification(
                "TF", number_of_workers=3, number_of_parameter_servers=3, worker_memory="2Gi", ps_memory="1Gi"
            ),
        ),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": "0.0", "worker_cpus": 4, "evaluator": "True"},
            DistributionSpecification("TF", number_of_workers=2, worker_cpus="4", evaluator=True),
        ),
        (
            {"distribution_type": "MPI", "worker_gpus": 4.0, "launcher_memory": "1e9"},
            DistributionSpecification(
                "MPI", number_of_workers=2, worker_gpus=4, slots_per_worker=4, launcher_memory="1G"
            ),
        ),
        (
            '{"distribution_type": "PyTorch", "number_of_workers": 4, "min_workers": 2}',
            DistributionSpecification("PyTorch", number_of_workers=4, min_workers=2, max_workers=4),
        ),
        (
            {"distribution_type": "MPI", "number_of_workers": 4, "min_workers": "2.0"},
            DistributionSpecification("MPI", number_of_workers=4, min_workers=2, max_workers=4),
        ),
        (
            {"distribution_type": "PyTorch", "max_workers": "8", "evaluator": None, "ps_cpus": ""},
            DistributionSpecification("PyTorch", number_of_workers=2, min_workers=2, max_workers=8),
        ),
        (
            {
                "node_selector": {"zone": "b", "example.com/disk": ""},
                "tolerations": [
                    {"effect": "NoExecute", "key": "spot", "tolerationSeconds": "60.0", "value": None},
                    {"operator": "Exists"},
                ],
                "volumes": [
                    {"name": "data", "path": "/mnt/data", "read_only": "True"},
                    {"name": "scratch.1", "path": "/scratch", "size": "10.0Gi", "access_mode": "ReadWriteOnce"},
                ],
                "tensorboard": "True",
                "scheduler_name": "packing",
                "queue_name": "team-a",
                "shared_memory": 2**30,
                "silence_timeout": "unlimited",
                "total_timeout": "1.5h",
                "start_timeout": 90,
                "keep_job": "true",
            },
            DistributionSpecification(
                node_selector=(("example.com/disk", ""), ("zone", "b")),
                tolerations=(
                    (("effect", "NoExecute"), ("key", "spot"), ("tolerationSeconds", 60)),
                    (("operator", "Exists"),),
                ),
                volumes=(
                    (("name", "data"), ("path", "/mnt/data"), ("read_only", True)),
                    (("access_mode", "ReadWriteOnce"), ("name", "scratch.1"), ("path", "/scratch"), ("size", "10Gi")),
                ),
                tensorboard=True,
                scheduler_name="packing",
                queue_name="team-a",
                shared_memory="1Gi",
                silence_timeout=None,
                total_timeout=5400,
                start_timeout=90,
                keep_job=True,
            ),
        ),
    ],
)
def test_a_dict_becomes_the_whole_specification(spec, expected):
    assert parse_distribution(spec) == expected


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ([1], "distribution_specification = [1] is not a dict, or the JSON text of one"),
        (2.0, "distribution_specification = 2.0 is not a dict, or the JSON text of one"),
        (b"{}", "distribution_specification = b'{}' is not a dict, or the JSON text of one"),
        ("[]", "distribution_specification = '[]' is not a dict, or the JSON text of one"),
        (
            "{'a': 1}",
            "distribution_specification = \"{'a': 1}\" is not a dict, or the JSON text of one "
            "(Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        ),
        ({"distribution_type": "tf"}, "distribution_type = 'tf' is not one of Job, MPI, TF, PyTorch"),
        ({"distribution_type": "PyTorchJob"}, "'PyTorchJob' is not one of Job, MPI, TF, PyTorch"),
        ({"distribution_type": "job "}, "'job ' is not one of Job, MPI, TF, PyTorch"),
        ({"distribution_type": ["TF"]}, "distribution_type = ['TF'] is not one of"),
        ({"worker_cpu": 4}, "'worker_cpu' = 4 is not a known key; did you mean worker_cpus?"),
        ({"numberOfWorkers": 4}, "'numberOfWorkers' = 4 is not a known key; did you mean number_of_workers"),
        (
            {"workers": 4},
            "'workers' = 4 is not a known key; did you mean number_of_workers or min_workers or max_workers?",
        ),
        ({"zzz": None}, "'zzz' = None is not a known key; known keys: distribution_type, number_of_workers,"),
        ({2: 4}, "distribution_specification: 2 = 4 is not a known key; known keys: distribution_type,"),
        ({None: 4}, "distribution_specification: None = 4 is not a known key"),
        ({"evaluator": False}, "evaluator = False is a key of TF, not of Job; remove it"),
        (
            {"distribution_type": "TF", "slots_per_worker": 1},
            "slots_per_worker = 1 is a key of MPI and PyTorch, not of TF; remove it",
        ),
        ({"number_of_workers": 2.5}, "number_of_workers = 2.5 is not a whole number from 1 to 10000"),
        ({"number_of_workers": True}, "number_of_workers = True is not a whole number from 1 to 10000"),
        (
            {"number_of_workers": "2"},
            "number_of_workers = 2 is not 1, and a Job is one pod; choose another distribution_type",
        ),
        (
            {"distribution_type": "PyTorch", "number_of_workers": 3, "min_workers": "4"},
            "min_workers = 4 is more than number_of_workers, 3",
        ),
        ({"distribution_type": "PyTorch", "max_workers": 1}, "max_workers = 1 is less than number_of_workers, 2"),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": 0, "ps_cpus": 1},
            "ps_cpus = '1' has no use where number_of_parameter_servers is 0; remove it",
        ),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": 0, "launcher_memory": "1Gi"},
            "launcher_memory = '1Gi' has no use where number_of_parameter_servers is 0; remove it",
        ),
        ({"evaluator": 1, "distribution_type": "TF"}, "evaluator = 1 is not true or false"),
        ({"gpu_resource": "gpu"}, "gpu_resource = 'gpu' is not the name of an extended resource, such as"),
        (
            {"node_selector": {"zone": 2}},
            "node_selector = {'zone': 2} is not a dict of node labels, keys and values as text "
            "(zone = 2 is not a label's value: text of at most 63 characters)",
        ),
        ({"node_selector": {"a/b/c": "x"}}, "(key = 'a/b/c' is not a label's key)"),
        (
            {"tolerations": {"key": "a"}},
            "tolerations = {'key': 'a'} is not a list of tolerations: a key, or operator Exists and no value; "
            "tolerationSeconds with effect NoExecute alone",
        ),
        ({"tolerations": [{"key": "a"}, 3]}, "tolerations = [{'key': 'a'}, 3] is not a list of tolerations"),
        (
            {"tolerations": [{"name": "a"}]},
            "('name' = 'a' is not a known key; known keys: key, operator, value, effect, tolerationSeconds)",
        ),
        ({"tolerations": [{"value": "a"}]}, "[{'value': 'a'}] is not a list of tolerations: a key, or operator Exists"),
        ({"tolerations": [{"operator": "Exists", "value": "a"}]}, "is not a list of tolerations: a key, or operator"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerationSeconds with effect NoExecute alone"),
        (
            {"tolerations": [{"key": "a", "effect": "noschedule"}]},
            "(effect = 'noschedule' is not one of NoSchedule, PreferNoSchedule, NoExecute)",
        ),
        (
            {"volumes": {"name": "data", "path": "/data"}},
            "volumes = {'name': 'data', 'path': '/data'} is not a list of volumes, each with name and path; "
            "access_mode and storage_class with size alone",
        ),
        ({"volumes": [{"name": "data"}]}, "[{'name': 'data'}] is not a list of volumes, each with name and path"),
        ({"volumes": [{"path": "/data"}]}, "[{'path': '/data'}] is not a list of volumes, each with name and path"),
        (
            {"volumes": [{"name": "d", "path": "/d", "storage_class": "nfs"}]},
            "is not a list of volumes, each with name and path; access_mode and storage_class with size alone",
        ),
        (
            {"volumes": [{"claim": "data", "path": "/data"}]},
            "('claim' = 'data' is not a known key; known keys: name, path, read_only, size, access_mode, storage_class",
        ),
        (
            {"volumes": [{"name": "d", "path": "d"}]},
            "(path = 'd' is not an absolute path, without a slash at its end, outside /kfp-distributed)",
        ),
        ({"volumes": [{"name": "d", "path": "/kfp-distributed/work"}]}, "(path = '/kfp-distributed/work' is not an"),
        (
            {"volumes": [{"name": "d", "path": "/a/../kfp-distributed"}]},
            "is not an absolute path, without a slash at its end, outside",
        ),
        ({"volumes": [{"name": "d", "path": "/d", "size": 10}]}, "(size = 10 is not a size from 1Mi to 1Ei, such as"),
        (
            {"volumes": [{"name": "d", "path": "/d", "size": "1Gi", "access_mode": "RWX"}]},
            "(access_mode = 'RWX' is not one of ReadWriteMany, ReadWriteOnce)",
        ),
        (
            {"volumes": [{"name": "a", "path": "/data"}, {"name": "b", "path": "/data"}]},
            "(two have the same path)",
        ),
        ({"gang_scheduling": True}, "gang_scheduling = True is a key of MPI and TF and PyTorch, not of Job; remove it"),
        ({"queue_name": "Team A"}, "queue_name = 'Team A' is not the name of a Kubernetes object"),
        ({"queue_name": "q" * 64}, "is not the name of a Kubernetes object: at most 63 of a-z"),
    ],
)
def test_an_error_names_key_value_and_what_is_allowed(spec, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        parse_distribution(spec)


@pytest.mark.parametrize("key", KEYS)
def test_a_deep_value_is_refused_in_one_short_line(key):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "[" * 100_000, '{"a":' * 100_000, 10**100_000, "x" * 1_000_000):
        with pytest.raises(ValueError, match=key) as refused:
            parse_distribution({key: value})
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("chosen", "key"), [(chosen, key) for chosen in TYPES for key in KEYS])
def test_a_key_is_accepted_by_its_types_alone(chosen, key):
    good = {
        "distribution_type": chosen,
        "number_of_workers": 1,
        "evaluator": "true",
        "keep_job": "true",
        "gpu_resource": "amd.com/gpu",
        "node_selector": {"zone": "a"},
        "tolerations": [{"key": "a"}],
        "volumes": [{"name": "data", "path": "/data"}],
        "gang_scheduling": "true",
        "tensorboard": "true",
    }
    value = good.get(key, "1Gi" if key.endswith("memory") else "name" if key.endswith(("name", "class")) else "2")
    spec = {"distribution_type": chosen, "max_workers": 2, key: value}
    if key != "max_workers" and chosen != "PyTorch":
        del spec["max_workers"]
    if chosen in KEYS[key].types:
        assert key in plain(parse_distribution(spec))
    else:
        belongs = " and ".join(KEYS[key].types)
        with pytest.raises(ValueError, match=re.escape(f"{key} = {value!r} is a key of {belongs}, not of {chosen}")):
            parse_distribution(spec)


def test_a_specification_is_frozen_and_checks_itself():
    spec = parse_distribution({"distribution_type": "PyTorch", "min_workers": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.number_of_workers = 3
    with pytest.raises(ValueError, match="max_workers = 2 is less than number_of_workers, 3"):
        dataclasses.replace(spec, number_of_workers=3)
