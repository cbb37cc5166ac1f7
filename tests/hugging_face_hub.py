"""A server with the part of the API of huggingface.co that reads a repository."""

import http.server
import json
import re
import threading
from contextlib import contextmanager
from hashlib import sha1, sha256
from urllib.parse import unquote


class Hub(http.server.BaseHTTPRequestHandler):
    """Has one repository: team/`name`, a dataset or a model, with the branch "main"."""

    protocol_version = "HTTP/1.1"
    kind = name = ""
    content: dict = {}  # noqa: RUF012

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        kind = "" if self.kind == "models" else f"/{self.kind}"
        revision = f"(?:main|{commit_of(self.content)})"
        tree = re.fullmatch(f"/api/{self.kind}/team/{self.name}/tree/{revision}/?(.*)", path)
        file = re.fullmatch(f"{kind}/team/{self.name}/resolve/{revision}/(.*)", path)
        if re.fullmatch(f"/api/{self.kind}/team/{self.name}(/revision/{revision})?", path):
            information = {"id": f"team/{self.name}", "sha": commit_of(self.content), "siblings": self.siblings()}
            self.answer(json.dumps(information).encode())
        elif tree:
            self.answer(json.dumps(self.tree(tree[1])).encode())
        elif file and file[1] in self.content:
            self.answer(self.content[file[1]].encode(), self.headers["Range"])
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if tree or file else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def do_POST(self):
        wanted = self.rfile.read(int(self.headers["Content-Length"])).decode()
        names = re.findall(r'paths"?[=:] ?\[?"?([^&"\]]*)', unquote(wanted))
        found = [entry for entry in self.tree("", recursive=True) if entry["path"] in names]
        self.answer(json.dumps(found).encode())

    def do_HEAD(self):
        self.do_GET()

    def siblings(self):
        """Return the files as the information about a repository has them. Large files have a SHA-256."""
        files = []
        for name, content in self.content.items():
            files.append({"rfilename": name, "size": len(content)})
            if name.endswith(".safetensors"):
                hash_ = sha256(content.encode()).hexdigest()
                files[-1]["lfs"] = {"size": len(content), "sha256": hash_, "pointerSize": 130}
        return files

    def tree(self, folder, recursive=False):
        recursive = recursive or "recursive=true" in self.path.lower()
        start = f"{folder}/" if folder else ""
        entries = []
        for name, content in self.content.items():
            rest = name.removeprefix(start)
            if not name.startswith(start):
                continue
            if "/" in rest:
                entries.append({"type": "directory", "oid": "d", "size": 0, "path": start + rest.split("/")[0]})
            if "/" not in rest or recursive:
                oid = str(abs(hash(content)))
                entries.append({"type": "file", "oid": oid, "size": len(content), "path": name})
        return entries

    def answer(self, content, wanted=None):
        self.send_response(206 if wanted else 200)
        if wanted:
            start, end = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()
            whole, content = len(content), content[int(start) : int(end) + 1 if end else None]
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(content) - 1}/{whole}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"e"')
        self.send_header("X-Repo-Commit", commit_of(self.content))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def safetensors(value):
    """Return a complete file of weights, of 900 bytes that are all the same character, as text."""
    header = '{"a":{"dtype":"U8","shape":[900],"data_offsets":[0,900]}}'
    return f"{chr(len(header))}{chr(0) * 7}{header}{value * 900}"


def commit_of(content):
    """Return the commit of the branch: it changes with the files."""
    return sha1(json.dumps(content).encode(), usedforsecurity=False).hexdigest()


@contextmanager
def hub(kind, name, content):
    """Yield the address of a server.

    Args:
        kind: "datasets" or "models".
        name: Name of the repository of the owner "team".
        content: Text of each file by its path, which may change meanwhile.
    """
    own = type("OwnHub", (Hub,), {"kind": kind, "name": name, "content": content})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
