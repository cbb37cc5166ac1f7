"""Whether a cluster is ready for trainings. Pure.

In come facts about a cluster and the options of `doctor`, or why a fact cannot be known. Out go checks: "ok", or a
problem with its fix. What is a problem and what is to be done about it may be changed here alone.
`cli/survey.py` reads the facts and calls the checks.
"""
