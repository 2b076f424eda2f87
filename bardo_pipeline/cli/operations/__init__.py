"""Operations commands: verify, backup, keys, spool, status, configuration."""
