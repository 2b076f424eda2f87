"""The command line `bardo`."""
