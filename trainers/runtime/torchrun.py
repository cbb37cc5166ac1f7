"""Starts the ranks of a PyTorch replica with torchrun, if it has several ranks or the job is elastic."""

import os
import sys
import traceback
from collections.abc import Mapping

from kfp_distributed.trainers.runtime.job_description import PEER_LOST
from kfp_distributed.trainers.runtime.torch_internals import SEPARATE_STORE, TORCHRUN

_RUN_ID = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets in the processes that it starts."""


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun has started this process."""
    return _RUN_ID in environment


def has_ranks(environment: Mapping[str, str]) -> bool:
    """Return whether this replica starts ranks with torchrun instead of being a rank itself."""
    several = environment.get("PET_NPROC_PER_NODE", "1") != "1"
    return not is_rank(environment) and (several or "PET_RDZV_BACKEND" in environment)


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
