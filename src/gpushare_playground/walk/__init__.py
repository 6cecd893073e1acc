"""The walk: the documentation's examples, run in the playground, with explanations, and checked."""
