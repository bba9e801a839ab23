"""What is learned: generated from a seed, never stored."""
