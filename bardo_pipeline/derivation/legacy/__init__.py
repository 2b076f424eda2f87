"""Legacy: testaments, candidate bundles, verdicts with their Data Docs, and published bundles."""
