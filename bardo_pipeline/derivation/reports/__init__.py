"""Reports: health, lineage and negentropy of a home."""
