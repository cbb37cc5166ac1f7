"""Child processes that end with the process that started them."""

from kfp_distributed.processes.group import ProcessGroup

__all__ = ["ProcessGroup"]
