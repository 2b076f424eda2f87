"""Legacy: testaments, candidate bundles, verdicts and published bundles."""
