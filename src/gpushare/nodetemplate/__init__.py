"""Tells autoscalers what nodes will have that are not there yet."""
