"""Requests to servers of others: those of sources, and MLflow.

In come addresses with their users and passwords, and the environment variables of MLflow. Out go answers, files and
their states, or an error without secrets. Which servers a request or a redirect may reach, and how often a failed one
is repeated, may be changed here alone.
"""
