"""The ranks of a PyTorch replica that has several, or is one of a number that may change: torchrun starts them."""

import os
import sys
import traceback
from collections.abc import Mapping

from kfp_distributed.trainers.runtime.job import PEER_LOST

_RUN_ID = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets in the processes that it starts."""


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process."""
    return _RUN_ID in environment


def has_ranks(environment: Mapping[str, str]) -> bool:
    """Whether this replica is to start ranks, instead of being one itself."""
    several = environment.get("PET_NPROC_PER_NODE", "1") != "1"
    return not is_rank(environment) and (several or "PET_RDZV_BACKEND" in environment)


def main() -> int:
    """Run the entry program in each rank, as the variables PET_... say; return an exit code that tells how it ended."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    # Under Python 3.11, torch 1.13 fails unless some rank's output is redirected; the tenth's is, and printed as well.
    # The folder for that goes with the replica's own.
    os.environ |= {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "PET_LOG_DIR": "torchrun"}
    # 1.13 would look at its ranks every five seconds.
    os.environ.setdefault("PET_MONITOR_INTERVAL", "0.1")
    # Agents that share one store, as since torch 2.5, tell its place in the first round alone: one that comes later
    # waits for it in vain, and all others for that one (seen with 2.15).
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    try:
        run(parse_args(["--module", "kfp_distributed.trainers.runtime.entry"]))
    except ChildFailedError as error:
        code = int(error.get_first_failure()[1].exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except (RendezvousError, RuntimeError):  # Where they meet is gone: all start again.
        traceback.print_exc()
        return PEER_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
