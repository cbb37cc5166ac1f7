"""What a `train_specification` says, and what runs in the replicas: the entry program and the trainers."""

from kfp_distributed.trainers.programs.authoring import train_specification
from kfp_distributed.trainers.programs.program import FOLDERS, TRAINERS, Program, check_parameters, parse_program

__all__ = ["FOLDERS", "TRAINERS", "Program", "check_parameters", "parse_program", "train_specification"]
