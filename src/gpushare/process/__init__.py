"""What every process needs: events with subscribers, logging, signals, lazy imports."""
