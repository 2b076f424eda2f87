"""Life events: birth, death, succession, bundles, overrides and retractions."""
