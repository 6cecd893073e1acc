"""What elastic quotas allow, and what they may reclaim."""
