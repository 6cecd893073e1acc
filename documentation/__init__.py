"""The documentation site: pages generated from the code, links, and commands that are run."""
