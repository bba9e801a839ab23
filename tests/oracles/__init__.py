"""The slow, obvious versions: what a paper's notebook would write."""
