"""What keeps a golem from harm: the daily budget, permits, and the cache of decisions. Pure."""
