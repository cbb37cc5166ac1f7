"""The commands of the command line, one module each. A module has its command under the name `command`."""
