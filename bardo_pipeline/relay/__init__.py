"""The relay: a process that passes encrypted messages between the homes of one owner and cannot read them."""
