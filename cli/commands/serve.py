"""`kfp-distributed serve`."""

import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import click

from kfp_distributed.cli.options import WrongArgument, namespace_option, refused
from kfp_distributed.cli.pipeline_store import StoreNotReached, credentials_for
from kfp_distributed.cluster_api.client import ClusterError
from kfp_distributed.components.model_formats.load import load_model
from kfp_distributed.components.model_server.http_server import ModelServer, PredictHandler, RequestHandler, ServedModel
from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.predict.asked_model.model_folder import download_model
from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.kubeflow.credentials import Credentials
from kfp_distributed.storage.model import ModelIncomplete, read_model_folder
from kfp_distributed.storage.model_format import HUGGING_FACE, find_format

REST_PORT = 8501
"""Port of the REST interface of TensorFlow Serving."""


@click.command()
@click.argument("model")
@click.option("--name", default="", help="Name of the model in URLs. Default: that of the address, such as digits.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the interface to listen on.")
@click.option("--port", default=REST_PORT, show_default=True, type=click.IntRange(0, 65535), help="0: a free port.")
@namespace_option("Namespace of the pipelines whose object store to use.")
def command(model: str, name: str, host: str, port: int, namespace: str) -> None:
    """Answer requests for the predictions of MODEL over HTTP, as TensorFlow Serving and KServe do.

    A language model answers chats and completes texts over OpenAI's HTTP interface, as KServe's huggingface runtime
    does. For an adapter, the model to which it belongs is fetched.

    MODEL is a folder or an address of a model, such as s3://models/digits/3 or s3://models/digits@production. The
    version of an alias is that of the start. The object store is that of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY. Without keys, and for minio:// addresses without AWS_ENDPOINT_URL, it is that of the
    pipelines on the cluster of KUBECONFIG.

    The server is for one machine and for tests: it has no authentication, so let only this machine reach it.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    again = shlex.join(["kfp-distributed", *sys.argv[1:]])
    try:
        with tempfile.TemporaryDirectory(prefix="serve-") as scratch, ExitStack() as store:
            credentials = store.enter_context(credentials_for(model, namespace, again))
            model = resolve(model, credentials)
            name, version = _name_and_version(name, model)
            # Before the download, which may take long.
            with _bound(model, host, port) as server, ExitStack() as loaded:
                folder = _local_folder(model, Path(scratch, "model"), credentials)
                if find_format(folder) == HUGGING_FACE:
                    handler = loaded.enter_context(
                        _language_model(
                            name,
                            folder,
                            Path(scratch, "base"),
                            lambda address: store.enter_context(credentials_for(address, namespace, again)),
                        )
                    )
                    path = "/openai/v1"
                else:
                    handler = partial(PredictHandler, ServedModel(name, version, load_model(folder)))
                    path = f"/v1/models/{name}:predict"
                store.close()
                server.listen(handler)
                click.echo(f"serving {name} {version} at {server.url}{path}, until Ctrl-C")
                server.serve_forever()
    except (ImportError, OSError) as error:  # Some tokenizers need a package.
        raise click.ClickException(f"cannot load {model}: {error}") from None
    except (ValueError, StorageError, StoreNotReached, ModelIncomplete) as error:
        raise click.ClickException(str(error)) from None
    except ClusterError as error:
        raise refused(error) from None


def _name_and_version(name: str, model: str) -> tuple[str, int]:
    name_in_address, version = name_and_version(model)
    name = name or name_in_address
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise WrongArgument(f"{name!r} is not the name of a model: pass --name with letters, digits and . _ -")
    return name, version


def _bound(model: str, host: str, port: int) -> ModelServer:
    try:
        return ModelServer(host, port)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        raise click.ClickException(f"cannot serve {model} on {shown}:{port}: {error.strerror or error}") from None


@contextmanager
def _language_model(
    name: str, folder: Path, scratch: Path, credentials: Callable[[str], Credentials | None]
) -> Iterator[Callable[..., RequestHandler]]:
    """Load a language model, and yield what answers the requests of a connection."""
    try:
        from kfp_distributed.components.model_server.chat_model import load_chat_model
        from kfp_distributed.components.model_server.openai_handler import OpenAIHandler
    except ImportError as error:
        raise click.ClickException(
            f"{name} is a language model, and {sys.executable} lacks what it needs ({error}). Run: {sys.executable} -m "
            "pip install 'kfp-distributed[language-model]'"
        ) from None
    with closing(load_chat_model(folder, scratch, credentials)) as model:
        yield partial(OpenAIHandler, name, model)


def name_and_version(address: str) -> tuple[str, int]:
    """Return the name and the number in an address: digits and 3 of s3://models/digits/3; the number may be missing."""
    parts = [part for part in re.split("[/\\\\]+", address) if part]
    version = int(parts.pop()) if len(parts) > 1 and re.fullmatch("[0-9]{1,18}", parts[-1]) else 1
    return (parts[-1] if parts else ""), version


def _local_folder(model: str, folder: Path, credentials: Credentials | None) -> Path:
    """Return the folder of a model whose files were checked, after a download if it is in an object store."""
    if "://" in model and not model.startswith("file://"):
        try:
            download_model(model, folder, credentials=credentials, takes_language_models=True)
        except StorageError as error:
            raise click.ClickException(f"{error}; the download goes to {folder}: TMPDIR sets its place") from None
        return folder
    local = Path(model.removeprefix("file://"))
    if not local.is_dir():
        raise WrongArgument(
            f"there is no folder {local}: pass that of a model, or an address such as s3://models/digits/3"
        )
    read_model_folder(local)
    return local
