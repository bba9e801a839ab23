"""Questions that the papers leave open, and what the simulators answer."""
