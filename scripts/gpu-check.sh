#!/usr/bin/env bash
# Is all well on this GPU? Decoding, training, the server and the speed, in under ten minutes and
# without a network; a folder with a report that names every failure. All flags: --help
#
#   scripts/gpu-check.sh --wheels wheels --output results
#   scripts/gpu-check.sh --rehearse --output gpu-check
exec "$(dirname "${BASH_SOURCE[0]}")/python.sh" -m benchmarks.gpu.check "$@"
