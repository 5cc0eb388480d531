#!/bin/sh
# How the images start: with SDGBIAS_FETCH=1 the weights of enabled models come first. One that can't be fetched keeps
# nothing from starting: it is left out of the night, with its reason.
set -eu
if [ "${SDGBIAS_FETCH:-0}" = 1 ]; then
    sdgbias models fetch --enabled || echo "sdgbias models fetch --enabled: exit code $?; starting all the same" >&2
fi
case "${1:-}" in
    prefect | python | sh) exec "$@" ;;
    *) exec sdgbias "$@" ;;
esac
