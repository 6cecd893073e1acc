"""What a simulation reports: text, curves, images."""
