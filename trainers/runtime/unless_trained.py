"""Runs the launcher of an MPI job's ranks, unless the job has saved its model before.

`python -m kfp_distributed.trainers.runtime.unless_trained COMMAND` becomes the command. The ranks cannot look for the
model themselves: when a rank looks, a faster one of the same start may have saved it.
"""

import os
import sys
from pathlib import Path

from kfp_distributed.storage.errors import StorageError
from kfp_distributed.storage.model import model_of_request
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers.runtime.job_description import JOB_VARIABLE, STORE_SECONDS, JobDescription
from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import exit_code


def is_trained(job: JobDescription) -> bool:
    """Return whether a job has saved its complete model, before its replicas were restarted. If so, print a line.

    Raises:
        StorageError: The store cannot be read.
    """
    if not model_of_request(open_store(job.model_uri, retry_seconds=STORE_SECONDS), job.request):
        return False
    print("this job has saved its model already; nothing is trained again", flush=True)
    return True


def main() -> int:
    """Become the command, or return the exit code if it is not to be run."""
    try:
        if not is_trained(JobDescription.from_json(Path(os.environ[JOB_VARIABLE]).read_text())):
            os.execvp(sys.argv[1], sys.argv[1:])
    except StorageError as error:
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
