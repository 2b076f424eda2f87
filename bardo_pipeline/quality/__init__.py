"""Quality: what a good record, grimoire and bundle look like, as data."""
