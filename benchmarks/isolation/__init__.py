"""What isolation costs and how well it holds, on the stand-in driver."""
