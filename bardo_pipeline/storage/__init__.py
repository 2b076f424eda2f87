"""Storage: the log, the projections, the vectors and the warehouse on disk."""
