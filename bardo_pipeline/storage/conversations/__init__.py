"""Conversations: sessions between an owner and a golem."""
