"""Explains the errors of an S3 server: the cause, and what to do."""

import re

from minio.error import InvalidResponseError, S3Error
from urllib3.exceptions import HTTPError, SSLError

# Cause and advice by a pattern of the error's code or text. The first match counts.
_ADVICE = {
    "^ValueError: (invalid )?bucket name|InvalidBucketName": "this is no valid name of a bucket: 3 to 63 lower-case "
    "letters, digits, hyphens and dots, the first and the last a letter or a digit, no dot beside another or a hyphen, "
    "and no IP address",
    "NoSuchKey": "there is no such object, check its key",
    "NoSuchBucket": "there is no such bucket, create it or correct its name",
    "Inval.*Key|Signature|AccessDenied": "access denied, check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
    "(or the Secret with the keys) and the permissions of the account",
    "resolve|refused|timed out": "the server does not answer, check AWS_ENDPOINT_URL and that the server runs",
    "HeaderMalformed|PermanentRedirect": "the bucket is in another region, set AWS_REGION to {region}",
    "Skewed": "the clock of this machine differs from the server's, correct it",
    "SlowDown|too many [0-9]+ error": "the server is starting or overloaded, try again later",
    "StorageFull": "the object store is full, delete objects or enlarge its disk",
    "mismatch": "the server's certificate is for another host, check AWS_ENDPOINT_URL",
    "CERTIFICATE": "the server's certificate is not trusted, set AWS_CA_BUNDLE to a PEM file with its "
    "certificate authority",
    "SSLError": "the server does not use TLS, start AWS_ENDPOINT_URL with http://",
    "HTTPS server": "the server requires TLS, start AWS_ENDPOINT_URL with https://",
    "ParseError|non-XML": "the response is not from an S3 server, check AWS_ENDPOINT_URL",
    "Connection (broken|aborted)": "the connection broke several times, check the network and the server's log",
    "No space left|File too large|quota exceeded": "the local disk is full, free space or use another folder",
}

# Accounts with read access to another owner's bucket often lack this permission.
_REGION_ADVICE = (
    "access denied: set AWS_REGION to the bucket's region or allow the account s3:GetBucketLocation. "
    "If this does not help, check AWS_ACCESS_KEY_ID and the permissions of the account"
)
_UNKNOWN_REGION = "the bucket's region"


def is_transient(error: Exception) -> bool:
    """Return whether a request that was retried failed with an error that may pass. A wrong certificate does not."""
    return isinstance(error, HTTPError) and not isinstance(getattr(error, "reason", error), SSLError)


def error_code(error: Exception) -> str:
    """Return the code that an S3 server gave for an error, such as "NoSuchKey"; "" if the answer is not one of S3."""
    if isinstance(error, S3Error):
        return error.code or ""
    # rclone sends errors as text/xml, which minio-py does not parse.
    body = re.search(r"<Error>.*?<Code>(\w+)</Code>", str(error), re.DOTALL)
    return body[1] if body and isinstance(error, InvalidResponseError) else ""


def explain_error(error: Exception, asks_for_region: bool = False) -> str:
    """Return the cause of an error and what to do, in one line.

    Args:
        error: The exception of a request.
        asks_for_region: Whether AWS was asked for the bucket's region before the request.
    """
    reason = getattr(error, "reason", error)
    # The error of a response that is not from S3 contains the body, which may be a long web page.
    text = " ".join(f"{type(reason).__name__}: {reason}".split())[:500]
    # rclone sends errors as text/xml, which minio-py does not parse.
    code = "".join(re.findall(r"(?:<Code>|; code: )(\w+)", text)[:1])
    if asks_for_region and "AccessDenied" in text:
        return f"{_REGION_ADVICE} (AccessDenied)"
    region = re.search(r"(?:expecting '|use region )([a-z0-9-]+)", text)
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, code or text):
            return f"{advice.format(region=region[1] if region else _UNKNOWN_REGION)} ({code or text})"
    return text
