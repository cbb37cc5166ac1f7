"""What this process is in its job: its role, its rank and its name.

In come the environment variables of a launcher or an operator, and the description of the job. Out go which of
how many parts of the rows this process reads, whether it leads, and the variables of its framework. How a launcher or
an operator numbers processes may be changed here alone.
"""
