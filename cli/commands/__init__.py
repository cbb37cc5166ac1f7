"""The commands of the command line. Each module has one, under the name `command`."""
