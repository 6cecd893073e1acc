"""The documentation as a site: pages that are generated from the code, links, and commands that are run."""
