"""Ill-conditioning of softmax attention under gradient descent: prompt attention."""
