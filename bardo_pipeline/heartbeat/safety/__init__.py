"""What keeps a golem from harm: the daily budget, permits, the risk engine, and the cache of decisions. Pure."""
