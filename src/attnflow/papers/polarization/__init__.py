"""Gradient flow polarizes softmax outputs towards low-entropy solutions."""
