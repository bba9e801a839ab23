"""What opens in a browser."""
