"""Exports as processes that race for a number, or are killed, against real S3 servers."""

import pytest
from export_race_checks import (
    TWO_SERVED,
    check_a_race,
    check_a_race_for_one_version,
    check_killed_deletions,
    check_kills,
    store_model,
)
from seaweedfs import on_each_store

pytestmark = [on_each_store, pytest.mark.takes(100)]


def test_exports_that_begin_together_get_different_numbers(bucket, tmp_path):
    check_a_race(store_model(tmp_path, bucket), bucket)


def test_one_of_the_exports_of_one_version_wins(bucket, tmp_path):
    check_a_race_for_one_version(store_model(tmp_path, bucket), bucket)


@pytest.mark.parametrize("files", [TWO_SERVED, ("model.safetensors",)])
def test_exports_that_are_killed_at_random_moments_leave_no_half_version(bucket, tmp_path, files):
    check_kills(store_model(tmp_path, bucket, files), bucket)


def test_deletions_that_are_killed_or_race_with_an_alias_leave_no_half_version(bucket, tmp_path):
    check_killed_deletions(store_model(tmp_path, bucket), bucket)
