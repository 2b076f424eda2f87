"""Measures and limits for the quality of grimoires, lineages and bundles."""
