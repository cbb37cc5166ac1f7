"""Numbers and aliases right after objects were deleted. SeaweedFS lists the folders of deleted objects for minutes."""

import pytest
from seaweedfs import on_each_store

from kfp_distributed.components.model_versions.aliases import VersionRefused, read_aliases, set_alias
from kfp_distributed.components.model_versions.claims import Claim, hold
from kfp_distributed.components.model_versions.deletion import delete_version
from kfp_distributed.components.model_versions.inspection import list_models, list_versions
from kfp_distributed.storage.opener import open_store

pytestmark = on_each_store


def test_an_alias_is_set_right_after_the_claim_of_the_export_is_deleted(bucket, make_model, export):
    export(make_model(), bucket, aliases=["production"])
    store = open_store(f"s3://{bucket}")
    set_alias(store, "digits", 1, "staging")
    assert read_aliases(store, "digits") == {"production": 1, "staging": 1}


def test_a_number_is_used_again_right_after_a_failed_export(bucket, make_model, export):
    store = open_store(f"s3://{bucket}")
    with hold(store, Claim("digits", 4), "run-1"):
        store.write("digits/4/variables/variables.index", b"index")
    assert store.list() == []
    assert export(make_model(), bucket, version=4).version == 4


def test_a_deleted_version_is_not_listed_and_does_not_exist(bucket, make_model, export):
    for name in ("first", "second"):
        export(make_model(name), bucket)
    store = open_store(f"s3://{bucket}")
    delete_version(store, "digits", 2)
    assert [version.version for version in list_versions(store, "digits")] == [1]
    with pytest.raises(VersionRefused, match="digits/2 does not exist"):
        set_alias(store, "digits", 2, "production")
    delete_version(store, "digits", 1)
    assert (list_versions(store, "digits"), list_models(store)) == ([], [])
