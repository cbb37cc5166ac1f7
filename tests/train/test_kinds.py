import re
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest

from kfp_distributed.components.train.describe.distributions import KEYS, parse_distribution
from kfp_distributed.components.train.describe.value_kinds import shown

CPUS = {
    2: "2",
    numpy.float64(4): "4",
    "2.0": "2",
    "500m": "500m",
    0.1: "100m",
    "0.5": "500m",
    "1500m": "1500m",
    "2000m": "2",
    "1e3": "1000",
    0.3333333333: "334m",
    numpy.float32(0.5): "500m",
    numpy.int64(3): "3",
    Fraction(3, 2): "1500m",
    10_000: "10000",
}
MEMORY = {
    "512Mi": "512Mi",
    "4Gi": "4Gi",
    "4096Mi": "4Gi",
    "1.5Gi": "1536Mi",
    "4G": "4G",
    "1e9": "1G",
    "1048576": "1Mi",
    float(2**33): "8Gi",
    "0.1Gi": "107374183",  # Rounded up to bytes.
    "1048577.0": "1048577",
    "1Ei": "1Ei",
}
SECONDS = {90: 90.0, "90": 90.0, "90s": 90.0, "10m": 600.0, "2h": 7200.0, "1.5h": 5400.0, 0.1: 0.1, "unlimited": None}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("worker_cpus", *pair) for pair in CPUS.items()]
    + [("worker_memory", *pair) for pair in MEMORY.items()]
    + [("total_timeout", *pair) for pair in SECONDS.items()],
)
def test_quantities_and_times_are_normalized(key, value, expected):
    assert getattr(parse_distribution({key: value}), key) == expected


NOT_NUMBERS = [
    *(
        "8 cores",
        "-1",
        "1e3x",
        ".5",
        "5.",
        "1_000",
        "1,5",
        "+2",
        "--1",
        "\u0662",
        "\uff12",
        "0x10",
        "1/2",
        "nan",
        "inf",
    ),
    *("1e400", "9" * 5000, "1" + "0" * 60, "  ", "true", "None", "1e", "1e+", "e5", "\ud800", "1m1", "1mm", "1e9999"),
    *(-1, 1e300, float("nan"), float("inf"), float("-inf"), 10**400, 10**5000, -(10**5000), True, False),
    *(b"2", bytearray(b"2"), Decimal(2), 2 + 0j, (), [], [[2]], {}, {"cpu": 2}, object, range(3), numpy.array([1, 2])),
    *(numpy.float64("nan"), numpy.float32("inf"), numpy.bool_(True), Fraction(10**400), Fraction(1, 3000)),
]
ZEROS = ["0", "0.0", 0, -0.0]
INVALID = {
    "worker_cpus": [*NOT_NUMBERS, *ZEROS, "1Ki", "1k", "4Gi", "0.5m", 0.0001, 10_001, "10001000m"],
    "worker_memory": [*NOT_NUMBERS, *ZEROS, 4, "4", "512m", "512", "4GB", "4gi", "1Ki", "2Ei", "1e3Ki"],
    "total_timeout": [*NOT_NUMBERS, *ZEROS, "5 min", "1d", "1ms", "9000h", 1e9, "10M", "Unlimited", "0s"],
    "number_of_workers": [*NOT_NUMBERS, *ZEROS, "1m", "1k", 2.5, "2.5", 10_001, "\uff11"],
}


@pytest.mark.parametrize("value", [2.5, "2.5", Fraction(5, 2)])
def test_a_fraction_is_refused_where_an_integer_is_required(value):
    with pytest.raises(ValueError, match=f"number_of_workers = {re.escape(shown(value))} is not .* from 1 to 10000$"):
        parse_distribution({"number_of_workers": value})


@pytest.mark.parametrize(
    ("key", "similar"),
    [
        ("number_of_wrokers", "number_of_workers or number_of_parameter_servers"),
        ("worker_gpu", "worker_gpus or worker_gpu_memory"),
        ("num_worker", "min_workers or max_workers"),
    ],
)
def test_an_error_suggests_at_most_two_similar_keys(key, similar):
    with pytest.raises(ValueError, match=re.escape(f"did you mean {similar}?")):
        parse_distribution({key: 2})


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in INVALID.items() for value in values], ids=shown
)
def test_an_invalid_quantity_is_refused(key, value):
    with pytest.raises(ValueError, match=re.escape(f"{key} = {shown(value)} is not {KEYS[key].kind.allowed}")):
        parse_distribution({key: value})
