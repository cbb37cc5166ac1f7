"""A program of exporting processes that race or are killed. Its last line of output is a JSON object.

python export_races.py kills|race|race-version|deletions MODEL_URI BUCKET MODEL_NAME COUNT SEED

The environment has the address of the S3 server. All processes are forked, so that they begin without imports.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

from kfp_distributed.components.export_model.export import run_export
from kfp_distributed.components.model_versions import claims
from kfp_distributed.components.model_versions.aliases import deletion_record, read_aliases, remove_alias, set_alias
from kfp_distributed.components.model_versions.deletion import delete_version
from kfp_distributed.components.model_versions.versions import VersionRefused, read_complete
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model_format import SERVED_FILES
from kfp_distributed.storage.opener import open_store

LEASE_SECONDS = 8
RUN = "4f5b0b1c-5a1c-4a6e-9d4c-6c0f2f7f3a11"


class Manifest:
    """Output artifact of a task of its own."""

    def __init__(self, folder):
        self.uri = f"minio://mlpipeline/v2/artifacts/p/{RUN}/export-model/{uuid.uuid4()}/manifest"
        self.path, self.metadata = str(Path(folder, uuid.uuid4().hex)), {}


class Exporters:
    """Exporting processes of one model."""

    def __init__(self, uri, bucket, name, folder):
        self.uri, self.bucket, self.name, self.folder = uri, bucket, name, folder

    def start(self, version=0, begin=0.0):
        """Fork an export that begins at a time. Return its process ID and the file of its result."""
        result = Path(self.folder, uuid.uuid4().hex)
        process = os.fork()
        if process:
            return process, result
        try:
            time.sleep(max(0.0, begin - time.time()))  # All processes begin together.
            try:
                exported = run_export("", self.uri, self.name, self.bucket, version, {}, Manifest(self.folder))
                text = {"version": exported.version}
            except (ValueError, StorageError) as error:
                text = {"error": str(error)}
            result.write_text(json.dumps(text))
        finally:
            os._exit(0)

    def finish(self, started):
        process, result = started
        os.waitpid(process, 0)
        return json.loads(result.read_text())


def state_of(store, name):
    """Return the state of each version, after checking that a reader takes none for complete that is not."""
    states = Counter()
    keys = {entry.key: entry.size for entry in store.list(f"{name}/")}
    for version in {key.split("/")[1] for key in keys}:
        target = f"{name}/{version}/"
        loadable = [file for file in SERVED_FILES if target + file in keys]
        complete = read_complete(store, target)
        if loadable or complete:  # What model servers and our own tools look at.
            files = json.loads(store.read(f"{target}export.json"))["files"]
            missing = [file["path"] for file in files if keys.get(target + file["path"]) != file["size"]]
            assert set(missing) <= set(SERVED_FILES), f"{target} has {loadable} and lacks {missing}"
            assert not (missing and complete), f"{target} lacks {missing}"
        states["complete" if complete else "loadable" if loadable else "partial"] += 1
    return states


def leftovers(store, name):
    """Return the keys that belong neither to a complete version nor to the record of its task."""
    complete = {f"{folder[:-1]}" for folder in store.children(name) if read_complete(store, f"{name}/{folder}")}
    kept = [f"{name}/{version}/" for version in complete]
    others = [entry.key for entry in store.list(f".exports/{name}/")]
    stray = [key for key in others if "/tasks/" not in key or store.read(key).decode() not in complete]
    return stray + [entry.key for entry in store.list(f"{name}/") if not entry.key.startswith(tuple(kept))]


def kill_exporters(exporters, store, count, chance):
    """Kill exports at random moments. Return what they left, and the leftovers after the next export."""
    began = time.monotonic()
    assert "version" in exporters.finish(exporters.start())
    span, seen = time.monotonic() - began, Counter()
    before = state_of(store, exporters.name)
    for _ in range(count):
        process, _ = exporters.start()
        time.sleep(chance.uniform(0, span))  # The random moment.
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        after = state_of(store, exporters.name)
        new = after - before
        claimed = any("/tasks/" not in entry.key for entry in store.list(f".exports/{exporters.name}/"))
        state = next(iter(new), "claim" if claimed else "nothing")
        seen[state] += 1
        before = after
        # An export takes longer on a busy machine. Steps of these sizes let about a quarter of the exports end first.
        span *= 0.75 if state == "complete" else 1.1
    time.sleep(LEASE_SECONDS + 2)  # The claims of the killed processes expire.
    assert "version" in exporters.finish(exporters.start())
    return {"seen": seen, "leftovers": leftovers(store, exporters.name), "span": span}


def kill_deletions(exporters, store, count, chance):
    """Kill deletions at random moments, while others set an alias. Return what the next exports left."""
    seen, name, span = Counter(), exporters.name, 0.04
    for _ in range(count):
        version = exporters.finish(exporters.start())["version"]
        process = os.fork()
        if not process:
            with suppress(VersionRefused):
                delete_version(open_store(store.uri), name, version)  # A connection is not shared.
            os._exit(0)
        time.sleep(chance.uniform(0, span))  # The random moment.
        if chance.random() < 0.6:
            os.kill(process, signal.SIGKILL)
        else:
            with suppress(VersionRefused):
                set_alias(store, name, version, "production")
        os.waitpid(process, 0)
        named = read_aliases(store, name).get("production")
        assert named is None or read_complete(store, f"{name}/{named}/"), named
        # A deletion that was killed after its record was written is finished by the next export.
        is_kept = not store.exists(deletion_record(name, version))
        is_complete = is_kept and bool(read_complete(store, f"{name}/{version}/"))
        state = "complete" if is_complete else "partial" if store.has_objects(f"{name}/{version}/") else "deleted"
        seen[state] += 1
        # A deletion takes longer on a busy machine, as an export does.
        span *= 0.75 if state == "deleted" else 1.1
        remove_alias_if_set(store, name)
    time.sleep(LEASE_SECONDS + 2)  # The claims of the killed processes expire.
    newest = exporters.finish(exporters.start())["version"]
    assert newest == count + 1, "a number was used again"
    return {"seen": seen, "states": state_of(store, name)}


def remove_alias_if_set(store, name):
    with suppress(VersionRefused):
        remove_alias(store, name, "production")


def race(exporters, count, version):
    """Begin exports at one time; return their results."""
    begin = time.time() + 0.5
    return [exporters.finish(started) for started in [exporters.start(version, begin) for _ in range(count)]]


def main(what, uri, bucket, name, count, seed):
    store = open_store(f"s3://{bucket}")
    with tempfile.TemporaryDirectory() as folder:
        exporters = Exporters(uri, bucket, name, folder)
        if what == "kills":
            claims.LEASE_SECONDS = LEASE_SECONDS
            result = kill_exporters(exporters, store, int(count), random.Random(seed))
        elif what == "deletions":
            claims.LEASE_SECONDS = LEASE_SECONDS
            result = kill_deletions(exporters, store, int(count), random.Random(seed))
        else:
            results = race(exporters, int(count), 3 if what == "race-version" else 0)
            result = {"results": results, "leftovers": leftovers(store, name), "states": state_of(store, name)}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
