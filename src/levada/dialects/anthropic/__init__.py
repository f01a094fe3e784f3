"""Anthropic Messages and the servers that speak it."""
