"""The secrets of addresses in texts. Those of an address alone are tested with the sources."""

import pytest
import requests

from kfp_distributed.library.address_secrets import mask_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no address? none", "no address? none"),
        ("git+https://example.org/a.git@v1", "git+https://example.org/a.git@v1"),
        ("get https://me:s3cret@example.org/a?sig=s3cret now", "get https://***@example.org/a?*** now"),
        ("'https://example.org/a.whl?sig=s3cret#sha256=0' other", "'https://example.org/a.whl?***#sha256=0' other"),
        ("got 'o?x=s3cret'", "got 'o?***'"),
    ],
)
def test_secrets_are_masked_in_a_text(text, expected):
    assert mask_secrets(text) == expected


def test_an_error_of_requests_has_an_address_without_a_scheme():
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("https://127.0.0.1:1/repos/a/b?X-Amz-Credential=AKIA&X-Amz-Signature=s3cret", timeout=9)
    assert "/repos/a/b?X-Amz-Credential=AKIA&X-Amz-Signature=s3cret" in str(caught.value)
    masked = mask_secrets(str(caught.value))
    assert "with url: /repos/a/b?*** (Caused by" in masked
