"""Removes the secrets of addresses: user and password, and the query, which may be a signature (pure)."""

import re

# User and password, also if the password has a "/", "?" or "#" that is not percent-encoded. Then no host or
# no port precedes this character.
_USER = re.compile(r"(?<=://)(?:[^/?#]*@(?:.*@)?|[^/?#@\[]*:(?!\d*(?:[/?#]|$)).*@)")
_CONTAINER = re.compile(r"(?i)(abfss?|az)://[\w.-]+@")
# In a text, an address ends at a space. It may have no scheme, as in "with url: /a?Signature=...".
_USER_IN_TEXT = re.compile(r"//[^/\s]*@")
_QUERY_IN_TEXT = re.compile(r"\?[^\s'#]+")


def without_secrets(address: str) -> str:
    """Return an address without its user and query, and a URL also without its fragment. Paths stay unchanged.

    The container of an Azure address, abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/FILE, stays.
    """
    if "://" not in address:
        return address
    # In the key of an object, "#" is a character like others.
    end = r"[?#].*" if re.match("(?i)https?:", address) else r"\?.*"
    return re.sub(end, "", _without_user(address))


def has_user(address: str) -> bool:
    """Return whether an address has a user or password. A container of Azure is no user."""
    return _without_user(address) != address


def _without_user(address: str) -> str:
    return address if _CONTAINER.match(address) else _USER.sub("", address, count=1)


def mask_secrets(text: str) -> str:
    """Return a text, such as an error or a command, with *** in place of the users and queries of its addresses."""
    return _QUERY_IN_TEXT.sub("?***", _USER_IN_TEXT.sub("//***@", text))
