"""Properties of `parse_distribution`: any dict at all, with KFP's numbers, is read or refused by a sentence."""

import json
import re

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.test_specification import TYPES, plain

from kfp_distributed.components.train.kinds import shown
from kfp_distributed.components.train.specification import KEYS, parse_distribution

# Examples take some 0.1 ms each; a loaded machine may take any time for one of them.
many = settings(max_examples=300, deadline=None)


def as_kfp_may_hand_on(value, number):
    """KFP turns every number of a dict into a float or a text."""
    if isinstance(value, dict):
        return {key: as_kfp_may_hand_on(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [as_kfp_may_hand_on(each, number) for each in value]
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


MANGLINGS = {
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
    st.integers(2**20, 2**53),  # beyond it a float is another number
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
TRUTHS = st.sampled_from([True, False, "true", "True", "false", "False"])
VOLUME = st.fixed_dictionaries(
    {"name": NAMES, "path": st.from_regex(r"/[a-z]{1,9}(/[a-z.]{0,5}[a-z])?", fullmatch=True), "size": MEMORY_VALUES},
    optional={
        "read_only": TRUTHS,
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
GANG = {"gang_scheduling": TRUTHS}
OF_TYPE = {
    "Job": ({}, {}),
    "MPI": ({"number_of_workers": st.just(50)}, SIZES | GANG | ELASTIC),
    "PyTorch": ({"number_of_workers": st.just(50)}, SIZES | GANG | ELASTIC),
    "TF": (
        {"number_of_parameter_servers": COUNTS},
        SIZES
        | GANG
        | {"number_of_workers": COUNTS, "ps_cpus": CPU_VALUES, "ps_memory": MEMORY_VALUES, "evaluator": TRUTHS},
    ),
}
OF_ALL = {
    "worker_cpus": CPU_VALUES,
    "worker_memory": MEMORY_VALUES,
    "worker_gpus": st.integers(0, 10_000),
    "gpu_resource": st.just("amd.com/gpu"),
    "node_selector": st.dictionaries(NAMES, NAMES | st.just("2"), max_size=3),
    "tolerations": st.lists(TOLERATION, max_size=2),
    "shared_memory": MEMORY_VALUES,
    "volumes": st.lists(VOLUME, max_size=2, unique_by=lambda volume: volume["path"]),
    "queue_name": NAMES,
    "priority_class": NAMES,
    "scheduler_name": NAMES,
    "tensorboard": TRUTHS,
    "restart_limit": st.integers(0, 10_000),
    "keep_job": TRUTHS,
} | {key: TIME_VALUES for key in KEYS if key.endswith("_timeout")}


def valid(chosen):
    required, optional = OF_TYPE[chosen]
    required = {"distribution_type": st.just(chosen)} | required
    return st.fixed_dictionaries(required, optional=OF_ALL | optional)


VALID = st.sampled_from(TYPES).flatmap(valid)


@many
@given(VALID, st.sampled_from(sorted(MANGLINGS)))
def test_kfp_changes_nothing_on_the_way(spec, mangling):
    expected = parse_distribution(spec)
    assert parse_distribution(as_kfp_may_hand_on(spec, MANGLINGS[mangling])) == expected
    written = plain(expected)
    assert parse_distribution(as_kfp_may_hand_on(written, MANGLINGS[mangling])) == expected
    assert parse_distribution(json.dumps(written)) == expected
    assert plain(parse_distribution(written)) == written
    assert {expected: 1}[parse_distribution(json.loads(json.dumps(written)))] == 1


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


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(TYPES), st.sampled_from(sorted(KEYS)), ANYTHING)
def test_any_value_of_a_key_is_read_or_refused_by_name(chosen, key, value):
    spec = {"distribution_type": chosen, key: value}
    try:
        read = parse_distribution(spec)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"distribution_specification: {key} = ")
        assert "\n" not in message
        assert len(message) < 500
        if f"{shown(value)} is not {KEYS[key].allowed}" not in message and "is a key of" not in message:
            assert key in ("number_of_workers", "min_workers", "max_workers", *SIZES, "ps_cpus", "ps_memory")
    else:
        assert parse_distribution(as_kfp_may_hand_on(plain(read), MANGLINGS['"2.0"'])) == read


@many
@given(
    ANYTHING | st.text().map(json.dumps) | st.dictionaries(st.sampled_from([*KEYS, "worker", "ps", None, 3]), ANYTHING)
)
def test_anything_at_all_is_read_or_refused(spec):
    try:
        read = parse_distribution(spec)
    except ValueError as error:
        assert re.match("distribution_specification(: .+ = .+| = .+)", str(error))  # noqa: PT017 - either way is right
    else:
        assert parse_distribution(plain(read)) == read


@many
@given(VALID, st.text(min_size=1) | st.integers() | st.none() | st.binary())
def test_an_unknown_key_never_passes(spec, key):
    if key in KEYS:
        return
    with pytest.raises(ValueError, match=re.escape(f"{shown(key)} = 1 is not a known key; ")):
        parse_distribution({**spec, key: 1})
