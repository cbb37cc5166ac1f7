"""What an installation puts into a namespace.

In come the objects of a namespace, the version of this library and a compiled pipeline. Out go the changes of `install`
and `uninstall`, and the libraries that the steps of the pipeline need. Which objects the library has in a namespace may
be changed here alone; the rules of its Roles are in `deploy/`.
"""
