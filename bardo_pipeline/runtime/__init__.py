"""Runtime: runs fleets through markets, from birth to succession, and evaluates their memory."""
