import dataclasses
import re

import pytest

from kfp_distributed.components.train.describe.distributions import KEYS, parse_distribution, types_of
from kfp_distributed.components.train.describe.specification import DistributionSpecification


def as_dict(specification):
    """Return a specification as a JSON dict with all keys of its type, including defaults."""
    entries = {}
    for name in KEYS:
        value = getattr(specification, name)
        if name.endswith("_timeout"):
            value = value or "unlimited"
        elif name == "node_selector":
            value = dict(value)
        elif name in ("tolerations", "volumes"):
            value = [dict(entry) for entry in value]
        if specification.distribution_type in types_of(name) and value is not None:
            entries[name] = value
    return entries


TYPES = ("Job", "MPI", "TF", "PyTorch")

DEFAULTS = DistributionSpecification(
    distribution_type="Job",
    number_of_workers=1,
    worker_cpus=None,
    worker_memory=None,
    worker_gpus=0,
    worker_gpu_memory=None,
    gpu_resource="nvidia.com/gpu",
    launcher_cpus=None,
    launcher_memory=None,
    number_of_parameter_servers=0,
    ps_cpus=None,
    ps_memory=None,
    evaluator=False,
    slots_per_worker=1,
    min_workers=None,
    max_workers=None,
    node_selector=(),
    tolerations=(),
    shared_memory=None,
    volumes=(),
    queue_name=None,
    required_topology=None,
    preferred_topology=None,
    priority_class=None,
    scheduler_name=None,
    gang_scheduling=False,
    operator="auto",
    tensorboard=False,
    restart_limit=3,
    preemption_limit=None,
    termination_grace_seconds=30,
    keep_job=False,
    queue_timeout=None,
    scheduling_timeout=600,
    image_pull_timeout=1200,
    install_timeout=1800,
    start_timeout=600,
    silence_timeout=None,
    progress_timeout=None,
    running_timeout=None,
    total_timeout=None,
    launcher_lost_timeout=600,
)


