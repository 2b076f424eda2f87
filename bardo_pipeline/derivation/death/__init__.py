"""Death: silence, the phases of Thanatopsis, unfinished deaths, notices to owners, and the graveyard."""
