"""Programs that people use GPUs with, as their wheels come, on the stand-in driver and under limits (``make clients``)."""
