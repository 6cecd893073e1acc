"""One declaration an option: from it come its flag, its environment variable, its key in a file, schema and docs."""
