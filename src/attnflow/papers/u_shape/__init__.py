"""A U-shape in dot-product attention under gradient flow."""
