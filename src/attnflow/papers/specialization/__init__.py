"""Specialization of heads in high-dimensional attention: one relevant token, many heads."""
