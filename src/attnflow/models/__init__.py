"""Losses over parameters, and what to observe of them."""
