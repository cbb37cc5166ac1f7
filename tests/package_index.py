"""A local package index with stalled downloads, for tests of pip's behavior."""

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class PackageIndex:
    """An index that serves wheels.

    Attributes:
        url: Value for PIP_INDEX_URL.
        stalls: Number of next downloads that stop halfway without closing the connection.
        downloads: File name and "stalled" or "complete" of each download, in order.
    """

    url: str
    stalls: int = 0
    downloads: list[tuple[str, str]] = field(default_factory=list)


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with one module, whose size is some kilobytes."""
    module = name.replace("-", "_")
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    files = {
        f"{module}.py": "# filler\n" * 1000,
        f"{module}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{module}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{module}-{version}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@contextmanager
def package_index(wheels: Path) -> Iterator[PackageIndex]:
    """Serve the wheels of a folder until the block exits."""
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple":
                prefix = parts[1].replace("-", "_") + "-"
                links = [f'<a href="/wheels/{wheel.name}">{wheel.name}</a>' for wheel in wheels.glob(f"{prefix}*.whl")]
                self._answer("\n".join(links).encode(), "text/html")
                return
            stalls, index.stalls = index.stalls > 0, index.stalls - 1
            index.downloads.append((parts[1], "stalled" if stalls else "complete"))
            self._answer((wheels / parts[1]).read_bytes(), "application/octet-stream", stalls=stalls)

        def _answer(self, body: bytes, content_type: str, *, stalls: bool = False) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if stalls else body)
            if stalls:
                self.wfile.flush()
                closing.wait(60)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        index = PackageIndex(f"http://127.0.0.1:{server.server_port}/simple")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield index
        finally:
            closing.set()
            server.shutdown()
