"""Fleet commands: `bardo run` and `bardo demo`."""
