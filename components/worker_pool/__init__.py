"""Runs the tasks of a step on several workers: processes of this machine, a Dask cluster, or the pods of a job."""
