"""What the lines of replicas are: lines of the program, samples, or remarks of TensorFlow."""

import re
from collections.abc import Iterator
from dataclasses import replace

from kfp_distributed.components.model_formats.quiet_import import STARTUP_REMARK
from kfp_distributed.components.train.run.facts import Fact, LogLine, ReplicaSample
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample

_REMARK = re.compile(STARTUP_REMARK)


def read_line(fact: Fact) -> Iterator[Fact]:
    """Yield a fact, or what a log line is: the line, a remark, a sample, or both a line and a sample."""
    if not isinstance(fact, LogLine):
        yield fact
        return
    text, sample = split_sample(fact.line)
    if sample is None:
        yield replace(fact, is_remark=True) if _REMARK.search(text) else fact
        return
    if text:
        yield replace(fact, line=text)
    yield ReplicaSample(fact.time, fact.replica, *sample, happened=fact.happened)
