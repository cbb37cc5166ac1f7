"""Separates the samples that replicas print from the lines of their programs."""

from collections.abc import Iterator
from dataclasses import replace

from kfp_distributed.components.train.run.facts import Fact, LogLine, ReplicaSample
from kfp_distributed.trainers.runtime.samples import split_sample


def split_samples(fact: Fact) -> Iterator[Fact]:
    """Yield a fact, or the sample that a log line has and the rest of the line, if there is any."""
    if not isinstance(fact, LogLine):
        yield fact
        return
    text, sample = split_sample(fact.line)
    if sample is None:
        yield fact
        return
    if text:
        yield replace(fact, line=text)
    yield ReplicaSample(fact.time, fact.replica, *sample, happened=fact.happened)
