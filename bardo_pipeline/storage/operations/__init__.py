"""Operations: backup, maintenance, retention and health figures of a home."""
