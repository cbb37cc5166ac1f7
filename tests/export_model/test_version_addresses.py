import pytest

from kfp_distributed.components.model_versions.addresses import (
    ModelAddress,
    check_alias,
    parse_alias_address,
    parse_model_address,
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://models/digits/3", ModelAddress("s3://models", "digits", 3)),
        ("models/digits/3/", ModelAddress("s3://models", "digits", 3)),
        ("s3://models/team-a/digits@production", ModelAddress("s3://models/team-a", "digits", alias="production")),
        ("s3://models/digits", ModelAddress("s3://models", "digits")),
        ("s3://models/digits@latest?region=eu", ModelAddress("s3://models?region=eu", "digits", alias="latest")),
        ("s3://models/7", ModelAddress("s3://models", "7")),
        ("s3://models/7/3", ModelAddress("s3://models", "7", 3)),
        ("/srv/models/digits/12", ModelAddress("/srv/models", "digits", 12)),
        ("./digits@a-1", ModelAddress(".", "digits", alias="a-1")),
        ("/digits", ModelAddress("/", "digits")),
        ("file:///srv/digits@x", ModelAddress("file:///srv", "digits", alias="x")),
    ],
)
def test_addresses(address, expected):
    assert parse_model_address(address) == expected


@pytest.mark.parametrize("address", ["", "models", "s3://models", "s3://models/", "s3://models/di gits", "s3://m/a@B"])
def test_wrong_addresses(address):
    with pytest.raises(ValueError, match="is not the address of a model or a version: give ROOT/MODEL"):
        parse_model_address(address)


def test_an_error_shows_no_password():
    with pytest.raises(ValueError, match=r"^'models/a b' is not the address"):
        parse_model_address("s3://user:secret@models/a b")


@pytest.mark.parametrize(
    "uri", ["s3://models/digits/3", "s3://user@models", "s3://b/run/model", "/a@b/model", "s3://b/a@B", "s3://b/@a", ""]
)
def test_other_addresses_have_no_alias(uri):
    assert parse_alias_address(uri) is None


def test_names_of_aliases():
    for name in ("production", "a", "v-2", "a" * 63):
        check_alias(name)


@pytest.mark.parametrize("name", ["", "Production", "3", "-a", "a_b", "a/b", "a" * 64, "a\n", "latest"])
def test_wrong_names_of_aliases(name):
    with pytest.raises(ValueError, match=f"^alias {name!r}".replace("\\", r"\\")):
        check_alias(name)
