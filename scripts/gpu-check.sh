#!/usr/bin/env bash
# Check decoding, training, the server and the speed on this GPU, in under ten minutes and without a
# network. Writes a folder with a report that names every failure. All flags: --help
#
#   scripts/gpu-check.sh --wheels wheels --output results
#   scripts/gpu-check.sh --rehearse --output gpu-check
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m benchmarks.gpu.check "$@"
