"""What every process needs: logging, signals, lazy imports."""
