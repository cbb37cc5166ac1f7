"""What this library uses of PyTorch without its promise, with the reason, the versions and the test of each use.

tests/trainers/test_torch_internals.py fails when a use is no longer needed by Debian's PyTorch 1.13.
"""

import ctypes
from collections.abc import Mapping

TORCHRUN: Mapping[str, str] = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "PET_LOG_DIR": "torchrun"}
"""Environment variables of torchrun that redirect the output of rank 9 into a file, and print it as well.

Needed by PyTorch 1.13 with Python 3.11. Iteration over an IntFlag no longer includes 0, so that torchrun reads the
default "0" of both options as None, and fails: https://github.com/meta-llama/llama/issues/86, and
https://github.com/pytorch/pytorch/blob/v1.13.1/torch/distributed/elastic/multiprocessing/api.py#L120. A mapping of
ranks is read correctly. Rank 9 is in it because few replicas have it. The folder of the file is deleted with the folder
of the replica.
"""

SEPARATE_STORE: Mapping[str, str] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment variable with which the ranks of torchrun do not share the store of its rendezvous.

Needed since PyTorch 2.5 (https://github.com/pytorch/pytorch/pull/128096,
https://github.com/pytorch/pytorch/issues/135712): agents publish the address of the shared store in the first round
only. An agent that joins later waits for the address forever, and all others wait for this agent (seen with 2.15).
No environment of the tests has such a version, so no test shows that it is needed. Earlier versions ignore it.
"""


def never_destroy(process_group: object) -> None:
    """Keep a process group until the process has ended, by a reference that nobody returns.

    The destructor waits for the threads of Gloo. One of them may be waiting for the interpreter lock to free a tensor.
    If DistributedDataParallel has the last reference, its destructor holds the lock, and the process never ends:
    https://github.com/pytorch/pytorch/issues/56297. https://github.com/pytorch/pytorch/pull/154976 (June 2025) releases
    the lock only where Python has the last reference.

    The public `torch.distributed.destroy_process_group` does not replace it: it also waits for operations that a lost
    peer will never join, and the reference of DistributedDataParallel remains.

    Args:
        process_group: A `torch.distributed.ProcessGroup`.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(process_group))


def let_cpus_shard() -> bool:
    """Make `fully_shard` work on CPUs with PyTorch 2.6. PyTorch 2.15 needs no help.

    The streams of CPUs, which do nothing, lack methods that it calls, and Gloo returns the sum of the gradients where
    it is asked for their average.

    Returns:
        Whether they can shard parameters that are trained together with the head. Those of PyTorch 2.6 cannot.

    Raises:
        ValueError: PyTorch is newer, and Gloo returns the sum: https://github.com/pytorch/pytorch/issues/162338.
    """
    import torch
    from torch import distributed

    if not hasattr(torch.cpu.Stream, "record_event"):
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        torch.cpu.Stream.record_event = lambda _: torch.cpu.Event()
        torch.cpu.Stream.wait_event = lambda *_: None
        # Factors by which gradients are divided before and after the sum.
        _fsdp_collectives._get_gradient_divide_factors = lambda group, *_: (1.0, float(group.size()))
        return False
    average = torch.zeros(1)
    distributed.reduce_scatter_tensor(average, torch.ones(distributed.get_world_size()), distributed.ReduceOp.AVG)
    if average.item() != 1:
        raise ValueError(
            f'sharding is "fsdp", and PyTorch {torch.__version__} adds gradients on CPUs in place of averaging them: '
            'set sharding to "none", or use GPUs or PyTorch 2.15'
        )
    return True
