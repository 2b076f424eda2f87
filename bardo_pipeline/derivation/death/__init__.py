"""Death: silence, the phases of Thanatopsis, and the graveyard."""