def defaults_but(distribution_type="Job", **changed):
    return dataclasses.replace(DEFAULTS, distribution_type=distribution_type, **changed)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, defaults_but()),
        ({}, defaults_but()),
        ("", defaults_but()),
        ("{}", defaults_but()),
        ({"number_of_workers": "1.0", "worker_cpus": 1.0}, defaults_but(worker_cpus="1")),
        (
            {"distribution_type": "TF", "worker_cpus": "500m", "worker_memory": "1.5Gi", "worker_gpus": 2},
            defaults_but(
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
            defaults_but(
                "TF", number_of_workers=3, number_of_parameter_servers=3, worker_memory="2Gi", ps_memory="1Gi"
            ),
        ),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": "0.0", "worker_cpus": 4, "evaluator": "True"},
            defaults_but("TF", number_of_workers=2, worker_cpus="4", evaluator=True),
        ),
        (
            {"distribution_type": "MPI", "worker_gpus": 4.0, "launcher_memory": "1e9"},
            defaults_but("MPI", number_of_workers=2, worker_gpus=4, slots_per_worker=4, launcher_memory="1G"),
        ),
        (
            '{"distribution_type": "PyTorch", "number_of_workers": 4, "min_workers": 2}',
            defaults_but("PyTorch", number_of_workers=4, min_workers=2, max_workers=4),
        ),
        (
            {"distribution_type": "MPI", "number_of_workers": 4, "min_workers": "2.0"},
            defaults_but("MPI", number_of_workers=4, min_workers=2, max_workers=4),
        ),
        (
            {"distribution_type": "PyTorch", "max_workers": "8", "evaluator": None, "ps_cpus": ""},
            defaults_but("PyTorch", number_of_workers=2, min_workers=2, max_workers=8),
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
            defaults_but(
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
def test_a_dict_is_parsed_to_a_specification(spec, expected):
    assert parse_distribution(spec) == expected


def volumes(**volume):
    return {"volumes": [{"name": "d", "path": "/d"} | volume]}


@pytest.mark.parametrize(
    ("spec", "entry", "parts"),
    [
        ([1], "distribution_specification = [1]", ("dict", "JSON")),
        (2.0, "distribution_specification = 2.0", ("dict", "JSON")),
        (b"{}", "distribution_specification = b'{}'", ("dict", "JSON")),
        ("[]", "distribution_specification = '[]'", ("dict", "JSON")),
        ("{'a': 1}", "distribution_specification = \"{'a': 1}\"", ("dict", "JSON", "double quotes: line 1 column 2")),
        ({"distribution_type": "tf"}, "distribution_type = 'tf'", ("Job, MPI, TF, PyTorch",)),
        ({"distribution_type": "PyTorchJob"}, "'PyTorchJob'", ("Job, MPI, TF, PyTorch",)),
        ({"distribution_type": "job "}, "'job '", ("Job, MPI, TF, PyTorch",)),
        ({"distribution_type": ["TF"]}, "distribution_type = ['TF']", ("Job, MPI, TF, PyTorch",)),
        ({"worker_cpu": 4}, "'worker_cpu' = 4", ("did you mean worker_cpus?",)),
        ({"numberOfWorkers": 4}, "'numberOfWorkers' = 4", ("did you mean number_of_workers",)),
        ({"workers": 4}, "'workers' = 4", ("number_of_workers or min_workers or max_workers?",)),
        ({"zzz": None}, "'zzz' = None", ("distribution_type, number_of_workers,",)),
        ({2: 4}, "2 = 4", ("distribution_type, number_of_workers,",)),
        ({None: 4}, "None = 4", ("distribution_type, number_of_workers,",)),
        ({"evaluator": False}, "evaluator = False", ("a key of TF, not of Job", "remove it")),
        (
            {"distribution_type": "TF", "slots_per_worker": 1},
            "slots_per_worker = 1",
            ("a key of MPI and PyTorch, not of TF", "remove it"),
        ),
        ({"gang_scheduling": True}, "gang_scheduling = True", ("a key of MPI, TF and PyTorch, not of Job",)),
        ({"number_of_workers": 2.5}, "number_of_workers = 2.5", ("1 to 10000",)),
        ({"number_of_workers": True}, "number_of_workers = True", ("1 to 10000",)),
        ({"number_of_workers": "2"}, "number_of_workers = 2", ("Job", "distribution_type")),
        (
            {"distribution_type": "PyTorch", "number_of_workers": 3, "min_workers": "4"},
            "min_workers = 4",
            ("number_of_workers, 3",),
        ),
        ({"distribution_type": "PyTorch", "max_workers": 1}, "max_workers = 1", ("number_of_workers, 2",)),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": 0, "ps_cpus": 1},
            "ps_cpus = '1'",
            ("number_of_parameter_servers is 0", "remove it"),
        ),
        (
            {"distribution_type": "TF", "number_of_parameter_servers": 0, "launcher_memory": "1Gi"},
            "launcher_memory = '1Gi'",
            ("number_of_parameter_servers is 0", "remove it"),
        ),
        (
            {"queue_name": "team-a", "preferred_topology": "zone", "required_topology": "rack"},
            "preferred_topology = 'zone'",
            ("required_topology", "remove one"),
        ),
        ({"queue_name": "q", "required_topology": "a/b/c"}, "required_topology = 'a/b/c'", ("key of a node label",)),
        ({"evaluator": 1, "distribution_type": "TF"}, "evaluator = 1", ("true or false",)),
        ({"gpu_resource": "gpu"}, "gpu_resource = 'gpu'", ("extended resource", "nvidia.com/gpu")),
        ({"queue_name": "Team A"}, "queue_name = 'Team A'", ("name of a Kubernetes object", "63")),
        ({"queue_name": "q" * 64}, "queue_name = 'qqq", ("name of a Kubernetes object", "63")),
        ({"node_selector": {"zone": 2}}, "node_selector = {'zone': 2}", ("zone = 2", "label", "63 characters")),
        ({"node_selector": {"a/b/c": "x"}}, "node_selector = {'a/b/c': 'x'}", ("key = 'a/b/c'", "key of a label")),
        ({"tolerations": {"key": "a"}}, "tolerations = {'key': 'a'}", ("list", "Exists", "NoExecute")),
        ({"tolerations": [{"key": "a"}, 3]}, "tolerations = [{'key': 'a'}, 3]", ("list of tolerations",)),
        (
            {"tolerations": [{"name": "a"}]},
            "tolerations = [{'name': 'a'}]",
            ("'name' = 'a'", "key, operator, value, effect, tolerationSeconds"),
        ),
        ({"tolerations": [{"value": "a"}]}, "tolerations = [{'value': 'a'}]", ("key", "Exists")),
        ({"tolerations": [{"operator": "Exists", "value": "a"}]}, "tolerations = [{", ("Exists and no value",)),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerations = [{", ("effect NoExecute",)),
        (
            {"tolerations": [{"key": "a", "effect": "noschedule"}]},
            "effect = 'noschedule'",
            ("NoSchedule, PreferNoSchedule, NoExecute",),
        ),
        ({"volumes": {"name": "d", "path": "/d"}}, "volumes = {'name': 'd', 'path': '/d'}", ("list", "name and path")),
        ({"volumes": [{"name": "d"}]}, "volumes = [{'name': 'd'}]", ("name and path",)),
        ({"volumes": [{"path": "/d"}]}, "volumes = [{'path': '/d'}]", ("name and path",)),
        (volumes(storage_class="nfs"), "volumes = [{", ("storage_class require size",)),
        (volumes(claim="c"), "'claim' = 'c'", ("name, path, read_only, size, access_mode, storage_class",)),
        (volumes(path="d"), "path = 'd'", ("absolute path", "/kfp-distributed")),
        (volumes(path="/kfp-distributed/work"), "path = '/kfp-distributed/work'", ("outside of /kfp-distributed",)),
        (volumes(path="/a/../kfp-distributed"), "path = '/a/../kfp-distributed'", ("absolute path",)),
        (volumes(size=10), "size = 10", ("1Mi to 1Ei",)),
        (volumes(size="1Gi", access_mode="RWX"), "access_mode = 'RWX'", ("ReadWriteMany, ReadWriteOnce",)),
        ({"volumes": [{"name": "a", "path": "/d"}, {"name": "b", "path": "/d"}]}, "volumes = [", ("same path",)),
    ],
)
def test_an_error_names_the_key_its_value_and_what_is_allowed(spec, entry, parts):
    with pytest.raises(ValueError, match=re.escape(entry)) as refusal:
        parse_distribution(spec)
    assert str(refusal.value).startswith("distribution_specification")
    assert [part for part in parts if part not in str(refusal.value)] == []


@pytest.mark.takes(7)
@pytest.mark.parametrize("key", KEYS)
def test_a_deeply_nested_value_is_refused_with_a_short_message(key):
    deep = []
    for _ in range(20_000):
        deep = [deep]
    for value in (deep, "[" * 20_000, '{"a":' * 20_000, 10**20_000, "x" * 1_000_000):
        with pytest.raises(ValueError, match=key) as refused:
            parse_distribution({key: value})
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("distribution_type", "key"), [(name, key) for name in TYPES for key in KEYS])
def test_a_key_is_only_accepted_by_its_distribution_types(distribution_type, key):
    valid_values = {
        "distribution_type": distribution_type,
        "number_of_workers": 1,
        "evaluator": "true",
        "keep_job": "true",
        "gpu_resource": "amd.com/gpu",
        "node_selector": {"zone": "a"},
        "tolerations": [{"key": "a"}],
        "volumes": [{"name": "data", "path": "/data"}],
        "gang_scheduling": "true",
        "operator": "trainer",
        "tensorboard": "true",
        "termination_grace_seconds": "5",
    }
    default = "1Gi" if key.endswith("memory") else "name" if key.endswith(("name", "class")) else "2"
    value = valid_values.get(key, default)
    spec = {"distribution_type": distribution_type, "max_workers": 2, key: value}
    if key != "max_workers" and distribution_type != "PyTorch":
        del spec["max_workers"]
    if distribution_type in types_of(key):
        assert key in as_dict(parse_distribution(spec))
    else:
        types = " and ".join(types_of(key)).replace(" and ", ", ", len(types_of(key)) - 2)
        error = f"{key} = {value!r} is a key of {types}, not of {distribution_type}"
        with pytest.raises(ValueError, match=re.escape(error)):
            parse_distribution(spec)


def test_a_specification_is_frozen_and_validates_itself():
    spec = parse_distribution({"distribution_type": "PyTorch", "min_workers": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.number_of_workers = 3
    with pytest.raises(ValueError, match="max_workers = 2 is less than number_of_workers, 3"):
        dataclasses.replace(spec, number_of_workers=3)


@pytest.mark.parametrize(
    ("value", "limit"), [(None, None), ("", None), ("unlimited", None), (0, 0), ("3", 3), (3.0, 3)]
)
def test_preemption_limit_is_a_count_or_unlimited(value, limit):
    assert parse_distribution({"preemption_limit": value}).preemption_limit == limit


@pytest.mark.parametrize(("value", "seconds"), [(None, 30), (5, 5), ("90", 90), ("2m", 120), ("1h", 3600), (60.0, 60)])
def test_termination_grace_seconds_are_whole_seconds(value, seconds):
    parsed = parse_distribution({"termination_grace_seconds": value}).termination_grace_seconds
    assert (parsed, type(parsed)) == (seconds, int)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("preemption_limit", -1),
        ("preemption_limit", "never"),
        ("termination_grace_seconds", 4),
        ("termination_grace_seconds", 30.5),
        ("termination_grace_seconds", "unlimited"),
    ],
)
def test_other_limits_of_preemptions_are_refused(key, value):
    with pytest.raises(ValueError, match=rf"^distribution_specification: {key} = .* is not "):
        parse_distribution({key: value})
