"""Runtime: a fleet living through a market, from birth to succession."""
