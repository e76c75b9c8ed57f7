#!/bin/sh
# What mpiexec calls in place of ssh, [options] machine command: it stays on this machine, and its launcher is one of its own.
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec /bin/sh -c "$*"
