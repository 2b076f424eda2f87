"""The hash chain of records, its signing keys, and the sealing of private parts."""
