"""Starts the ranks of a PyTorch replica with torchrun, if it has several ranks or the job is elastic."""

import os
import sys
import traceback

from kfp_distributed.trainers.runtime.job_description import PEER_LOST
from kfp_distributed.trainers.runtime.workarounds.torch_internals import SEPARATE_STORE, TORCHRUN


def main() -> int:
    """Run the entry program in each rank, as the variables PET_... specify; return the exit code of the replica."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    os.environ |= TORCHRUN
    # torch 1.13 polls its ranks every five seconds by default.
    os.environ.setdefault("PET_MONITOR_INTERVAL", "0.1")
    for name, value in SEPARATE_STORE.items():
        os.environ.setdefault(name, value)
    try:
        run(parse_args(["--module", "kfp_distributed.trainers.runtime.entry"]))
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except (RendezvousError, RuntimeError):  # The rendezvous is lost, so all replicas restart.
        traceback.print_exc()
        return PEER_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
