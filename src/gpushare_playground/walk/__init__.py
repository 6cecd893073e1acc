"""The walk: the documentation's examples, typed into the playground, with what to notice, and checked."""
