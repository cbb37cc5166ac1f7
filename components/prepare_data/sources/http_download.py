"""Downloads a file of an HTTP server. A download whose connection breaks goes on where it broke if the server can."""

from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from kfp_distributed.components.external_services.http_requests import open_url
from kfp_distributed.components.external_services.request_retries import Retries
from kfp_distributed.components.prepare_data.sources.download_limit import DownloadLimit
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.files import unfinished_file

# Requests for a file whose connection breaks.
_ATTEMPTS = 4


class _BrokenConnection(OSError):
    """A response ended before its declared size, or the connection failed while it was read."""


def download_url(source: str, path: Path, limit: DownloadLimit) -> Path:
    """Download a file, in up to four attempts if connections break. A failed download leaves nothing.

    An attempt goes on where the last one broke if the server has sent an ETag, and sends a part of the same file.
    Otherwise it starts again.

    Args:
        source: Address with the scheme http or https.
        path: Path of the local file.
        limit: Size that the file may have.

    Returns:
        `path`.

    Raises:
        ValueError: The address is not valid.
        OSError: The server does not answer, or the file is larger than allowed.
        HTTPException: The response is not valid.
    """
    with unfinished_file(path) as file:
        download = _Download(source, file, limit)
        for remaining in reversed(range(_ATTEMPTS)):
            try:
                download.attempt()
                break
            except _BrokenConnection as error:
                if not remaining:
                    raise
                print(f"{error}; the download {'goes on there' if download.etag else 'starts again'}", flush=True)
    return path


class _Download:
    """A file that arrives in one or more responses.

    Attributes:
        etag: Identity of the content that has arrived; "" if nothing has arrived or the server does not tell it.
    """

    def __init__(self, source: str, file: BinaryIO, limit: DownloadLimit) -> None:
        self.etag = ""
        self._source, self._file, self._limit, self._received, self._retries = source, file, limit, 0, Retries()

    def attempt(self) -> None:
        """Request what is missing.

        Raises:
            _BrokenConnection: The connection broke.
        """
        # A server that knows no ranges sends status 200 and the whole file, as does one whose file has changed.
        part = {"Range": f"bytes={self._received}-", "If-Range": self.etag} if self.etag and self._received else {}
        with open_url(self._source, part, self._retries) as response:
            if response.status == 206:
                self._check_start(response)
            else:
                self._start(response)
            size = None if response.length is None else self._received + response.length
            self._limit.refuse_more(size or 0, declared=True)
            if response.status != 206:
                shown = "unknown" if size is None else size
                print(f"downloading {without_secrets(self._source)}, {shown} bytes", flush=True)
            self._receive(response, size)

    def _start(self, response: HTTPResponse) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._received, etag = 0, response.headers["ETag"] or ""
        # A weak ETag, W/"...", does not tell whether all bytes are equal.
        self.etag = etag if etag.startswith('"') and response.length is not None else ""

    def _check_start(self, response: HTTPResponse) -> None:
        content_range = response.headers["Content-Range"] or ""
        if not (self.etag and content_range.startswith(f"bytes {self._received}-")):
            self.etag = ""
            raise _BrokenConnection(f"the server sent another part of the file than bytes {self._received}-")

    def _receive(self, response: HTTPResponse, size: int | None) -> None:
        while block := self._read(response, size):
            self._received += len(block)
            self._limit.refuse_more(self._received, declared=False)
            self._file.write(block)
            self._limit.on_bytes(len(block))
        if size is not None and self._received != size:
            raise self._broken(size)

    def _read(self, response: HTTPResponse, size: int | None) -> bytes:
        try:
            return response.read(1 << 20)
        except (HTTPException, OSError) as error:
            raise self._broken(size, f": {type(error).__name__}") from None

    def _broken(self, size: int | None, cause: str = "") -> _BrokenConnection:
        return _BrokenConnection(f"the connection broke after {self._received} of {size or 'unknown'} bytes{cause}")
