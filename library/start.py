"""Starts a step once the bootstrap has found the library: installs its packages, then runs KFP's executor."""

import os
import runpy

from kfp_distributed.library.packages import install


def start(executor: str, kfp: str = "", *packages: str) -> None:
    """Run the executor, which imports the step's program again as a module and calls its function.

    Args:
        executor: KFP's module that runs a function, such as "kfp.dsl.executor_main".
        kfp: Requirement of kfp, which is installed without its dependencies; "" if everything is installed.
        packages: Requirements of the step's packages.

    Raises:
        SystemExit: pip failed, or the executor ended.
    """
    if kfp:
        install(*packages, alone=[kfp])
    # kfp then imports its runtime alone, as it does in its own steps.
    os.environ["_KFP_RUNTIME"] = "true"
    runpy.run_module(executor, run_name="__main__", alter_sys=True)
