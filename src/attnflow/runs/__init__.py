"""Configs and files: what a run leaves on disk."""
