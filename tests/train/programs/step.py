"""A train step as a process: `step.py MARKER COMMAND...` runs a job with two workers that run the command."""

import sys

from train.programs.jobs import MARKER, make_job, workers

from kfp_distributed.components.train.run import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.signals import ended_by_signals
from kfp_distributed.components.train.tell.log_format import print_entry
from kfp_distributed.components.train.tell.step_log import StepLog

job = make_job(sys.argv[2:], workers(2), **{MARKER: sys.argv[1]})
runner = LocalRunner()
with ended_by_signals(runner.stop):
    runner.check(job)
    runner.start(job)
    launch.follow_job(runner, job, StepLog(print_entry))
