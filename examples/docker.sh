#!/bin/sh
# Check a server from a container; the report is in ./report. OWNER is where Tokenwire lives.
exec docker run --rm --network host --volume "$PWD:/work" ghcr.io/OWNER/tokenwire:0.1.0 \
  check --target "${1:?the URL of a server}" --budget quick --report report
