"""Properties of `parse_distribution`: it parses or refuses any dict, also after KFP has converted the numbers."""

import json
import re

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.test_specification import TYPES, as_dict

from kfp_distributed.components.train.describe.distributions import KEYS, parse_distribution
from kfp_distributed.components.train.describe.value_kinds import shown

pytestmark = pytest.mark.takes(6)

# An example takes about 0.1 ms. No deadline: on a busy machine one example may take much longer.
many = settings(max_examples=150)


def convert_numbers(value, conversion):
    """Convert all numbers of a nested value, as KFP converts those of a dict to floats or strings."""
    if isinstance(value, dict):
        return {key: convert_numbers(item, conversion) for key, item in value.items()}
    if isinstance(value, list):
        return [convert_numbers(item, conversion) for item in value]
    return conversion(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


CONVERSIONS = {
    "unchanged": lambda number: number,
    "2.0": float,
    '"2.0"': lambda number: str(float(number)),
    '"2"': lambda number: str(int(number)) if number == int(number) else str(number),
    "numpy": numpy.float64,
}


COUNTS = st.integers(1, 10_000)
MILLI_CPUS = st.integers(1, 10_000_000)
CPU_VALUES = st.one_of(
    MILLI_CPUS.map("{}m".format), MILLI_CPUS.map(lambda milli: milli / 1000), COUNTS, COUNTS.map(str)
)
MEMORY_VALUES = st.one_of(
    st.integers(2**20, 2**53),  # A float cannot represent all larger integers.
    st.builds("{}{}".format, st.integers(2, 900), st.sampled_from(["M", "Mi", "G", "Gi", "T", "Ti"])),
)
TIME_VALUES = st.one_of(
    st.none(),
    st.just("unlimited"),
    st.floats(0.1, 3e7),
    st.integers(1, 3 * 10**7),
    st.builds("{}{}".format, st.integers(1, 5000), st.sampled_from("smh")),
)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
TOLERATION = st.fixed_dictionaries(
    {"key": NAMES, "effect": st.just("NoExecute")},
    optional={
        "value": NAMES | st.just("2.0"),
        "operator": st.just("Equal"),
        "tolerationSeconds": st.integers(0, 10**9),
    },
)
BOOLEANS = st.sampled_from([True, False, "true", "True", "false", "False"])
VOLUME = st.fixed_dictionaries(
    {"name": NAMES, "path": st.from_regex(r"/[a-z]{1,9}(/[a-z.]{0,5}[a-z])?", fullmatch=True), "size": MEMORY_VALUES},
    optional={
        "read_only": BOOLEANS,
        "storage_class": NAMES,
        "access_mode": st.sampled_from(["ReadWriteMany", "ReadWriteOnce"]),
    },
)
ELASTIC = {
    "slots_per_worker": COUNTS,
    "min_workers": st.integers(1, 50),
    "max_workers": st.integers(50, 10_000),
}
SIZES = {"launcher_cpus": CPU_VALUES, "launcher_memory": MEMORY_VALUES}
GANG = {"gang_scheduling": BOOLEANS, "operator": st.sampled_from(("auto", "training-operator", "trainer"))}
KEYS_OF_TYPE = {
    "Job": ({}, {}),
    "MPI": ({"number_of_workers": st.just(50)}, SIZES | GANG | ELASTIC),
    "PyTorch": ({"number_of_workers": st.just(50)}, SIZES | GANG | ELASTIC),
    "TF": (
        {"number_of_parameter_servers": COUNTS},
        SIZES
        | GANG
        | {"number_of_workers": COUNTS, "ps_cpus": CPU_VALUES, "ps_memory": MEMORY_VALUES, "evaluator": BOOLEANS},
    ),
}
KEYS_OF_ALL_TYPES = {
    "worker_cpus": CPU_VALUES,
    "worker_memory": MEMORY_VALUES,
    "worker_gpus": st.integers(0, 10_000),
    "worker_gpu_memory": MEMORY_VALUES,
    "gpu_resource": st.just("amd.com/gpu"),
    "node_selector": st.dictionaries(NAMES, NAMES | st.just("2"), max_size=3),
    "tolerations": st.lists(TOLERATION, max_size=2),
    "shared_memory": MEMORY_VALUES,
    "volumes": st.lists(VOLUME, max_size=2, unique_by=lambda volume: volume["path"]),
    "queue_name": NAMES,
    "priority_class": NAMES,
    "scheduler_name": NAMES,
    "tensorboard": BOOLEANS,
    "restart_limit": st.integers(0, 10_000),
    "preemption_limit": st.integers(0, 10_000) | st.just("unlimited"),
    "termination_grace_seconds": st.integers(5, 86_400),
    "keep_job": BOOLEANS,
} | {key: TIME_VALUES for key in KEYS if key.endswith("_timeout")}


def valid(distribution_type):
    required, optional = KEYS_OF_TYPE[distribution_type]
    required = {"distribution_type": st.just(distribution_type)} | required
    return st.fixed_dictionaries(required, optional=KEYS_OF_ALL_TYPES | optional)


VALID = st.sampled_from(TYPES).flatmap(valid)


@many
@given(VALID, st.sampled_from(sorted(CONVERSIONS)))
def test_conversions_of_numbers_do_not_change_the_specification(spec, conversion):
    expected = parse_distribution(spec)
    assert parse_distribution(convert_numbers(spec, CONVERSIONS[conversion])) == expected
    entries = as_dict(expected)
    assert parse_distribution(convert_numbers(entries, CONVERSIONS[conversion])) == expected
    assert parse_distribution(json.dumps(entries)) == expected
    assert as_dict(parse_distribution(entries)) == entries
    assert {expected: 1}[parse_distribution(json.loads(json.dumps(entries)))] == 1


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(),
    st.sampled_from([10**18, 10**400, -(10**400), 2**63]),
    st.floats(),
    st.floats(width=32).map(numpy.float32),
    st.floats().map(numpy.float64),
    st.integers(-5, 5).map(numpy.int64),
    st.text(),
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.sampled_from(
        ["2", "2.0", "8 cores", "-1", "0", "1e3x", ".5", "1Ki", "1e400", "500m", "4Gi", "10m", "TF", "true"]
    ),
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?[a-zA-Z]{0,2}", fullmatch=True),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.text() | st.none() | st.integers(), inner, max_size=3),
        st.dictionaries(st.sampled_from(["key", "operator", "value", "effect", "tolerationSeconds"]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=600)
@given(st.sampled_from(TYPES), st.sampled_from(sorted(KEYS)), ANYTHING)
def test_any_value_of_a_key_is_parsed_or_refused_with_the_name_of_the_key(distribution_type, key, value):
    spec = {"distribution_type": distribution_type, key: value}
    try:
        parsed = parse_distribution(spec)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"distribution_specification: {key} = ")
        assert "\n" not in message
        assert len(message) < 500
        if f"{shown(value)} is not {KEYS[key].kind.allowed}" not in message and "is a key of" not in message:
            assert key in ("number_of_workers", "min_workers", "max_workers", *SIZES, "ps_cpus", "ps_memory")
    else:
        assert parse_distribution(convert_numbers(as_dict(parsed), CONVERSIONS['"2.0"'])) == parsed


@many
@given(
    ANYTHING | st.text().map(json.dumps) | st.dictionaries(st.sampled_from([*KEYS, "worker", "ps", None, 3]), ANYTHING)
)
def test_any_value_is_parsed_or_refused(spec):
    try:
        parsed = parse_distribution(spec)
    except ValueError as error:
        assert re.match("distribution_specification(: .+ = .+| = .+)", str(error))  # noqa: PT017 - both are valid
    else:
        assert parse_distribution(as_dict(parsed)) == parsed


@many
@given(VALID, st.text(min_size=1) | st.integers() | st.none() | st.binary())
def test_an_unknown_key_is_refused(spec, key):
    if key in KEYS:
        return
    with pytest.raises(ValueError, match=re.escape(f"{shown(key)} = 1 is not a known key; ")):
        parse_distribution({**spec, key: 1})
