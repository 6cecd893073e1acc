#!/bin/sh
# As in the sample image: hands its options to the benchmark.
exec python "$(dirname "$0")/benchmark.py" "$@"
